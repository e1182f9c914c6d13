package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	o := servertest.Options(t, nil)
	o.Addr, o.Data = "127.0.0.1:0", filepath.Join(t.TempDir(), "data")
	s := expect.Value(standalone.New(t.Context(), o))(t)
	expect.OK(t, s.Shutdown(context.WithoutCancel(t.Context())))
	for _, tt := range []struct{ command, want string }{
		{"rotate", "Created a new key"},
		{"drop", "Removed 1 keys."},
	} {
		if code, out, errs := command(t, "", "keys", tt.command, "--data", o.Data); code != exitDone || !strings.Contains(out, tt.want) {
			t.Errorf("keys %s: got exit code %d, %q, %q, want %d and %q", tt.command, code, out, errs, exitDone, tt.want)
		}
	}
	if code, _, errs := command(t, "", "keys", "rotate", "--data", filepath.Join(t.TempDir(), "none")); code != exitRefused || !strings.Contains(errs, "the data directory of a server?") {
		t.Errorf("keys rotate without a server: got exit code %d, %q, want %d and a hint", code, errs, exitRefused)
	}
}

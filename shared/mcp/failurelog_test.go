package mcp

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// logText is a log as its operator reads it: from level info on.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

// take is what was written since the last time.
func (l *logText) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// GWN-14: the answer says that a backend failed, not why; the log does, without what
// was sent and without what the backend's URL may hold.
func TestWhyACallFailedIsLogged(t *testing.T) {
	for _, stateless := range []bool{true, false} {
		b := startLister(t, "b", stateless, "tool")
		b.URL += "/?key=hush"
		b.Config.SetKeepAlivesEnabled(false) // a connection that rests would be found closed, not refused
		said := &logText{}
		f := behindGateway(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(said, nil)) }, b)
		session := f.session(alice, spec.V20251125)
		f.wholeList(t, spec.MethodToolsList, "", nil)
		b.Close()
		for _, in := range []string{"", session} {
			r := f.in(alice, in, "tools/call", `"name":"b_tool","arguments":{"private":"whisper"}`)
			m, line := r.rpc(t), said.take()
			if m.Error == nil || m.Error.Code != method.CodeUnavailable || strings.Contains(r.Body, "refused") {
				t.Errorf("stateless backend %v, session %q: %d %s", stateless, in, r.Status, r.Body)
			}
			if strings.Count(line, "\n") != 1 || !strings.Contains(line, "backend b") || !strings.Contains(line, "connection refused") || strings.Contains(line, "hush") || strings.Contains(line, "whisper") {
				t.Errorf("stateless backend %v, session %q: the log has %q", stateless, in, line)
			}
		}
	}
}

// A client that went away has no answer that could be wrong.
func TestClientsThatWentAwayAreNoFailures(t *testing.T) {
	said := &logText{}
	f := newFixture(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(said, nil)) })
	gone, leave := context.WithCancel(t.Context())
	leave()
	why := fault.Wrap(fault.Unavailable, fmt.Errorf("exchange: %w", context.Canceled), "reach a backend")
	f.endpoint.faults.Translate(gone, why, spec.V20260728, "")
	if line := said.take(); line != "" {
		t.Errorf("the log has %q", line)
	}
	f.endpoint.faults.Translate(t.Context(), why, spec.V20260728, "")
	if line := said.take(); !strings.Contains(line, "context canceled") {
		t.Errorf("of a client that waits the log has %q", line)
	}
}

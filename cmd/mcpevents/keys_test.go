package main

import (
	"context"
	"path/filepath"
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
	succeeds(t, "keys rotate --data "+o.Data, "Created a new key")
	succeeds(t, "keys drop --data "+o.Data, "Removed 1 old key.\n")
	succeeds(t, "keys drop --data "+o.Data, "Removed 0 old keys. There is only the newest key.\n")
	fails(t, "keys rotate --data "+filepath.Join(t.TempDir(), "none"), exitRefused, "the data directory of a server?")
}

// serve, backup and restore read the variable, and in a container or with the systemd unit, it names the server's directory.
func TestKeysOfTheDirectoryInTheEnvironment(t *testing.T) {
	o := servertest.Options(t, nil)
	o.Addr, o.Data = "127.0.0.1:0", filepath.Join(t.TempDir(), "other")
	s := expect.Value(standalone.New(t.Context(), o))(t)
	expect.OK(t, s.Shutdown(context.WithoutCancel(t.Context())))
	t.Setenv("MCPEVENTS_DATA", o.Data)
	succeeds(t, "keys rotate", "Created a new key")
	succeeds(t, "keys drop", "Removed 1 old key")
}

func TestKeysThatStoredSecretsNeed(t *testing.T) {
	expect.Equal(t, "the explanation", explainKept(standalone.OldKeys{Removed: 1, Kept: 2}), " Kept 2 old keys, because stored secrets still need them, "+
		"for example those of waiting deliveries. Run this command again when the deliveries have ended.")
}

package main

import (
	"fmt"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
)

// KeysCmd holds the commands for the sealing keys of a stand-alone server.
type KeysCmd struct {
	Rotate RotateCmd `cmd:"" help:"Create a new key for new webhook secrets. Old keys still open old secrets."`
	Drop   DropCmd   `cmd:"" help:"Remove the old keys that no stored webhook secret needs."`
}

// RotateCmd runs [standalone.RotateKeys].
type RotateCmd struct {
	Data string `default:"data" placeholder:"DIR" help:"Data directory of the server (${default}). Restart the server to use the new key."`
}

// Run implements the command.
func (c *RotateCmd) Run(g *Globals) error {
	if err := standalone.RotateKeys(c.Data); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(g.out, "Created a new key. Restart the server to use it. Old secrets can still be opened.")
	return nil
}

// DropCmd runs [standalone.DropKeys].
type DropCmd struct {
	Data string `default:"data" placeholder:"DIR" help:"Data directory of the server (${default}). The server must be stopped."`
}

// Run implements the command.
func (c *DropCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	dropped, err := standalone.DropKeys(ctx, c.Data)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(g.out, "Removed %d keys.\n", dropped)
	return nil
}

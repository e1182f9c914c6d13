package main

import (
	"context"
	"fmt"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
)

// KeysCmd is about the keys of an embedded server.
type KeysCmd struct {
	Rotate RotateCmd `cmd:"" help:"Seal new webhook secrets with a new key; the old ones still open what they sealed."`
	Drop   DropCmd   `cmd:"" help:"Remove old keys that no stored webhook secret is sealed with."`
}

// RotateCmd is [standalone.RotateKeys].
type RotateCmd struct {
	Data string `default:"data" placeholder:"DIR" help:"Data directory of the server (${default}), which must be restarted to use the new key."`
}

// Run implements the command.
func (c *RotateCmd) Run(g *Globals) error {
	if err := standalone.RotateKeys(c.Data); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(g.out, "A new key seals from the next start on; what the old ones sealed can still be opened.")
	return nil
}

// DropCmd is [standalone.DropKeys].
type DropCmd struct {
	Data string `default:"data" placeholder:"DIR" help:"Data directory of the server (${default}), which must be stopped."`
}

// Run implements the command.
func (c *DropCmd) Run(ctx context.Context, g *Globals) error {
	dropped, err := standalone.DropKeys(ctx, c.Data)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(g.out, "Removed %d keys.\n", dropped)
	return nil
}

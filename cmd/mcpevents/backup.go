package main

import (
	"fmt"
	"io"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
)

// BackupCmd is [standalone.Backup].
type BackupCmd struct {
	File string `arg:"" help:"The file to write, such as mcpevents.tar.gz. It must not exist."`
	Data string `default:"data" env:"MCPEVENTS_DATA" placeholder:"DIR" help:"Data directory of the server (${default}), which may run."`
}

// RestoreCmd is [standalone.Restore].
type RestoreCmd struct {
	File string `arg:"" help:"The backup."`
	Data string `required:"" env:"MCPEVENTS_DATA" placeholder:"DIR" help:"Data directory to make. One that has data already is refused."`
}

// Help is the long help of the command.
func (c *BackupCmd) Help() string {
	return `The file has the database and the keys that open the webhook secrets in it: whoever can read it has them. It is made with mode 0600. Its directory needs room for the database besides. Run it as root or as the user of the server.`
}

// Run implements the command.
func (c *BackupCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	if err := standalone.Backup(ctx, c.Data, c.File, g.bar()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.out, "%s has all of %s, and its keys: keep it secret.\n", c.File, c.Data)
	return err
}

// Run implements the command.
func (c *RestoreCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	if err := standalone.Restore(ctx, c.File, c.Data, g.bar()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.out, "A server with --data %s goes on from there.\n", c.Data)
	return err
}

// bar is where progress is shown; nil without anybody who watches.
func (g *Globals) bar() io.Writer {
	if !isTerminal(g.err) {
		return nil
	}
	return g.err
}

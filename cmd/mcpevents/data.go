package main

import (
	"fmt"
	"io"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
)

type BackupCmd struct {
	File string `arg:"" help:"File to write, for example mcpevents.tar.gz. It must not exist."`
	Data string `default:"data" env:"MCPEVENTS_DATA" placeholder:"DIR" help:"Data directory of the server (${default}). The server may be running."`
}

type RestoreCmd struct {
	File string `arg:"" help:"The backup file."`
	Data string `required:"" env:"MCPEVENTS_DATA" placeholder:"DIR" help:"Data directory to create. It must not contain data."`
}

func (c *BackupCmd) Help() string {
	return `The file contains the database and the keys that open its webhook secrets. Anyone who can read the file can read the secrets. It is created with mode 0600. Its directory also needs temporary space for a copy of the database. Run the command as root or as the user of the server.

Example:
  mcpevents backup mcpevents.tar.gz --data /var/lib/mcpevents`
}

func (c *BackupCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	if err := standalone.Backup(ctx, c.Data, c.File, g.bar()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.out, "Backed up %s to %s. The file contains the keys of the server: keep it secret.\n", c.Data, c.File)
	return err
}

func (c *RestoreCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	if err := standalone.Restore(ctx, c.File, c.Data, g.bar()); err != nil {
		return err
	}
	_, err := fmt.Fprintf(g.out, "Restored %s. Start the server with --data %s.\n", c.File, c.Data)
	return err
}

// bar returns the writer to which commands draw progress bars, or nil if standard error is not a terminal.
func (g *Globals) bar() io.Writer {
	if !isTerminal(g.err) {
		return nil
	}
	return g.err
}

type KeysCmd struct {
	Rotate RotateCmd `cmd:"" help:"Create a new key for new webhook secrets. Old keys still open old secrets."`
	Drop   DropCmd   `cmd:"" help:"Remove the old keys that no stored webhook secret needs."`
}

type RotateCmd struct {
	Data string `default:"data" env:"MCPEVENTS_DATA" placeholder:"DIR" help:"Data directory of the server (${default}). Restart the server to use the new key."`
}

func (c *RotateCmd) Run(g *Globals) error {
	if err := standalone.RotateKeys(c.Data); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(g.out, "Created a new key. Restart the server to use it. Old secrets can still be opened.")
	return nil
}

type DropCmd struct {
	Data string `default:"data" env:"MCPEVENTS_DATA" placeholder:"DIR" help:"Data directory of the server (${default}). The server must be stopped."`
}

func (c *DropCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	old, err := standalone.DropKeys(ctx, c.Data)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(g.out, "Removed %s.%s\n", countKeys(old.Removed), explainKept(old))
	return nil
}

// explainKept returns a sentence that says why old sealing keys are kept, or that there were no old keys. If all old keys were removed,
// it returns an empty text.
func explainKept(old standalone.OldKeys) string {
	switch {
	case old.Kept > 0:
		return fmt.Sprintf(" Kept %s, because stored secrets still need them, for example those of waiting deliveries. Run this command again when the deliveries have ended.", countKeys(old.Kept))
	case old.Removed == 0:
		return " There is only the newest key."
	}
	return ""
}

func countKeys(n int) string {
	if n == 1 {
		return "1 old key"
	}
	return fmt.Sprintf("%d old keys", n)
}

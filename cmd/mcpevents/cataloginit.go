package main

import (
	"fmt"
	"path/filepath"

	"github.com/mcp-events/mcpevents/shared/events/source/ready"
)

// CatalogInitCmd writes ready-made sources and their event types.
type CatalogInitCmd struct {
	From  []string `required:"" xor:"what" placeholder:"NAME" help:"Providers, for example github,stripe."`
	List  bool     `required:"" xor:"what" help:"List the known providers and their event types, without writing files."`
	Dir   string   `default:"." placeholder:"DIR" help:"Directory for catalog.yaml and config.yaml (${default})."`
	Force bool     `help:"Replace existing files."`
}

// Help returns the long help of the command.
func (c *CatalogInitCmd) Help() string {
	return `Writes catalog.yaml with the event types of the providers, and config.yaml with the sources that turn the providers' webhooks into events. The comments in config.yaml say what to set at each provider, which environment variable holds its secret, and which URL the provider must call. Edit the files as you like.

Examples:
  mcpevents catalog init --list
  mcpevents catalog init --from github,stripe --dir my-server`
}

// Run implements the command.
func (c *CatalogInitCmd) Run(g *Globals) error {
	if c.List {
		return ready.List(g.out)
	}
	providers, err := ready.Select(c.From...)
	if err != nil {
		return err
	}
	if err := ready.Write(c.Dir, providers, c.Force); err != nil {
		return err
	}
	events, config := filepath.Join(c.Dir, ready.CatalogFile), filepath.Join(c.Dir, ready.ConfigFile)
	fmt.Fprintf(g.out, "Wrote %s and %s. The comments in %s say what to set at each provider.\nThen run: mcpevents serve --catalog %s --config %s\n",
		events, config, config, events, config)
	return nil
}

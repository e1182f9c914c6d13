package main

import (
	"fmt"
	"path/filepath"

	"github.com/mcp-events/mcpevents/shared/events/source/ready"
)

// CatalogInitCmd writes ready-made sources and their event types.
type CatalogInitCmd struct {
	From  []string `required:"" xor:"what" placeholder:"NAME" help:"Providers, such as github,stripe."`
	List  bool     `required:"" xor:"what" help:"List the providers that there are and their event types, and write nothing."`
	Dir   string   `default:"." placeholder:"DIR" help:"Folder of the files catalog.yaml and config.yaml (${default})."`
	Force bool     `help:"Replace files that are there already."`
}

// Help is the long help of the command.
func (c *CatalogInitCmd) Help() string {
	return `Writes catalog.yaml with the event types of the providers and config.yaml with the sources that make them of what the providers send. Comments in config.yaml say what to set at each provider, which environment variable holds its secret, and which URL to give it. What is not wanted can be deleted: from then on the files are yours.`
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
	fmt.Fprintf(g.out, "%s and %s are written. The comments in %s say what to set at each provider.\nThen: mcpevents serve --catalog %s --config %s\n",
		events, config, config, events, config)
	return nil
}

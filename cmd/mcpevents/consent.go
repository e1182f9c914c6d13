package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// ConsentCmd holds the commands for consent.
type ConsentCmd struct {
	List   ConsentListCmd   `cmd:"" help:"List the providers, what each gets, and whether it has consent."`
	Give   ConsentGiveCmd   `cmd:"" help:"Allow a provider to get what is said in conversations."`
	Revoke ConsentRevokeCmd `cmd:"" help:"Revoke consent. The provider gets nothing from then on."`
}

// consentFlags are those of every command for consent.
type consentFlags struct {
	Remote
	Principal string `placeholder:"NAME" help:"Act for this principal of the workspace; the key needs the scope consent:manage. By default the principal of the key."`
}

// ConsentListCmd lists providers.
type ConsentListCmd struct{ consentFlags }

// consentChange are the flags of the commands that change consent, and its argument.
type consentChange struct {
	consentFlags
	Provider string `arg:"" help:"Name of the provider, as consent list shows it."`
}

// ConsentGiveCmd gives consent.
type ConsentGiveCmd struct{ consentChange }

// ConsentRevokeCmd revokes it.
type ConsentRevokeCmd struct{ consentChange }

// Run implements the command.
func (c *ConsentListCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	providers, err := c.server().Providers(ctx, c.Principal)
	if err != nil {
		return err
	}
	if len(providers) == 0 {
		fmt.Fprintln(g.out, "No provider asks for what is said in conversations.")
		return nil
	}
	return printProviders(g.out, providers...)
}

// Run implements the command.
func (c *ConsentGiveCmd) Run(g *Globals) error { return c.change(g, true) }

// Run implements the command.
func (c *ConsentRevokeCmd) Run(g *Globals) error { return c.change(g, false) }

func (c *consentChange) change(g *Globals, give bool) error {
	ctx, stop := interruptible()
	defer stop()
	p, err := c.server().Consent(ctx, c.Provider, c.Principal, give)
	if err != nil {
		return err
	}
	return printProviders(g.out, p)
}

func printProviders(out io.Writer, providers ...client.Provider) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range providers {
		about := p.Title
		if p.Description != "" {
			about = strings.TrimPrefix(about+": "+p.Description, ": ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Name, strings.Join(p.Receives, ", "), p.State(), about)
	}
	return fault.Wrap(fault.Internal, w.Flush(), "print")
}

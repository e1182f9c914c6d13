package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// ConsentCmd holds the commands for consent.
type ConsentCmd struct {
	List   ConsentListCmd   `cmd:"" help:"List the providers, what each gets, and whether it has consent."`
	Give   ConsentGiveCmd   `cmd:"" help:"Consent that a provider gets what is said in conversations."`
	Revoke ConsentRevokeCmd `cmd:"" help:"Revoke consent. The provider gets nothing from then on."`
}

// consentFlags are those of every command for consent.
type consentFlags struct {
	Remote
	Principal string `placeholder:"NAME" help:"For this principal of the workspace, which needs the scope consent:manage; without it, for the one whose key it is."`
}

// ConsentListCmd lists providers.
type ConsentListCmd struct {
	consentFlags
}

// ConsentGiveCmd gives consent.
type ConsentGiveCmd struct {
	consentFlags
	Provider string `arg:"" help:"Name of the provider, as consent list shows it."`
}

// ConsentRevokeCmd revokes it.
type ConsentRevokeCmd struct {
	consentFlags
	Provider string `arg:"" help:"Name of the provider."`
}

// Run implements the command.
func (c *ConsentListCmd) Run(g *Globals) error {
	var list struct {
		Providers []conversation.View `json:"providers"`
	}
	if err := c.ask(http.MethodGet, "", &list); err != nil {
		return err
	}
	if len(list.Providers) == 0 {
		fmt.Fprintln(g.out, "Nobody asks for what is said in conversations.")
		return nil
	}
	w := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
	for _, v := range list.Providers {
		printConsent(w, v)
	}
	return fault.Wrap(fault.Internal, w.Flush(), "print")
}

// Run implements the command.
func (c *ConsentGiveCmd) Run(g *Globals) error {
	return c.change(g, http.MethodPut, c.Provider)
}

// Run implements the command.
func (c *ConsentRevokeCmd) Run(g *Globals) error {
	return c.change(g, http.MethodDelete, c.Provider)
}

func (c *consentFlags) change(g *Globals, method, provider string) error {
	var v conversation.View
	if err := c.ask(method, provider, &v); err != nil {
		return err
	}
	w := tabwriter.NewWriter(g.out, 0, 0, 2, ' ', 0)
	printConsent(w, v)
	return fault.Wrap(fault.Internal, w.Flush(), "print")
}

// ask makes a request and decodes its answer.
func (c *consentFlags) ask(method, provider string, out any) error {
	at, err := c.url(provider)
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	resp, body, err := c.server().Do(ctx, method, at, nil, nil)
	switch {
	case interrupted(err):
		return context.Canceled
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return client.Refusal(resp, body)
	case json.Unmarshal(body, out) != nil:
		return fault.New(fault.Unavailable, "the server's response cannot be read")
	}
	return nil
}

// url is that of consent, beside /mcp.
func (c *consentFlags) url(provider string) (string, error) {
	text, err := c.server().Endpoint("/mcp")
	if err != nil {
		return "", err
	}
	u, _ := url.Parse(text) // it was just made
	u = u.JoinPath("..", "consent", provider)
	if c.Principal != "" {
		u.RawQuery = url.Values{"principal": {c.Principal}}.Encode()
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

func printConsent(w io.Writer, v conversation.View) {
	state := "no consent"
	switch {
	case v.Consent == nil:
	case v.Consented:
		state = "consent"
	case v.Consent.Given:
		state = "no consent to what it is now"
	default:
		state = "revoked"
	}
	if v.Consent != nil {
		state += fmt.Sprintf(", %s by %s", v.Consent.At.Format(time.RFC3339), v.Consent.By)
	}
	gets := make([]string, len(v.Receives))
	for i, k := range v.Receives {
		gets[i] = string(k)
	}
	about := v.Title
	if v.Description != "" {
		about = strings.TrimPrefix(about+": "+v.Description, ": ")
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", v.Name, strings.Join(gets, ", "), state, about)
}

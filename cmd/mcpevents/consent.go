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

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

type ConsentCmd struct {
	List   ConsentListCmd   `cmd:"" help:"List the providers, the messages that each receives, and whether it has consent."`
	Give   ConsentGiveCmd   `cmd:"" help:"Allow a provider to receive conversation messages."`
	Revoke ConsentRevokeCmd `cmd:"" help:"Revoke consent. From then on the provider receives no messages."`
}

type consentFlags struct {
	Remote
	Principal string `placeholder:"NAME" help:"Act for this principal of the workspace. The key then needs the scope consent:manage. Default: the principal of the key."`
}

type ConsentListCmd struct{ consentFlags }

type consentChange struct {
	consentFlags
	Provider string `arg:"" help:"Name of the provider, as consent list shows it."`
}

type ConsentGiveCmd struct{ consentChange }

type ConsentRevokeCmd struct{ consentChange }

func (c *ConsentListCmd) Run(g *Globals) error {
	ctx, stop := interruptible()
	defer stop()
	var list struct {
		Providers []provider `json:"providers"`
	}
	if err := c.request(ctx, http.MethodGet, "", &list); err != nil {
		return err
	}
	if len(list.Providers) == 0 {
		fmt.Fprintln(g.out, "No provider receives conversation messages.")
		return nil
	}
	return printProviders(g.out, list.Providers...)
}

func (c *ConsentGiveCmd) Run(g *Globals) error { return c.change(g, true) }

func (c *ConsentRevokeCmd) Run(g *Globals) error { return c.change(g, false) }

func (c *consentChange) change(g *Globals, give bool) error {
	ctx, stop := interruptible()
	defer stop()
	method := http.MethodDelete
	if give {
		method = http.MethodPut
	}
	var p provider
	if err := c.request(ctx, method, c.Provider, &p); err != nil {
		return err
	}
	return printProviders(g.out, p)
}

func printProviders(out io.Writer, providers ...provider) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range providers {
		about := p.Title
		if p.Description != "" {
			about = strings.TrimPrefix(about+": "+p.Description, ": ")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", p.Name, strings.Join(p.Receives, ", "), p.state(), about)
	}
	return fault.Wrap(fault.Internal, w.Flush(), "print")
}

type provider struct {
	Name        string   `json:"name"`
	Title       string   `json:"title,omitempty"`
	Description string   `json:"description,omitempty"`
	Receives    []string `json:"receives"`
	// Consented is true if the principal's latest decision is a consent. The consent must cover the provider's current destination, and
	// all kinds of messages that the field Receives lists.
	Consented bool      `json:"consented"`
	Consent   *decision `json:"consent"`
}

func (p provider) state() string {
	state := "revoked"
	switch {
	case p.Consent == nil:
		return "no consent"
	case p.Consented:
		state = "consent"
	case p.Consent.Given:
		state = "no consent since the provider changed"
	}
	return fmt.Sprintf("%s, %s by %s", state, p.Consent.At.Format(time.RFC3339), p.Consent.By)
}

type decision struct {
	Given bool      `json:"given"`
	At    time.Time `json:"at"`
	By    string    `json:"by"`
}

// request sends a request to the server's API for consents. An empty provider means all providers.
func (c *consentFlags) request(ctx context.Context, method, provider string, out any) error {
	s := c.server()
	at, err := consentURL(s, provider, c.Principal)
	if err != nil {
		return err
	}
	resp, body, err := s.Do(ctx, method, at, nil, nil)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return httpcall.ReadRefusal(resp, body)
	case json.Unmarshal(body, out) != nil:
		return httpcall.UnexpectedAnswer(resp, fault.Unavailable)
	}
	return nil
}

// consentURL returns the URL for the consents of a principal, such as https://events.example.com/consent/PROVIDER.
func consentURL(s httpcall.Server, provider, principal string) (string, error) {
	if provider == "." || provider == ".." { // in a URL, these are steps in a path
		return "", fault.New(fault.Invalid, "%q is not the name of a provider", provider)
	}
	text, err := s.Endpoint("/mcp")
	if err != nil {
		return "", err
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "parse the endpoint's URL")
	}
	u = u.JoinPath("..", "consent", url.PathEscape(provider)) // escaped, so that a name cannot lead to another path
	if principal != "" {
		u.RawQuery = url.Values{"principal": {principal}}.Encode()
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

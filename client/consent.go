package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Provider is one that gets what is said in conversations, as those see it who are to consent.
type Provider struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	// Receives are the kinds of messages that it gets, with consent.
	Receives []string `json:"receives"`
	// Consented is true when it gets all of Receives.
	Consented bool `json:"consented"`
	// Consent is what was said last; nil when nothing was.
	Consent *Consent `json:"consent"`
}

// State says in words whether the provider has consent, since when, and by whom.
func (p Provider) State() string {
	state := "revoked"
	switch {
	case p.Consent == nil:
		return "no consent"
	case p.Consented:
		state = "consent"
	case p.Consent.Given:
		state = "no consent to what it is now"
	}
	return fmt.Sprintf("%s, %s by %s", state, p.Consent.At.Format(time.RFC3339), p.Consent.By)
}

// Consent was given or revoked.
type Consent struct {
	Given bool      `json:"given"`
	At    time.Time `json:"at"`
	By    string    `json:"by"`
}

// Providers lists the providers that a principal may use, with its consents. An empty principal is
// the caller; another one needs the scope consent:manage.
func (s Server) Providers(ctx context.Context, principal string) ([]Provider, error) {
	var list struct {
		Providers []Provider `json:"providers"`
	}
	err := s.consent(ctx, http.MethodGet, "", principal, &list)
	return list.Providers, err
}

// Consent gives a principal's consent to a provider, or revokes it; the principal is as in
// [Server.Providers].
func (s Server) Consent(ctx context.Context, provider, principal string, give bool) (Provider, error) {
	method := http.MethodDelete
	if give {
		method = http.MethodPut
	}
	var p Provider
	err := s.consent(ctx, method, provider, principal, &p)
	return p, err
}

func (s Server) consent(ctx context.Context, method, provider, principal string, out any) error {
	at, err := s.consentURL(provider, principal)
	if err != nil {
		return err
	}
	resp, body, err := s.Do(ctx, method, at, nil, nil)
	switch {
	case err != nil:
		return err
	case resp.StatusCode != http.StatusOK:
		return Refusal(resp, body)
	case json.Unmarshal(body, out) != nil:
		return Strange(resp, fault.Unavailable)
	}
	return nil
}

// consentURL is beside /mcp.
func (s Server) consentURL(provider, principal string) (string, error) {
	text, err := s.Endpoint("/mcp")
	if err != nil {
		return "", err
	}
	u, err := url.Parse(text)
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "parse the endpoint's URL")
	}
	u = u.JoinPath("..", "consent", provider)
	if principal != "" {
		u.RawQuery = url.Values{"principal": {principal}}.Encode()
	}
	return strings.TrimSuffix(u.String(), "/"), nil
}

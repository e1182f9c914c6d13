package client

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Options say how [Connect] reaches a server, and what its subscriptions share. The zero value is for a server that
// asks for no credentials, and keeps cursors for as long as the program runs.
type Options struct {
	// Key is sent as Authorization: Bearer; empty sends none.
	Key string
	// HTTP sends the requests, with what it has of proxies, certificates and tokens that change, such as an
	// oauth2.Transport. Its Timeout bounds requests, not streams. Nil is a client with a minute for a request.
	HTTP *http.Client
	// Agent names the program, as NAME/VERSION, to the server.
	Agent string
	// Store keeps cursors; nil keeps them in memory.
	Store Store
	// Webhooks receives webhooks; nil is for a program that no server can reach.
	Webhooks *Handler
	// MinPoll is the shortest time between two polls, whatever the server asks for; 0 is a second.
	MinPoll time.Duration
	// Log gets a line for what is tried again, and for what a server reports; nil discards it.
	Log *slog.Logger
}

// Connect makes a client of the MCP endpoint at url, in the newest revision that both know: 2026-07-28, which has no
// sessions, or else a session of an earlier one, which [Client.End] ends. A server that does not answer is asked
// again, five times. The error's kind is that of package fault, such as fault.Unauthenticated.
func Connect(ctx context.Context, url string, o Options) (*Client, error) {
	c, err := New(Server{URL: url, Key: o.Key, Agent: o.Agent, HTTP: o.HTTP}, spec.V20260728)
	if err != nil {
		return nil, err
	}
	c.Log, c.Store, c.Webhooks, c.MinPoll = o.Log, o.Store, o.Webhooks, o.MinPoll
	var discovered struct {
		Versions []spec.Version `json:"supportedVersions"`
	}
	err = c.persist(ctx, func() error { return c.Call(ctx, spec.MethodDiscover, nil, &discovered) })
	switch {
	case err == nil && slices.Contains(discovered.Versions, spec.V20260728):
		return c, nil
	case ctx.Err() != nil, Again(err), fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Forbidden):
		return nil, err
	}
	for _, c.version = range spec.Versions[1:] {
		failed := c.persist(ctx, func() error { return c.Begin(ctx) })
		if failed == nil {
			return c, nil
		}
		err = errors.Join(err, failed)
	}
	return nil, err
}

// EventType is what a server says of an event type (SEP-3415, "Listing Available Events").
type EventType struct {
	Name        string `json:"name"`
	Description string `json:"description"`
	// Delivery are the modes in which this caller can have it.
	Delivery []string `json:"delivery"`
	// InputSchema is that of the arguments, PayloadSchema that of [Event.Data].
	InputSchema   json.RawMessage `json:"inputSchema"`
	PayloadSchema json.RawMessage `json:"payloadSchema"`
}

// maxPages bounds a list, should a server's cursors go in a circle.
const maxPages = 1000

// EventTypes lists the event types that the caller may have.
func (c *Client) EventTypes(ctx context.Context) (types []EventType, err error) {
	params := map[string]any{}
	for range maxPages {
		var page struct {
			Events []EventType `json:"events"`
			Next   string      `json:"nextCursor"`
		}
		if err := c.persist(ctx, func() error { return c.Call(ctx, spec.MethodEvents, params, &page) }); err != nil {
			return nil, err
		}
		types = append(types, page.Events...)
		if page.Next == "" {
			return types, nil
		}
		params = map[string]any{"cursor": page.Next}
	}
	return nil, fault.New(fault.Unavailable, "the server's list of event types has more than %d pages", maxPages)
}

// best chooses the mode of a subscription: a webhook, which costs a connection only when there is an event; else a
// stream, which brings it at once; else polls.
func (c *Client) best(ctx context.Context, name string) (string, error) {
	types, err := c.EventTypes(ctx)
	if err != nil {
		return "", err
	}
	at := slices.IndexFunc(types, func(t EventType) bool { return t.Name == name })
	if at < 0 {
		return "", fault.New(fault.NotFound, "unknown event type %q: the server does not list it for this caller", name)
	}
	for _, mode := range []string{ModeWebhook, ModePush, ModePoll} {
		if slices.Contains(types[at].Delivery, mode) && c.can(mode) == nil {
			return mode, nil
		}
	}
	return "", fault.New(fault.Unsupported, "%s is delivered by %v, of which this client can use none", name, types[at].Delivery)
}

// can reports why a mode is none for this client, whatever the server offers.
func (c *Client) can(mode string) error {
	switch {
	case mode == ModePoll, mode == ModePush && c.stateless(), mode == ModeWebhook && c.Webhooks != nil:
		return nil
	case mode == ModePush:
		return fault.New(fault.Unsupported, "mode push is for revision 2026-07-28, and this server speaks %s", c.version)
	case mode == ModeWebhook:
		return fault.New(fault.Invalid, "mode webhook needs a handler of webhooks that the server can reach")
	}
	return fault.New(fault.Invalid, "%q is no mode (allowed: webhook, push, poll)", mode)
}

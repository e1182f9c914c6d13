package mcp

import (
	"context"
	"encoding/json"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// fakeGateway has one backend "b", which everyone may see and which serves the resources in listed. It records the
// subscriptions at the backend.
type fakeGateway struct {
	api.Gateway
	mu     sync.Mutex
	listed map[string]bool
	wanted map[string]time.Time // until when, by "uri holder"
	calls  []string             // that reached it, see reached
}

func newFakeGateway(uris ...string) *fakeGateway {
	g := &fakeGateway{wanted: map[string]time.Time{}}
	g.list(uris...)
	return g
}

// list changes the resources that the backend lists.
func (g *fakeGateway) list(uris ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.listed = map[string]bool{}
	for _, uri := range uris {
		g.listed[uri] = true
	}
}

// subscribed returns the subscriptions at the backend, by "uri holder".
func (g *fakeGateway) subscribed() map[string]time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.wanted)
}

func (g *fakeGateway) Any(context.Context) bool { return true }

func (g *fakeGateway) Backends(context.Context, auth.Principal) []string { return []string{"b"} }

func (g *fakeGateway) Capabilities(context.Context, api.Client) api.Capabilities {
	return api.Capabilities{Resources: true, Subscribe: true}
}

func (g *fakeGateway) End(ctx context.Context, _ api.Client) error { return g.reached(ctx, "End") }

func (g *fakeGateway) Cancel(ctx context.Context, _ api.Client, _ json.RawMessage) error {
	return g.reached(ctx, "Cancel")
}

func (g *fakeGateway) Answer(ctx context.Context, _ api.Client, _ string, _ json.RawMessage) error {
	return g.reached(ctx, "Answer")
}

func (g *fakeGateway) Progress(ctx context.Context, _ api.Client, _ json.RawMessage) error {
	return g.reached(ctx, "Progress")
}

// reached records that a request reached the gateway with a context that has not ended.
func (g *fakeGateway) reached(ctx context.Context, method string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if ctx.Err() == nil {
		g.calls = append(g.calls, method)
	}
	return ctx.Err()
}

func (g *fakeGateway) Subscribable(_ context.Context, _ auth.Principal, uri string) (string, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.listed[uri] {
		return "", false
	}
	return "b", true
}

func (g *fakeGateway) Subscribe(_ context.Context, s api.Subscription) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.wanted[s.URI+" "+s.Holder] = s.Until
	return nil
}

func (g *fakeGateway) Unsubscribe(_ context.Context, s api.Subscription) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.wanted, s.URI+" "+s.Holder)
	return nil
}

// notifyBackend writes to the log that backend b sent a notification.
func (f *fixture) notifyBackend(t testing.TB, method, params string) {
	t.Helper()
	notice, err := json.Marshal(api.Notice{Method: method, Params: json.RawMessage(params)})
	must(t, err)
	must(t, f.log.Notify(t.Context(), f.principal(alice).Workspace, stream.TopicBackend("b"), notice))
}

// forget removes the record of a subscription, to see whether it is written again.
func (g *fakeGateway) forget(at string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.wanted, at)
}

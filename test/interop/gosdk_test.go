//go:build unix

package interop

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// goClient is the official Go SDK's client, unmodified.
type goClient struct {
	*steps
	session *sdk.ClientSession

	mu      sync.Mutex
	cursors map[string]string // by URI: the last one that came
}

// goSDK connects the client at a revision.
func goSDK(t *testing.T, w *harness.Wire, version string) driver {
	t.Helper()
	c := &goClient{steps: newSteps(), cursors: map[string]string{}}
	capabilities := &sdk.ClientCapabilities{}
	capabilities.AddExtension(harness.Extension, nil)
	client := sdk.NewClient(&sdk.Implementation{Name: "go", Version: "1"}, &sdk.ClientOptions{
		Capabilities: capabilities,
		ResourceUpdatedHandler: func(_ context.Context, req *sdk.ResourceUpdatedNotificationRequest) {
			p := req.Params
			payload, _ := p.Meta[harness.Prefix+"payload"].(map[string]any)
			c.mu.Lock()
			c.cursors[p.URI], _ = p.Meta[harness.Prefix+"cursor"].(string)
			c.mu.Unlock()
			c.of("updated") <- step{URI: p.URI, Meta: p.Meta, Payload: payload}
		},
	})
	client.AddSendingMiddleware(c.withCursor)
	client.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			if method == "notifications/subscriptions/acknowledged" {
				c.of("acknowledged") <- step{}
			}
			return next(ctx, method, req)
		}
	})
	c.session = w.ConnectSDK(t, client, "alice", version)
	return c
}

// withCursor adds to a listen where it is to begin: Subscribe sends no _meta of its caller.
func (c *goClient) withCursor(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		if p, ok := req.GetParams().(*sdk.SubscriptionsListenParams); ok && method == "subscriptions/listen" {
			c.mu.Lock()
			cursor := c.cursors[p.Notifications.ResourceSubscriptions[0]]
			c.mu.Unlock()
			if cursor != "" {
				p.Meta[harness.Prefix+"cursor"] = cursor
			}
		}
		return next(ctx, method, req)
	}
}

func (c *goClient) do(t *testing.T, command object, result any) {
	t.Helper()
	uri, _ := command["uri"].(string)
	v, err := c.carryOut(t, command["do"].(string), uri)
	expect.OK(t, err, command["do"])
	if result == nil {
		return
	}
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, result)
	}
	expect.OK(t, err, command["do"])
}

func (c *goClient) carryOut(t *testing.T, do, uri string) (any, error) {
	ctx := t.Context()
	switch do {
	case "resources":
		var uris []string
		for r, err := range c.session.Resources(ctx, nil) {
			if err != nil {
				return nil, err
			}
			uris = append(uris, r.URI)
		}
		return uris, nil
	case "templates":
		var uris []string
		for r, err := range c.session.ResourceTemplates(ctx, nil) {
			if err != nil {
				return nil, err
			}
			uris = append(uris, r.URITemplate)
		}
		return uris, nil
	case "read":
		r, err := c.session.ReadResource(ctx, &sdk.ReadResourceParams{URI: uri})
		if err != nil {
			return nil, err
		}
		return json.RawMessage(r.Contents[0].Text), nil
	case "resume":
		// The session believes that it is subscribed until it unsubscribes.
		if err := c.session.Unsubscribe(ctx, &sdk.UnsubscribeParams{URI: uri}); err != nil {
			return nil, err
		}
		fallthrough
	case "subscribe":
		err := c.session.Subscribe(ctx, &sdk.SubscribeParams{URI: uri})
		if err == nil && c.session.InitializeResult().ProtocolVersion == harness.V20260728 {
			c.next(t, "acknowledged") // Subscribe does not wait for it
		}
		return nil, err
	case "unsubscribe":
		return nil, c.session.Unsubscribe(ctx, &sdk.UnsubscribeParams{URI: uri})
	default:
		return nil, c.session.Close()
	}
}

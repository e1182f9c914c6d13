//go:build unix

package harness

import (
	"context"
	"net/http"
	"sync"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// SDKClient is a session of the official Go SDK's client, with the messages that its handlers received.
type SDKClient struct {
	*sdk.ClientSession

	mu      sync.Mutex
	updates []*Update
	acks    int
}

// SDKOptions choose what the client declares.
type SDKOptions struct {
	// Extended declares our extension in the client's capabilities.
	Extended bool
	// ListChanged sets a handler for resources/list_changed.
	ListChanged bool
}

// SDK connects the official client as the principal at a revision.
func (t *Target) SDK(tb testing.TB, principal, version string, o SDKOptions) *SDKClient {
	tb.Helper()
	c := &SDKClient{}
	opts := &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{},
		ResourceUpdatedHandler: func(_ context.Context, req *sdk.ResourceUpdatedNotificationRequest) {
			u := &Update{URI: req.Params.URI, Meta: req.Params.Meta}
			u.EventID, _ = u.Meta[Prefix+"eventId"].(string)
			u.Time, _ = u.Meta[Prefix+"time"].(string)
			u.Cursor, _ = u.Meta[Prefix+"cursor"].(string)
			c.mu.Lock()
			defer c.mu.Unlock()
			c.updates = append(c.updates, u)
		},
	}
	if o.Extended {
		opts.Capabilities.AddExtension(Extension, nil)
	}
	if o.ListChanged {
		opts.ResourceListChangedHandler = func(context.Context, *sdk.ResourceListChangedRequest) {}
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "harness", Version: "1"}, opts)
	client.AddReceivingMiddleware(func(next sdk.MethodHandler) sdk.MethodHandler {
		return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
			res, err := next(ctx, method, req)
			if method == "notifications/subscriptions/acknowledged" {
				c.mu.Lock()
				c.acks++
				c.mu.Unlock()
			}
			return res, err
		}
	})
	c.ClientSession = t.ConnectSDK(tb, client, principal, version)
	return c
}

// ConnectSDK connects a client of the Go SDK as the principal at a revision, until the end of the test.
func (t *Target) ConnectSDK(tb testing.TB, client *sdk.Client, principal, version string) *sdk.ClientSession {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	session, err := client.Connect(ctx, &sdk.StreamableClientTransport{
		Endpoint:   t.MCP,
		HTTPClient: &http.Client{Transport: Bearer{t.Keys[principal], &http.Transport{MaxIdleConnsPerHost: 16}}},
	}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		tb.Fatalf("the Go SDK's client does not connect at %s: %v", version, err)
	}
	if got := session.InitializeResult().ProtocolVersion; got != version {
		tb.Fatalf("the Go SDK's client speaks %s, want %s", got, version)
	}
	tb.Cleanup(func() { session.Close() })
	return session
}

// Follow subscribes to URIs and waits until each subscription holds.
func (c *SDKClient) Follow(tb testing.TB, uris ...string) {
	tb.Helper()
	stateless := c.InitializeResult().ProtocolVersion >= V20260728
	for _, uri := range uris {
		before := c.acknowledged()
		if err := c.Subscribe(tb.Context(), &sdk.SubscribeParams{URI: uri}); err != nil {
			tb.Fatalf("the Go SDK's client subscribes to %s: %v", uri, err)
		}
		if stateless {
			// Subscribe opens a listen and does not wait for it.
			Eventually(tb, Patience, "acknowledgment of "+uri, func() bool { return c.acknowledged() > before })
		}
	}
}

func (c *SDKClient) acknowledged() int { return read(&c.mu, &c.acks) }

// Updates returns the resource updates that reached the client's handler.
func (c *SDKClient) Updates() []*Update {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]*Update(nil), c.updates...)
}

// Bearer adds a key to each request, as an application's OAuth layer would.
type Bearer struct {
	Key  string
	Next http.RoundTripper // nil is the default transport
}

func (b Bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.Key != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+b.Key)
	}
	if b.Next == nil {
		b.Next = http.DefaultTransport
	}
	return b.Next.RoundTrip(req)
}

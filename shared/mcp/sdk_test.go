package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// bearer adds a key to every request.
type bearer struct {
	key  string
	next http.RoundTripper
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.key)
	return b.next.RoundTrip(r)
}

// connect connects the official Go client, unmodified, at a revision.
func (f *fixture) connect(key, version string, options *sdk.ClientOptions) *sdk.ClientSession {
	f.t.Helper()
	transport := http.DefaultTransport.(*http.Transport).Clone()
	f.t.Cleanup(transport.CloseIdleConnections)
	client := sdk.NewClient(&sdk.Implementation{Name: "judge", Version: "1"}, options)
	s, err := client.Connect(f.t.Context(), &sdk.StreamableClientTransport{
		Endpoint: f.server.URL + "/mcp", HTTPClient: &http.Client{Transport: bearer{key, transport}},
	}, &sdk.ClientSessionOptions{ProtocolVersion: version})
	must(f.t, err)
	f.t.Cleanup(func() { s.Close() })
	if got := s.InitializeResult().ProtocolVersion; got != version {
		f.t.Fatalf("the client speaks %s, want %s", got, version)
	}
	return s
}

// TestGoSDK judges the endpoint by the official Go client, which knows nothing
// of events (EVS-15).
func TestGoSDK(t *testing.T) {
	for _, v := range []mcpspec.Version{mcpspec.V20250326, mcpspec.V20250618, mcpspec.V20251125, mcpspec.V20260728} {
		t.Run("EVS-15_SES-06_at_"+string(v), func(t *testing.T) {
			f := newFixture(t, nil)
			updates, changes := make(chan *sdk.ResourceUpdatedNotificationParams, 20), make(chan struct{}, 20)
			options := &sdk.ClientOptions{
				Capabilities: &sdk.ClientCapabilities{},
				ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) {
					updates <- r.Params
				},
				ResourceListChangedHandler: func(context.Context, *sdk.ResourceListChangedRequest) { changes <- struct{}{} },
			}
			options.Capabilities.AddExtension(Extension, nil)
			client := f.connect(alice, string(v), options)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()

			if err := client.Ping(ctx, nil); v.Stateless() != (err != nil) {
				t.Errorf("ping: %v", err)
			}
			if r := client.InitializeResult(); r.Capabilities.Resources == nil || !r.Capabilities.Resources.Subscribe || !r.Capabilities.Resources.ListChanged ||
				r.ServerInfo.Name != "mcp-events" || r.Capabilities.Tools != nil {
				t.Errorf("got %+v", r)
			}
			list, err := client.ListResources(ctx, nil)
			must(t, err)
			if len(list.Resources) != 4 || list.Resources[0].URI != "event://ci/build-finished" || list.Resources[0].Meta["eventSchema"] == nil {
				t.Errorf("resources: %+v", list.Resources)
			}
			templates, err := client.ListResourceTemplates(ctx, nil)
			must(t, err)
			if len(templates.ResourceTemplates) != 2 || templates.ResourceTemplates[0].Meta["paramsSchema"] == nil {
				t.Errorf("templates: %+v", templates.ResourceTemplates)
			}
			if _, err := client.ListTools(ctx, nil); err == nil {
				t.Error("tools are not served")
			}
			if _, err := client.ReadResource(ctx, &sdk.ReadResourceParams{URI: "event://no/such"}); err == nil || !strings.Contains(err.Error(), "resource not found") {
				t.Errorf("read: %v", err)
			}

			before := f.tails.Running()
			for _, uri := range []string{"event://ci/build-finished", "event://github/acme"} {
				must(t, client.Subscribe(ctx, &sdk.SubscribeParams{URI: uri}))
			}
			if v.Stateless() { // Subscribe does not wait for the acknowledgment
				f.waitFor("listens", func() bool { return f.endpoint.OpenStreams() == 3 && f.tails.Running() >= before+9 })
			}
			f.publish("event://ci/build-finished", `{"status":"ok"}`)
			f.publish("event://github/acme/web/push", `{"n":9007199254740993}`)
			f.publish("event://ci/deploy", `{}`)
			got := map[string]*sdk.ResourceUpdatedNotificationParams{}
			for range 2 {
				select {
				case u := <-updates:
					got[u.URI] = u
				case <-ctx.Done():
					t.Fatalf("got %v", got)
				}
			}
			u := got["event://ci/build-finished"]
			if u == nil || got["event://github/acme/web/push"] == nil || u.Meta[MetaEventID] == nil || u.Meta[MetaCursor] == nil {
				t.Fatalf("got %v", got)
			}
			if payload, _ := json.Marshal(u.Meta[MetaPayload]); string(payload) != `{"status":"ok"}` {
				t.Errorf("payload %s", payload)
			}
			read, err := client.ReadResource(ctx, &sdk.ReadResourceParams{URI: "event://ci/build-finished"})
			must(t, err)
			if len(read.Contents) != 1 || !strings.Contains(read.Contents[0].Text, `"status":"ok"`) {
				t.Errorf("read: %+v", read.Contents)
			}
			done, err := client.Complete(ctx, &sdk.CompleteParams{
				Ref:      &sdk.CompleteReference{Type: "ref/resource", URI: "event://github/{owner}/{repo}/push"},
				Argument: sdk.CompleteParamsArgument{Name: "repo", Value: "w"},
				Context:  &sdk.CompleteContext{Arguments: map[string]string{"owner": "acme"}},
			})
			must(t, err)
			if c := done.Completion; len(c.Values) != 1 || c.Values[0] != "web" || c.Total != 1 || c.HasMore {
				t.Errorf("SES-05: completed with %+v", c)
			}
			f.registerOne(alice, "event://ci/deploy", "https://a.example/")
			select {
			case <-changes:
			case <-ctx.Done():
				t.Error("no list_changed")
			}
			must(t, client.Unsubscribe(ctx, &sdk.UnsubscribeParams{URI: "event://ci/build-finished"}))
			must(t, client.Close())
			f.waitFor("the streams' end", func() bool { return f.endpoint.OpenStreams() == 0 })
		})
	}
}

func TestGoSDKResumes(t *testing.T) {
	t.Run("SES-03_SES-06_the_client_comes_back_with_Last-Event-ID", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.MaxAge = 300 * time.Millisecond })
		updates := make(chan string, 200)
		client := f.connect(alice, "2025-11-25", &sdk.ClientOptions{
			ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) {
				id, _ := r.Params.Meta[MetaEventID].(string)
				updates <- id
			},
		})
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		must(t, client.Subscribe(ctx, &sdk.SubscribeParams{URI: "event://ci/deploy"}))
		// The server closes the stream every 300 ms, and asks to come back after a
		// second; nothing that is published meanwhile may be missing.
		const n = 60
		want := map[string]bool{}
		tick := time.NewTicker(40 * time.Millisecond)
		defer tick.Stop()
		for range n {
			want[f.publish("event://ci/deploy", `{}`).ID] = true
			<-tick.C
		}
		for range n {
			select {
			case id := <-updates:
				if !want[id] {
					t.Errorf("unknown or twice: %s", id)
				}
				delete(want, id)
			case <-ctx.Done():
				t.Fatalf("%d of %d are missing", len(want), n)
			}
		}
	})
}

// TestGoSDKUsesEventTools judges the tools for events by the official client, and their results by the schemas that they
// name.
func TestGoSDKUsesEventTools(t *testing.T) {
	for _, v := range mcpspec.Versions {
		t.Run("RCH-04 at "+string(v), func(t *testing.T) {
			f := newFixture(t, withEventTools)
			client := f.connect(alice, string(v), nil)
			schemas := map[string]*jsonschema.Schema{}
			for tool, err := range client.Tools(t.Context(), nil) {
				must(t, err)
				c := jsonschema.NewCompiler()
				must(t, c.AddResource("memory:///output", tool.OutputSchema))
				schema, err := c.Compile("memory:///output")
				must(t, err)
				schemas[tool.Name] = schema
			}
			call := func(name string, arguments map[string]any) map[string]any {
				t.Helper()
				got, err := client.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: arguments})
				must(t, err)
				if got.IsError || schemas[name] == nil {
					t.Fatalf("%s: %+v", name, got.Content[0])
				}
				must(t, schemas[name].Validate(got.StructuredContent))
				return got.StructuredContent.(map[string]any)
			}
			call(toolTypes, nil)
			sub := call(toolSubscribe, map[string]any{"name": "ci.deploy"})
			for range 21 {
				f.publish("event://ci/deploy", `{"n":1}`)
			}
			read := call(toolWait, map[string]any{"subscription": sub["subscription"]})
			if events := read["events"].([]any); len(events) != 20 || read["more"] != true {
				t.Errorf("got %v", read)
			}
			call(toolRecent, map[string]any{"subscription": read["subscription"], "limit": 1})
			call(toolUnsubscribe, map[string]any{"subscription": read["subscription"]})
		})
	}
}

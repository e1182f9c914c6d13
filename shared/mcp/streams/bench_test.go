package streams

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

// BenchmarkSendEvent measures the way of one event through one open listen.
func BenchmarkSendEvent(b *testing.B) {
	cat := expect.Value(catalog.Parse([]byte("events: [{name: ci.deploy, uri: 'event://ci/deploy', description: Deployed., payloadSchema: {type: object}}]")))(b)
	st := &Streams{Catalogs: method.Catalogs{Source: catalog.NewStatic(cat)}, Timing: method.Timing{Heartbeat: time.Hour}}
	o := &Writer{
		Streams: st, Caller: Caller{Principal: auth.Principal{ID: "alice", Workspace: "default", Scopes: auth.Scopes()}, checked: time.Now()},
		subscriptionID: []byte("1"), out: sse.NewWriter(discarded{}, 0),
	}
	d := stream.Delivery{
		Event:  &event.Event{ID: event.NewID(), Name: "ci.deploy", URI: "event://ci/deploy", Data: []byte(`{"n":1,"text":"` + strings.Repeat("x", 500) + `"}`)},
		Cursor: strings.Repeat("c", 50),
	}
	b.ReportAllocs()
	for b.Loop() {
		expect.OK(b, o.deliver(context.Background(), d))
	}
}

// discarded is a response without a reader.
type discarded struct{}

func (discarded) Header() http.Header         { return http.Header{} }
func (discarded) Write(b []byte) (int, error) { return len(b), nil }
func (discarded) WriteHeader(int)             {}

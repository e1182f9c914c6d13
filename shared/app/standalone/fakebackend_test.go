package standalone_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
)

// fakeBackend is an MCP server of revision 2026-07-28 whose events a test controls.
type fakeBackend struct {
	*httptest.Server
	t *testing.T

	mu      sync.Mutex
	types   string              // the elements of events/list
	first   string              // the params of notifications/events/active
	streams []chan string       // the open streams, which receive the params of notifications/events/event
	opened  chan map[string]any // receives the params of each events/stream
	closed  chan bool           // receives when one has ended
}

const shippedType = `{"name":"order.shipped","description":"","delivery":["push"],"inputSchema":{"type":"object"},
	"payloadSchema":{"type":"object","required":["carrier"]}}`

func newFakeBackend(t *testing.T, types string) *fakeBackend {
	t.Helper()
	b := &fakeBackend{t: t, types: types, first: `{"cursor":"c0","truncated":false}`, opened: make(chan map[string]any, 1000), closed: make(chan bool, 1000)}
	b.Server = httptest.NewServer(b)
	t.Cleanup(func() { b.CloseClientConnections(); b.Close() })
	return b
}

func (b *fakeBackend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params map[string]any
	}
	if json.NewDecoder(r.Body).Decode(&m) != nil {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	b.mu.Lock()
	types, first := b.types, b.first
	b.mu.Unlock()
	result := ""
	switch m.Method {
	case "server/discover":
		result = `{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"io.modelcontextprotocol/events":{}}},"serverInfo":{"name":"fake","version":"1"}}`
	case "events/list":
		result = `{"events":[` + types + `]}`
	case "events/stream":
		w.Header().Set("Content-Type", "text/event-stream")
		events := make(chan string, 1000)
		b.mu.Lock()
		b.streams = append(b.streams, events)
		b.mu.Unlock()
		send := func(method, params string) {
			params = `{"_meta":{"io.modelcontextprotocol/subscriptionId":` + string(m.ID) + `},` + params[1:]
			fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":%q,\"params\":%s}\n\n", method, params)
			w.(http.Flusher).Flush()
		}
		send("notifications/events/active", first)
		b.opened <- m.Params
		for {
			select {
			case e := <-events:
				send("notifications/events/event", e)
			case <-r.Context().Done():
				b.closed <- true
				return
			}
		}
	default:
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown method"}}`, m.ID)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
}

// send sends an event on all streams.
func (b *fakeBackend) send(id, cursor, data string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.streams {
		s <- fmt.Sprintf(`{"eventId":%q,"name":"order.shipped","timestamp":"2026-11-28T10:00:00Z","data":%s,"cursor":%q}`, id, data, cursor)
	}
}

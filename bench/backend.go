package bench

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"
)

// backend is an MCP server that does almost no work, so that the benchmark measures the gateway. It supports the revisions 2025-11-25 and
// 2026-07-28.
type backend struct {
	server *httptest.Server

	mu      sync.Mutex
	streams map[chan struct{}]struct{}
}

func newBackend() *backend {
	b := &backend{streams: map[chan struct{}]struct{}{}}
	b.server = httptest.NewServer(b)
	return b
}

func (b *backend) close() {
	b.server.CloseClientConnections()
	b.server.Close()
}

// changed notifies all open streams of a change of the backend's tools. It returns the number of notified streams.
func (b *backend) changed() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.streams {
		c <- struct{}{}
	}
	return len(b.streams)
}

const progressStep = 2 * time.Millisecond

func (b *backend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			ProtocolVersion string
			Arguments       struct{ Steps int }
			Meta            struct {
				Token json.RawMessage `json:"progressToken"`
			} `json:"_meta"`
		}
	}
	if r.Method == http.MethodPost {
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
	}
	answer := func(result string) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, result)
	}
	const capabilities = `{"tools":{"listChanged":true}}`
	switch {
	case r.Method == http.MethodGet || m.Method == "subscriptions/listen":
		b.stream(w, r)
	case r.Method == http.MethodDelete:
	case len(m.ID) == 0:
		w.WriteHeader(http.StatusAccepted)
	case m.Method == "initialize":
		w.Header().Set("Mcp-Session-Id", "bench")
		answer(fmt.Sprintf(`{"protocolVersion":%q,"capabilities":%s,"serverInfo":{"name":"bench","version":"1"}}`, m.Params.ProtocolVersion, capabilities))
	case m.Method == "server/discover":
		answer(`{"resultType":"complete","supportedVersions":["2026-07-28"],"ttlMs":0,"cacheScope":"private","capabilities":` + capabilities + `}`)
	case m.Method == "tools/list":
		answer(`{"resultType":"complete","tools":[{"name":"work","inputSchema":{"type":"object"}}],"ttlMs":60000,"cacheScope":"public"}`)
	default:
		const done = `{"resultType":"complete","content":[{"type":"text","text":"done"}]}`
		if m.Params.Arguments.Steps == 0 {
			answer(done)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range m.Params.Arguments.Steps {
			time.Sleep(progressStep)
			_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":%d,\"message\":\"%d\"}}\n\n",
				m.Params.Meta.Token, i, time.Now().UnixNano())
			w.(http.Flusher).Flush()
		}
		_, _ = fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n\n", m.ID, done)
	}
}

// stream opens a stream, on which it sends a notification for each change of the backend's tools.
func (b *backend) stream(w http.ResponseWriter, r *http.Request) {
	changes := make(chan struct{}, 16)
	b.mu.Lock()
	b.streams[changes] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		delete(b.streams, changes)
		b.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	for {
		w.(http.Flusher).Flush()
		select {
		case <-changes:
			_, _ = fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n")
		case <-r.Context().Done():
			return
		}
	}
}

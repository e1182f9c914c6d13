package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

// scribe is a backend without a network that answers calls or streams with given bytes. In them, "$ID" and "$TOKEN" stand for the id
// and the progress token of the request.
type scribe struct {
	stateless bool
	media     string
	text      []byte
	asked     atomic.Int64 // GET streams and listens
}

func (s *scribe) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int, media, text string) (*http.Response, error) {
		h := http.Header{"Content-Type": {media}}
		if !s.stateless {
			h.Set("Mcp-Session-Id", "s")
		}
		return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
	}
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Meta struct {
				Token json.RawMessage `json:"progressToken"`
			} `json:"_meta"`
		}
	}
	_ = json.Unmarshal(body, &m) // the gateway's own
	id := string(m.ID)
	const capabilities = `{"tools":{"listChanged":true},"resources":{"listChanged":true,"subscribe":true}}`
	switch {
	case r.Method == http.MethodGet && r.Header.Get("Last-Event-Id") != "":
		return answer(http.StatusNotFound, "text/plain", "")
	case r.Method == http.MethodGet, m.Method == "subscriptions/listen":
		s.asked.Add(1)
		return answer(http.StatusOK, s.media, strings.ReplaceAll(string(s.text), "$ID", id))
	case r.Method == http.MethodDelete || id == "" || m.Method == "":
		return answer(http.StatusAccepted, "", "")
	case m.Method == "server/discover" && s.stateless:
		return answer(200, "application/json", `{"jsonrpc":"2.0","id":`+id+`,"result":{"supportedVersions":["2026-07-28"],"capabilities":`+capabilities+`}}`)
	case m.Method == "initialize":
		return answer(200, "application/json", `{"jsonrpc":"2.0","id":`+id+`,"result":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`}}`)
	case m.Method == "tools/call":
		text := strings.ReplaceAll(string(s.text), "$ID", id)
		return answer(200, s.media, strings.ReplaceAll(text, "$TOKEN", string(m.Params.Meta.Token)))
	}
	return answer(200, "application/json", `{"jsonrpc":"2.0","id":`+id+`,"result":{"tools":[{"name":"t"}],"resources":[],"resourceTemplates":[]}}`)
}

// behind returns a gateway whose only backend is the scribe.
func (s *scribe) behind(f *testing.F) *Gateway {
	version := "2025-11-25"
	if s.stateless {
		version = "2026-07-28"
	}
	return newGateway(f, Options{
		Backends: []api.Backend{{Name: "b", URL: "http://backend.invalid/mcp", Workspace: auth.DefaultWorkspace, ProtocolVersion: version}},
		HTTP:     &http.Client{Transport: s}, CallTimeout: 40 * time.Millisecond,
	})
}

var mediaTypes = []string{"text/event-stream", "application/json"}

// seeds are answers of backends, valid and invalid.
var seeds = []string{
	`{"jsonrpc":"2.0","id":$ID,"result":{"content":[]}}`,
	"data: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{}}\n\n",
	"id: 7\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":$TOKEN,\"progress\":1}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"error\":{\"code\":-32042,\"message\":\"\",\"data\":{\"elicitations\":[{\"mode\":\"url\",\"url\":\"http://x\",\"elicitationId\":\"e\"}]}}}\n\n",
	"data: {\"jsonrpc\":\"2.0\",\"id\":1.5e3,\"method\":\"elicitation/create\",\"params\":{\"message\":\"m\",\"_meta\":{}}}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"isError\":true}}\n\n",
	"data: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"resultType\":\"input_required\",\"requestState\":\"s\",\"inputRequests\":{\"a\":{\"method\":\"roots/list\"}}}}\n\n",
	"event: message\r\ndata: [{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\"}},\ndata: 5]\n\n: c\n\ndata\n\n",
	"data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/resources/updated\",\"params\":{\"uri\":\"x://1\",\"_meta\":{\"a\":1}}}\n\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"}\n\n",
	"data: {\"jsonrpc\":\"2.0\",\"result\":{},\"id\":$ID,\"id\":null}\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":5}\n\n",
	"\xef\xbb\xbfdata: \xff\n\ndata: {\"jsonrpc\":\"2.0\",\"id\":$ID,\"result\":{\"structuredContent\":[],\"requestState\":5}}\n\n",
	`[`, `{"jsonrpc":"2.0","id":$ID`, "",
}

// FuzzBackendsAnswer has a backend answer calls with any bytes. GWN-05, GWN-14, GWN-15: the call ends in time. The client gets
// only valid JSON-RPC: at most one response, which has the client's id and comes last, and progress with the client's token.
func FuzzBackendsAnswer(f *testing.F) {
	scribes := []*scribe{{}, {stateless: true}}
	gateways := []*Gateway{scribes[0].behind(f), scribes[1].behind(f)}
	for i, seed := range seeds {
		for way := range byte(8) {
			f.Add(way, []byte(seed), i%2 == 0)
		}
	}
	f.Fuzz(func(t *testing.T, way byte, text []byte, token bool) {
		s := scribes[way&1]
		s.text, s.media = text, mediaTypes[way>>1&1]
		c := sessionBased("s1")
		if way>>2&1 == 1 {
			c = statelessClient(ann)
			c.Capabilities = json.RawMessage(`{"elicitation":{"form":{},"url":{}},"sampling":{},"roots":{}}`)
		}
		params := `{"name":"t"}`
		if token {
			params = `{"name":"t","_meta":{"progressToken":"own"}}`
		}
		responded := false
		err := gateways[way&1].Call(t.Context(), api.Call{
			Client: c, Kind: api.Tools, Name: "t", Member: "name", Method: "tools/call", ID: json.RawMessage(`"client's"`), Params: json.RawMessage(params),
			Send: func(raw json.RawMessage, response bool) error {
				m, ok := upstream.Read(raw)
				switch {
				case !json.Valid(raw) || !ok:
					t.Errorf("the client got %q", raw)
				case responded:
					t.Errorf("after the response the client got %q", raw)
				case m.Response() != response || response && string(m.ID) != `"client's"`:
					t.Errorf("the client got as a response (%t) %q", response, raw)
				case m.Method == "notifications/progress":
					if got := jsonrpc.Member(jsonrpc.Member(raw, "params"), "progressToken"); !token || string(got) != `"own"` {
						t.Errorf("the client got %q", raw)
					}
				case m.ID != nil && !response && !bytes.HasPrefix(m.ID, []byte(`"gw_`)):
					t.Errorf("the client is asked under the backend's own id: %q", raw)
				}
				responded = response
				return nil
			},
		})
		if (err == nil) != responded {
			t.Errorf("responded %t with the error %v", responded, err)
		}
	})
}

// FuzzBackendsStream has a backend send any bytes on its notification stream. GWN-05: the relay announces only list changes and
// updates with a URI, and continues.
func FuzzBackendsStream(f *testing.F) {
	scribes := []*scribe{{}, {stateless: true}}
	gateways := []*Gateway{scribes[0].behind(f), scribes[1].behind(f)}
	for _, seed := range seeds {
		f.Add(false, []byte(seed))
		f.Add(true, []byte(seed))
	}
	f.Fuzz(func(t *testing.T, stateless bool, text []byte) {
		n := 0
		if stateless {
			n = 1
		}
		s, g := scribes[n], gateways[n]
		s.text, s.media = text, mediaTypes[0]
		r := newRelay("r", g, nil)
		r.MinPause, r.MaxPause = time.Millisecond, time.Millisecond
		r.Announce = func(_ context.Context, _, backend string, notice json.RawMessage) error {
			var got api.Notice
			if json.Unmarshal(notice, &got) != nil || backend != "b" {
				t.Errorf("announced %q of %s", notice, backend)
				return nil
			}
			switch got.Method {
			case api.Tools.ChangedMethod(), api.Prompts.ChangedMethod(), api.Resources.ChangedMethod():
				return nil
			}
			if uri, ok := jsonrpc.String(jsonrpc.Member(got.Params, "uri")); got.Method != "notifications/resources/updated" || !ok || uri == "" {
				t.Errorf("announced %q", notice)
			}
			return nil
		}
		before := s.asked.Load()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan struct{})
		go func() { r.Run(ctx); close(done) }()
		expect.Eventually(t, "the stream was opened, ended, and is opened again", func() bool { return s.asked.Load() >= before+2 })
		cancel()
		<-done
	})
}

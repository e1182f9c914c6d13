package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/pipes"
)

// transport is a function as an [http.RoundTripper].
type transport func(*http.Request) (*http.Response, error)

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) { return t(r) }

func TestCallDoesNotChangeItsParams(t *testing.T) {
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		t.Run(revision, func(t *testing.T) {
			var sent struct {
				Params struct {
					Name string
					Meta map[string]any `json:"_meta"`
				}
			}
			c := expect.Value(newClient("http://server.test", Options{Revision: revision, HTTP: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
				expect.OK(t, json.NewDecoder(r.Body).Decode(&sent))
				body := io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":1,"result":{}}`))
				return &http.Response{StatusCode: http.StatusOK, Body: body, Request: r}, nil
			})}}))(t)
			c.session.Store(new("")) // a session without an id
			meta := map[string]any{"progressToken": "p"}
			params := map[string]any{"name": "a", "_meta": meta}
			before := map[string]any{"name": "a", "_meta": maps.Clone(meta)}
			expect.OK(t, c.Call(t.Context(), spec.MethodToolsCall, params, nil))
			expect.Deep(t, "the params after the call", params, before)
			if version, ok := sent.Params.Meta[spec.MetaVersion]; sent.Params.Name != "a" || sent.Params.Meta["progressToken"] != "p" || ok != c.isStateless() {
				t.Errorf("the server got %+v with the version %v, want the name a and the progress token p", sent.Params, version)
			}
			for _, other := range []any{map[string]string{"progressToken": "q"}, json.RawMessage(`{"progressToken":"q"}`)} {
				expect.OK(t, c.Call(t.Context(), spec.MethodToolsCall, map[string]any{"name": "a", "_meta": other}, nil))
				expect.Equal(t, "the progress token", sent.Params.Meta["progressToken"], any("q"))
			}
			bare := map[string]any{}
			expect.OK(t, c.Call(t.Context(), spec.MethodToolsList, bare, nil))
			expect.Len(t, "the empty params after the call", bare, 0)
		})
	}
}

// The gateway reads the events of backends with this package, so a panic would end the whole server.
func TestCallSkipsMalformedEventsOfAStream(t *testing.T) {
	for _, malformed := range []string{`{"`, `{"jsonrpc":"2.0","id":1,"result":{"`, `{"jsonrpc":"2.0","result":{},"id":"`, `{`, `"`, `[`, `nul`, "\xff"} {
		for name, rest := range map[string]string{"alone": "", "before the response": "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}\n\n"} {
			t.Run(malformed+" "+name, func(t *testing.T) {
				c := expect.Value(newClient("http://server.test", Options{Revision: "2026-07-28", HTTP: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
					body := io.NopCloser(strings.NewReader("data: " + malformed + "\n\n" + rest))
					return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"text/event-stream"}}, Body: body, Request: r}, nil
				})}}))(t)
				err := c.Call(t.Context(), spec.MethodToolsList, nil, nil)
				if rest != "" {
					expect.OK(t, err)
					return
				}
				expect.Is(t, "the error", err, ErrUnavailable)
			})
		}
	}
}

func TestCallRefusesParamsThatAreNotJSON(t *testing.T) {
	c := dial(t, &scripted{}, "2026-07-28")
	for name, value := range map[string]any{"NaN": math.NaN(), "malformed JSON": json.RawMessage("{"), "a channel": make(chan int)} {
		err := c.Call(t.Context(), spec.MethodToolsCall, map[string]any{"name": "a", "arguments": value}, nil)
		if !errors.Is(err, ErrInvalid) || Retryable(err) || !strings.Contains(err.Error(), spec.MethodToolsCall) {
			t.Errorf("%s: got %v, want ErrInvalid with the method", name, err)
		}
	}
}

// The server keeps the stream open after the response, which MCP allows.
func TestCallReturnsWithTheResponseOfAnOpenStream(t *testing.T) {
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		t.Run(revision, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := pipes.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					var m struct{ ID json.RawMessage }
					_ = json.NewDecoder(r.Body).Decode(&m)
					if m.ID == nil {
						w.WriteHeader(http.StatusAccepted)
						return
					}
					w.Header().Set("Content-Type", "text/event-stream")
					fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"protocolVersion\":%q}}\n\n", m.ID, revision)
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
				}))
				c := expect.Value(Connect(t.Context(), s.URL, Options{Revision: revision}))(t)
				began := time.Now()
				expect.OK(t, c.Call(t.Context(), spec.MethodToolsCall, map[string]any{"name": "a"}, nil))
				expect.AtMost(t, "the time", time.Since(began), time.Second)
			})
		})
	}
}

func TestCallTakesAtMostAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dial(t, &scripted{}, "2026-07-28")
		began := time.Now()
		err := c.Call(t.Context(), spec.MethodToolsCall, map[string]any{"name": "a"}, nil)
		expect.Is(t, "the error", err, ErrUnavailable)
		expect.Equal(t, "the time", time.Since(began), time.Minute)
	})
}

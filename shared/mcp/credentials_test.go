package mcp

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// opener begins a stream of event://ci/deploy and, unless it is of one type, of event://billing/invoice.
type opener struct {
	open    func(f *fixture) *http.Request
	payload string                               // how a payload begins on it
	ended   func(t *testing.T, text string) bool // reports whether a stream with this text ended as one does that the server ends
	oneType bool
}

var openers = map[string]opener{
	"AUT-04 listen": {open: func(f *fixture) *http.Request {
		return f.statelessRequest(billing, spec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci","event://billing/invoice"]}`)
	}, payload: `"payload":`, ended: completed},
	"AUT-04 GET":                  {open: streamOfSession("/mcp"), payload: `"payload":`, ended: says("retry: ")},
	"AUT-04 the dialect's GET":    {open: streamOfSession(dialectPath), payload: `"payload":`, ended: says(`{"reason":"revoked"}`)},
	"AUT-04 EVX-17 events/stream": {open: streamOfType("ci.deploy"), payload: `"data":`, ended: terminated, oneType: true},
}

// says reports whether a stream ended with this text.
func says(end string) func(*testing.T, string) bool {
	return func(_ *testing.T, text string) bool { return strings.Contains(text, end) }
}

// completed reports whether a stream ended with the result of request 1.
func completed(t *testing.T, text string) bool {
	t.Helper()
	var last frame
	for _, last = range frames(t, text) {
	}
	return string(last.ID) == "1" && last.Result.ResultType == "complete"
}

// terminated reports whether a stream ended with a termination notice and then the result.
func terminated(t *testing.T, text string) bool {
	t.Helper()
	all := frames(t, text)
	if len(all) < 3 || !completed(t, text) { // the first is notifications/events/active
		return false
	}
	var notice pushed
	must(t, json.Unmarshal(all[len(all)-2].sse.Data, &notice))
	return notice.Method == spec.NoteEventsTerminated && notice.Params.Error != nil && notice.Params.Error.Code == method.Codes[spec.Released].Forbidden
}

// streamOfType opens an events/stream.
func streamOfType(name string) func(f *fixture) *http.Request {
	return func(f *fixture) *http.Request {
		return f.statelessRequest(billing, spec.MethodEventsStream, `"name":"`+name+`"`)
	}
}

// streamOfSession opens the stream of a new session at the path.
func streamOfSession(path string) func(f *fixture) *http.Request {
	return func(f *fixture) *http.Request {
		at := func(method, body string, headers ...string) *http.Request {
			r := f.request(method, billing, body, headers...)
			r.URL.Path = path
			return r
		}
		session := f.served(at("POST", rpcText("0", spec.MethodInitialize, `"protocolVersion":"2025-11-25","capabilities":{}`))).Header().Get(spec.HeaderSession)
		for i, uri := range []string{"event://ci", "event://billing/invoice"} {
			f.served(at("POST", rpcText(strconv.Itoa(i+1), spec.MethodSubscribe, `"uri":"`+uri+`"`), "Mcp-Session-Id: "+session))
		}
		return at("GET", "", "Mcp-Session-Id: "+session)
	}
}

// served serves a request that must succeed, without a connection.
func (f *fixture) served(r *http.Request) *httptest.ResponseRecorder {
	f.t.Helper()
	w := httptest.NewRecorder()
	if routed(f.endpoint).ServeHTTP(w, r); w.Code != http.StatusOK || strings.Contains(w.Body.String(), `"error"`) {
		f.t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w
}

// TestCredentialsOfOpenStreams takes credentials or rights away while a stream is open.
func TestCredentialsOfOpenStreams(t *testing.T) {
	minds := map[string]func(*revocable){
		"unknown now":  func(r *revocable) { r.say(auth.Principal{}, auth.ErrNoToken) },
		"another":      func(r *revocable) { r.say(auth.Principal{ID: "x", Workspace: "default", Scopes: auth.Scopes()}, nil) },
		"without read": func(r *revocable) { r.say(auth.Principal{ID: "billing", Workspace: "default"}, nil) },
	}
	withoutScope := func(r *revocable) {
		r.say(auth.Principal{ID: "billing", Workspace: "default", Scopes: auth.Scopes()}, nil)
	}
	const heartbeat = 15 * time.Second
	for name, o := range openers {
		for mind, change := range minds {
			t.Run(name+" ends: "+mind, func(t *testing.T) {
				inBubble(t, inMemory, nil, o.open, func(b *bubbled) {
					time.Sleep(time.Minute)
					if b.finished() {
						t.Error("it ended before anything was taken away")
					}
					change(b.caller)
					time.Sleep(heartbeat + time.Second)
					if !b.finished() || !o.ended(t, b.text()) {
						t.Errorf("a quiet stream: ended %v: %s", b.finished(), b.text())
					}
				})
				inBubble(t, inMemory, nil, o.open, func(b *bubbled) {
					change(b.caller)
					for range 20 { // never quiet
						b.f.publish("event://ci/deploy", `{"secret":true}`)
						time.Sleep(time.Second)
					}
					if n := strings.Count(b.text(), o.payload+`{"secret"`); !b.finished() || n < 1 || n > 15 || !o.ended(t, b.text()) {
						t.Errorf("a busy stream: ended %v, after %d events: %s", b.finished(), n, b.text())
					}
				})
			})
		}
		if !o.oneType {
			t.Run(name+" sends no more of what a scope was for", func(t *testing.T) {
				inBubble(t, inMemory, nil, o.open, func(b *bubbled) {
					b.f.publish("event://billing/invoice", `{"n":"first"}`)
					time.Sleep(2 * time.Second)
					withoutScope(b.caller)
					time.Sleep(heartbeat)
					b.f.publish("event://billing/invoice", `{"n":"second"}`)
					b.f.publish("event://ci/deploy", `{"n":"third"}`)
					time.Sleep(2 * time.Second)
					text := b.text()
					if b.finished() || !strings.Contains(text, "first") || strings.Contains(text, "second") || !strings.Contains(text, "third") {
						t.Errorf("ended %v: %s", b.finished(), text)
					}
				})
			})
		}
		t.Run(name+" stays while credentials cannot be looked at", func(t *testing.T) {
			inBubble(t, inMemory, nil, o.open, func(b *bubbled) {
				b.caller.say(auth.Principal{}, fault.New(fault.Unavailable, "no answer"))
				time.Sleep(2 * time.Minute)
				b.f.publish("event://ci/deploy", `{"n":"still"}`)
				time.Sleep(2 * time.Second)
				if b.finished() || !strings.Contains(b.text(), "still") {
					t.Errorf("ended %v: %s", b.finished(), b.text())
				}
			})
		})
	}
	t.Run("AUT-04 EVX-17 events/stream ends without the scope that its event type needs", func(t *testing.T) {
		inBubble(t, inMemory, nil, streamOfType("billing.invoice"), func(b *bubbled) {
			b.f.publish("event://billing/invoice", `{"n":"first"}`)
			time.Sleep(time.Minute)
			if b.finished() || !strings.Contains(b.text(), "first") {
				t.Errorf("before anything was taken away: ended %v: %s", b.finished(), b.text())
			}
			withoutScope(b.caller)
			time.Sleep(heartbeat + time.Second)
			if !b.finished() || !terminated(t, b.text()) {
				t.Errorf("ended %v: %s", b.finished(), b.text())
			}
		})
	})
}

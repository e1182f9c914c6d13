package mcp

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// opener begins a stream of all of event://ci and event://billing/invoice.
type opener struct {
	open func(t *testing.T, f *fixture, h http.Handler) *http.Request
	end  string // what the last message of a stream holds that the server ends
}

var openers = map[string]opener{
	"listen": {func(_ *testing.T, f *fixture, _ http.Handler) *http.Request {
		body := modernBody("1", mcpspec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci","event://billing/invoice"]}`)
		return f.request("POST", billing, body, modernHeaders(mcpspec.MethodListen, "")...)
	}, `"resultType":"complete"`},
	"GET": {func(t *testing.T, f *fixture, h http.Handler) *http.Request {
		session := served(t, h, f.request("POST", billing, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)).Header().Get(mcpspec.HeaderSession)
		for _, uri := range []string{"event://ci", "event://billing/invoice"} {
			served(t, h, f.request("POST", billing, `{"jsonrpc":"2.0","id":1,"method":"resources/subscribe","params":{"uri":"`+uri+`"}}`, "Mcp-Session-Id: "+session))
		}
		return f.request("GET", billing, "", "Mcp-Session-Id: "+session)
	}, "retry: "},
	"the dialect's GET": {func(t *testing.T, f *fixture, h http.Handler) *http.Request {
		at := func(method, body string, headers ...string) *http.Request {
			r := f.request(method, billing, body, headers...)
			r.URL.Path += "/default"
			return r
		}
		session := served(t, h, at("POST", `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{}}}`)).Header().Get(mcpspec.HeaderSession)
		for i, uri := range []string{"event://ci", "event://billing/invoice"} {
			served(t, h, at("POST", `{"jsonrpc":"2.0","id":`+strconv.Itoa(i+1)+`,"method":"resources/subscribe","params":{"uri":"`+uri+`"}}`, "Mcp-Session-Id: "+session))
		}
		return at("GET", "", "Mcp-Session-Id: "+session)
	}, `{"reason":"revoked"}`},
}

func served(t *testing.T, h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusOK || strings.Contains(w.Body.String(), `"error"`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	return w
}

// TestCredentialsOfOpenStreams takes credentials or rights away while a stream is open.
func TestCredentialsOfOpenStreams(t *testing.T) {
	// during is called when the stream is open; finished tells whether it is not any more.
	serve := func(t *testing.T, o opener, during func(f *fixture, r *revocable, w *written, finished func() bool)) {
		t.Helper()
		synctest.Test(t, func(t *testing.T) {
			var r *revocable
			f := newEndpointOn(t, newMemory(), func(o *Options) {
				r = &revocable{Authenticator: o.Auth}
				o.Auth = r
			})
			h := routed(f.endpoint)
			w := &written{header: http.Header{}}
			ctx, cancel := context.WithCancel(t.Context())
			req := o.open(t, f, h).WithContext(ctx)
			done := make(chan struct{})
			go func() {
				defer close(done)
				h.ServeHTTP(w, req)
			}()
			synctest.Wait()
			during(f, r, w, func() bool {
				synctest.Wait()
				select {
				case <-done:
					return true
				default:
					return false
				}
			})
			cancel()
			<-done
			f.tails.Close()
		})
	}
	minds := map[string]func(*revocable){
		"unknown now":  func(r *revocable) { r.say(auth.Principal{}, auth.ErrNoToken) },
		"another":      func(r *revocable) { r.say(auth.Principal{ID: "x", Workspace: "default", Scopes: auth.Scopes()}, nil) },
		"without read": func(r *revocable) { r.say(auth.Principal{ID: "billing", Workspace: "default"}, nil) },
	}
	const heartbeat = 15 * time.Second
	for name, o := range openers {
		for mind, change := range minds {
			t.Run("AUT-04 "+name+" ends: "+mind, func(t *testing.T) {
				serve(t, o, func(f *fixture, r *revocable, w *written, finished func() bool) {
					time.Sleep(time.Minute)
					if finished() {
						t.Fatal("it ended before anything was taken away")
					}
					change(r)
					time.Sleep(heartbeat + time.Second)
					if !finished() || !strings.Contains(w.text(), o.end) {
						t.Errorf("a quiet stream: ended %v: %s", finished(), w.text())
					}
				})
				serve(t, o, func(f *fixture, r *revocable, w *written, finished func() bool) {
					change(r)
					for range 20 { // never quiet
						f.publish("event://ci/deploy", `{"secret":true}`)
						time.Sleep(time.Second)
					}
					if n := strings.Count(w.text(), `"payload":{"secret"`); !finished() || n < 1 || n > 15 || !strings.Contains(w.text(), o.end) {
						t.Errorf("a busy stream: ended %v, after %d events: %s", finished(), n, w.text())
					}
				})
			})
		}
		t.Run("AUT-04 "+name+" sends no more of what a scope was for", func(t *testing.T) {
			serve(t, o, func(f *fixture, r *revocable, w *written, finished func() bool) {
				f.publish("event://billing/invoice", `{"n":"first"}`)
				time.Sleep(2 * time.Second)
				r.say(auth.Principal{ID: "billing", Workspace: "default", Scopes: auth.Scopes()}, nil)
				time.Sleep(heartbeat)
				f.publish("event://billing/invoice", `{"n":"second"}`)
				f.publish("event://ci/deploy", `{"n":"third"}`)
				time.Sleep(2 * time.Second)
				text := w.text()
				if finished() || !strings.Contains(text, "first") || strings.Contains(text, "second") || !strings.Contains(text, "third") {
					t.Errorf("ended %v: %s", finished(), text)
				}
			})
		})
		t.Run("AUT-04 "+name+" stays while credentials cannot be looked at", func(t *testing.T) {
			serve(t, o, func(f *fixture, r *revocable, w *written, finished func() bool) {
				r.say(auth.Principal{}, fault.New(fault.Unavailable, "no answer"))
				time.Sleep(time.Minute)
				f.publish("event://ci/deploy", `{"n":"still"}`)
				time.Sleep(2 * time.Second)
				if finished() || !strings.Contains(w.text(), "still") {
					t.Errorf("ended %v: %s", finished(), w.text())
				}
			})
		})
	}
}

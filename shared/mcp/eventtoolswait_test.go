package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store"
)

// waiting is a call of wait_for_event in a bubble.
type waiting struct {
	*written
	t      *testing.T
	f      *fixture
	caller *revocable
	began  time.Time
	done   chan struct{}
	took   time.Duration
	cancel context.CancelFunc
}

// inWait calls wait_for_event of ci.deploy with more arguments, in the revision of a session if there is to be one, and
// a deadline of the request unless it is 0.
func inWait(t *testing.T, db func() store.DB, session bool, deadline time.Duration, more string, change func(*Options), during func(*waiting)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &waiting{written: &written{header: http.Header{}}, t: t, done: make(chan struct{})}
		w.f = newEndpointOn(t, db(), func(o *Options) {
			w.caller = &revocable{Authenticator: o.Auth}
			o.Auth, o.EventTools = w.caller, true
			if change != nil {
				change(o)
			}
		})
		call := func(tool, arguments, meta string) *http.Request {
			params := toolParams(tool, arguments)
			body := strings.Replace(modernBody("1", mcpspec.MethodToolsCall, params), `"_meta":{`, `"_meta":{`+meta, 1)
			if !session {
				return w.f.request("POST", alice, body, modernHeaders(mcpspec.MethodToolsCall, params)...)
			}
			begun := served(t, w.f.endpoint, w.f.request("POST", alice, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`))
			return w.f.request("POST", alice, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{`+params+`,"_meta":{`+strings.TrimSuffix(meta, ",")+`}}}`,
				"Mcp-Session-Id: "+begun.Header().Get(mcpspec.HeaderSession))
		}
		var sub shownEvents
		toolResult(t, reply{200, nil, served(t, w.f.endpoint, call(toolSubscribe, `{"name":"ci.deploy"}`, "")).Body.String()}, &sub)
		request := call(toolWait, strings.TrimSuffix(at(sub.Subscription), "}")+more+"}", `"progressToken":"p",`)
		ctx, cancel := context.WithCancel(t.Context())
		if w.cancel = cancel; deadline > 0 {
			ctx, cancel = context.WithTimeout(ctx, deadline)
			defer cancel()
		}
		defer w.cancel()
		w.began = time.Now()
		go func() {
			defer close(w.done)
			w.f.endpoint.ServeHTTP(w.written, request.WithContext(ctx))
			w.took = time.Since(w.began)
		}()
		synctest.Wait()
		during(w)
		w.cancel()
		<-w.done
		w.f.tails.Close()
	})
}

// result is what the call ended with, after the messages that came before.
func (w *waiting) result() (got shownEvents, before []frame) {
	w.t.Helper()
	<-w.done
	if !strings.HasPrefix(w.text(), ":") && !strings.HasPrefix(w.text(), "data: ") {
		toolResult(w.t, reply{200, nil, w.text()}, &got)
		return got, nil
	}
	all := frames(w.t, w.text())
	last := all[len(all)-1]
	toolResult(w.t, reply{200, nil, string(last.sse.Data)}, &got)
	return got, all[:len(all)-1]
}

func inMemory() store.DB { return newMemory() }

func TestWaitForEvent(t *testing.T) {
	for name, db := range map[string]func() store.DB{"one writer": inMemory, "several": func() store.DB { return unordered{newMemory()} }} {
		for revision, session := range map[string]bool{"2026-07-28": false, "2025-11-25": true} {
			t.Run("RCH-04 an event ends the wait, "+name+", "+revision, func(t *testing.T) {
				inWait(t, db, session, 0, `,"seconds":600`, func(o *Options) { o.MaxAge = time.Hour }, func(w *waiting) {
					time.Sleep(2 * time.Minute)
					w.f.publish("event://ci/deploy", `{"n":1}`)
					got, before := w.result()
					if !slices.Equal(got.data(), []string{`{"n":1}`}) || got.TimedOut || w.took > 2*time.Minute+2*time.Second {
						w.t.Errorf("after %s %+v", w.took, got)
					}
					if len(before) != 24 {
						w.t.Fatalf("%d notifications of progress", len(before))
					}
					for i, m := range before {
						if m.Method != mcpspec.NoteProgress {
							w.t.Fatalf("got %s", m.sse.Data)
						}
						params := map[string]any{"progressToken": "p", "progress": 5 * (i + 1), "total": 600, "message": "no event yet"}
						sameJSON(w.t, m.sse.Data, string(jsonrpc.Encode(map[string]any{"jsonrpc": "2.0", "method": mcpspec.NoteProgress, "params": params})))
					}
				})
			})
		}
	}
	t.Run("RCH-04 it ends in time", func(t *testing.T) {
		for name, x := range map[string]struct {
			more             string
			maxAge, deadline time.Duration
			want             time.Duration
		}{
			"by itself":                  {"", time.Hour, 0, 50 * time.Second},
			"as asked":                   {`,"seconds":7`, time.Hour, 0, 7 * time.Second},
			"at the age of streams":      {`,"seconds":600`, 90 * time.Second, 0, 90 * time.Second},
			"before the function does":   {`,"seconds":600`, time.Hour, 30 * time.Second, 25 * time.Second},
			"when there is no time left": {`,"seconds":600`, time.Hour, 4 * time.Second, 0},
		} {
			for _, session := range []bool{false, true} {
				inWait(t, inMemory, session, x.deadline, x.more, func(o *Options) { o.MaxAge = cmp.Or(x.maxAge, o.MaxAge) }, func(w *waiting) {
					got, _ := w.result()
					if !got.TimedOut || len(got.Events) > 0 || w.took != x.want {
						w.t.Errorf("%s: after %s %+v", name, w.took, got)
					}
					ev := w.f.publish("event://ci/deploy", `{"n":1}`)
					var next shownEvents
					params := toolParams(toolRecent, at(got.Subscription))
					toolResult(w.t, reply{200, nil, served(w.t, w.f.endpoint, w.f.request("POST", alice, modernBody("1", mcpspec.MethodToolsCall, params), modernHeaders(mcpspec.MethodToolsCall, params)...)).Body.String()}, &next)
					if len(next.Events) != 1 || next.Events[0].ID != ev.ID {
						w.t.Errorf("%s: then %+v", name, next)
					}
				})
			}
		}
	})
	t.Run("RCH-04 it ends with its client, and with the server", func(t *testing.T) {
		for _, session := range []bool{false, true} {
			inWait(t, inMemory, session, 0, `,"seconds":600`, nil, func(w *waiting) {
				time.Sleep(10 * time.Second)
				if n := w.f.endpoint.OpenStreams(); n != 1 {
					w.t.Errorf("it counts as %d streams", n)
				}
				w.cancel()
				if <-w.done; w.took != 10*time.Second || w.f.endpoint.OpenStreams() != 0 {
					w.t.Errorf("it ended after %s, with %d streams", w.took, w.f.endpoint.OpenStreams())
				}
			})
			inWait(t, inMemory, session, 0, `,"seconds":600`, nil, func(w *waiting) {
				time.Sleep(10 * time.Second)
				w.f.close()
				if got, _ := w.result(); !got.TimedOut || w.took != 10*time.Second {
					w.t.Errorf("after %s %+v", w.took, got)
				}
			})
		}
	})
	t.Run("RCH-04 it needs room for a stream", func(t *testing.T) {
		inWait(t, inMemory, false, 0, "", func(o *Options) { o.Leases = &oneStream{} }, func(w *waiting) {
			var sub shownEvents
			call := func(tool, arguments string) *written {
				params := toolParams(tool, arguments)
				out := &written{header: http.Header{}}
				w.f.endpoint.ServeHTTP(out, w.f.request("POST", alice, modernBody("1", mcpspec.MethodToolsCall, params), modernHeaders(mcpspec.MethodToolsCall, params)...))
				return out
			}
			toolResult(w.t, reply{200, nil, call(toolSubscribe, `{"name":"ci.build"}`).text()}, &sub)
			out := call(toolWait, at(sub.Subscription))
			var m struct{ Error struct{ Code int } }
			if err := json.Unmarshal([]byte(out.text()), &m); err != nil || m.Error.Code != 503 || out.header.Get("Retry-After") == "" {
				w.t.Errorf("a second wait is answered %s", out.text())
			}
		})
	})
	t.Run("RCH-04 what happens after access was taken away is not shown", func(t *testing.T) {
		for name, change := range map[string]func(w *waiting){
			"credentials": func(w *waiting) { w.caller.say(auth.Principal{}, auth.ErrNoToken) },
			"the right":   func(w *waiting) { w.caller.say(auth.Principal{ID: "alice", Workspace: auth.DefaultWorkspace}, nil) },
			"the type":    func(w *waiting) { w.f.catalogs.Replace(mustParse(t, withoutDeploy)) },
		} {
			inWait(t, inMemory, false, 0, `,"seconds":600`, nil, func(w *waiting) {
				time.Sleep(time.Minute)
				change(w)
				w.f.publish("event://ci/deploy", `{"secret":1}`)
				<-w.done
				if text := w.text(); strings.Contains(text, "secret") || !strings.Contains(text, `"error"`) && !strings.Contains(text, `"isError":true`) {
					w.t.Errorf("%s: %s", name, text)
				}
			})
		}
	})
}

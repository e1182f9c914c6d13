package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools/logsource"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// aWait is a call of wait_for_event of ci.deploy with more arguments, in the revision of a session if there is to be one,
// and a deadline of the request unless it is 0.
func aWait(inSession bool, deadline time.Duration, more string) func(*fixture) *http.Request {
	return func(f *fixture) *http.Request {
		call := func(tool, arguments, meta string) *http.Request {
			params := toolParams(tool, arguments)
			body := strings.Replace(statelessBody("1", spec.MethodToolsCall, params), `"_meta":{`, `"_meta":{`+meta, 1)
			if !inSession {
				return f.request("POST", alice, body, statelessHeaders(spec.MethodToolsCall, params)...)
			}
			return f.request("POST", alice, rpcText("1", spec.MethodToolsCall, params+`,"_meta":{`+strings.TrimSuffix(meta, ",")+`}`),
				"Mcp-Session-Id: "+f.newSession(session.Session{Version: spec.V20251125}).ID)
		}
		var sub shownEvents
		toolResult(f.t, reply{200, nil, f.served(call("subscribe", `{"name":"ci.deploy"}`, "")).Body.String()}, &sub)
		request := call("wait_for_event", strings.TrimSuffix(at(sub.Subscription), "}")+more+"}", `"progressToken":"p",`)
		if deadline == 0 {
			return request
		}
		ctx, cancel := context.WithTimeout(f.t.Context(), deadline)
		f.t.Cleanup(cancel)
		return request.WithContext(ctx)
	}
}

// inWait serves a wait in a bubble.
func inWait(t *testing.T, db func() store.DB, change func(*Options), request func(*fixture) *http.Request, during func(*bubbled)) {
	t.Helper()
	inBubble(t, db, func(o *Options) {
		o.EventTools = logsource.New
		if change != nil {
			change(o)
		}
	}, request, during)
}

// events is what the call ended with, after the messages that came before.
func (b *bubbled) events() (got shownEvents, before []frame) {
	b.f.t.Helper()
	<-b.done
	if !strings.HasPrefix(b.text(), ":") && !strings.HasPrefix(b.text(), "data: ") {
		toolResult(b.f.t, reply{200, nil, b.text()}, &got)
		return got, nil
	}
	all := frames(b.f.t, b.text())
	last := all[len(all)-1]
	toolResult(b.f.t, reply{200, nil, string(last.sse.Data)}, &got)
	return got, all[:len(all)-1]
}

func TestWaitForEvent(t *testing.T) {
	for name, db := range map[string]func() store.DB{"one writer": inMemory, "several": several} {
		for revision, session := range map[string]bool{"2026-07-28": false, "2025-11-25": true} {
			t.Run("RCH-04 an event ends the wait, "+name+", "+revision, func(t *testing.T) {
				inWait(t, db, func(o *Options) { o.MaxAge = time.Hour }, aWait(session, 0, `,"seconds":600`), func(w *bubbled) {
					time.Sleep(2 * time.Minute)
					w.f.publish("event://ci/deploy", `{"n":1}`)
					got, before := w.events()
					if !slices.Equal(got.data(), []string{`{"n":1}`}) || got.TimedOut || w.took > 2*time.Minute+2*time.Second {
						w.f.t.Errorf("after %s %+v", w.took, got)
					}
					if len(before) != 24 {
						w.f.t.Fatalf("%d notifications of progress", len(before))
					}
					for i, m := range before {
						if m.Method != spec.NoteProgress {
							w.f.t.Fatalf("got %s", m.sse.Data)
						}
						params := map[string]any{"progressToken": "p", "progress": 5 * (i + 1), "total": 600, "message": "no event yet"}
						sameJSON(w.f.t, m.sse.Data, string(jsonrpc.Encode(map[string]any{"jsonrpc": "2.0", "method": spec.NoteProgress, "params": params})))
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
				inWait(t, inMemory, func(o *Options) { o.MaxAge = x.maxAge }, aWait(session, x.deadline, x.more), func(w *bubbled) {
					got, _ := w.events()
					if !got.TimedOut || len(got.Events) > 0 || w.took != x.want {
						w.f.t.Errorf("%s: after %s %+v", name, w.took, got)
					}
					ev := w.f.publish("event://ci/deploy", `{"n":1}`)
					var next shownEvents
					recent := w.f.statelessRequest(alice, spec.MethodToolsCall, toolParams("recent_events", at(got.Subscription)))
					toolResult(w.f.t, reply{200, nil, w.f.served(recent).Body.String()}, &next)
					if len(next.Events) != 1 || next.Events[0].ID != ev.ID {
						w.f.t.Errorf("%s: then %+v", name, next)
					}
				})
			}
		}
	})
	t.Run("RCH-04 it ends with its client, and with the server", func(t *testing.T) {
		for _, session := range []bool{false, true} {
			inWait(t, inMemory, nil, aWait(session, 0, `,"seconds":600`), func(w *bubbled) {
				time.Sleep(10 * time.Second)
				if n := w.f.endpoint.OpenStreams(); n != 1 {
					w.f.t.Errorf("it counts as %d streams", n)
				}
				w.cancel()
				if <-w.done; w.took != 10*time.Second || w.f.endpoint.OpenStreams() != 0 {
					w.f.t.Errorf("it ended after %s, with %d streams", w.took, w.f.endpoint.OpenStreams())
				}
			})
			inWait(t, inMemory, nil, aWait(session, 0, `,"seconds":600`), func(w *bubbled) {
				time.Sleep(10 * time.Second)
				w.f.close()
				if got, _ := w.events(); !got.TimedOut || w.took != 10*time.Second {
					w.f.t.Errorf("after %s %+v", w.took, got)
				}
			})
		}
	})
	t.Run("RCH-04 it needs room for a stream", func(t *testing.T) {
		inWait(t, inMemory, func(o *Options) { o.Leases = &oneStream{} }, aWait(false, 0, ""), func(w *bubbled) {
			out := newWritten()
			w.f.endpoint.ServeHTTP(out, aWait(false, 0, "")(w.f))
			var m struct{ Error struct{ Code int } }
			if err := json.Unmarshal([]byte(out.text()), &m); err != nil || m.Error.Code != 503 || out.header.Get("Retry-After") == "" {
				w.f.t.Errorf("a second wait is answered %s", out.text())
			}
		})
	})
	t.Run("RCH-04 what happens after access was taken away is not shown", func(t *testing.T) {
		for name, change := range map[string]func(w *bubbled){
			"credentials": func(w *bubbled) { w.caller.say(auth.Principal{}, auth.ErrNoToken) },
			"the right":   func(w *bubbled) { w.caller.say(auth.Principal{ID: "alice", Workspace: auth.DefaultWorkspace}, nil) },
			"the type":    func(w *bubbled) { w.f.catalogs.Replace(mustParse(t, withoutDeploy)) },
		} {
			inWait(t, inMemory, nil, aWait(false, 0, `,"seconds":600`), func(w *bubbled) {
				time.Sleep(time.Minute)
				change(w)
				w.f.publish("event://ci/deploy", `{"secret":1}`)
				<-w.done
				if text := w.text(); strings.Contains(text, "secret") || !strings.Contains(text, `"error"`) && !strings.Contains(text, `"isError":true`) {
					w.f.t.Errorf("%s: %s", name, text)
				}
			})
		}
	})
}

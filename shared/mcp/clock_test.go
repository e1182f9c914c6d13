package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// written is an in-memory response that records the time of each write.
type written struct {
	mu     sync.Mutex
	header http.Header
	buf    bytes.Buffer
	at     []time.Time
	takes  time.Duration // the duration of each write
}

func newWritten() *written { return &written{header: http.Header{}} }

func (w *written) Header() http.Header { return w.header }
func (w *written) WriteHeader(int)     {}
func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	takes := w.takes
	w.mu.Unlock()
	time.Sleep(takes)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = append(w.at, time.Now())
	return w.buf.Write(b)
}

// slowDown makes every following write last as long as takes.
func (w *written) slowDown(takes time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.takes = takes
}

func (w *written) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func (w *written) times() []time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.at)
}

// bubbled is a request that is served in a synctest bubble.
type bubbled struct {
	*written
	f      *fixture
	caller *revocable
	cancel context.CancelFunc // disconnects the client
	done   chan struct{}      // closed once the request has been served
	began  time.Time
	took   time.Duration
}

// inBubble serves a request in a bubble and cancels it after during has returned. The response cannot flush.
func inBubble(t *testing.T, db func() store.DB, change func(*Options), request func(*fixture) *http.Request, during func(*bubbled)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bubbled{written: newWritten(), caller: &revocable{}, done: make(chan struct{})}
		b.f = newEndpointOn(t, db(), func(o *Options) {
			b.caller.Authenticator, o.Auth = o.Auth, b.caller
			if change != nil {
				change(o)
			}
		})
		defer b.f.db.Close()
		defer b.f.tails.Close()
		req := request(b.f)
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		b.cancel, b.began = cancel, time.Now()
		go func() {
			defer close(b.done)
			routed(b.f.endpoint).ServeHTTP(b.written, req.WithContext(ctx))
			b.took = time.Since(b.began)
		}()
		synctest.Wait()
		during(b)
		cancel()
		<-b.done
	})
}

// bubble runs a subtest with [inBubble].
func bubble(t *testing.T, name string, db func() store.DB, change func(*Options), request func(*fixture) *http.Request, during func(*testing.T, *bubbled)) {
	t.Run(name, func(t *testing.T) { inBubble(t, db, change, request, func(b *bubbled) { during(t, b) }) })
}

// finished reports whether the request has been served.
func (b *bubbled) finished() bool {
	synctest.Wait()
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// revocable is an authenticator whose result can change during a test.
type revocable struct {
	auth.Authenticator
	mind atomic.Pointer[func() (auth.Principal, error)]
}

func (r *revocable) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	if says := r.mind.Load(); says != nil {
		return (*says)()
	}
	return r.Authenticator.Authenticate(ctx, h)
}

func (r *revocable) say(p auth.Principal, err error) {
	says := func() (auth.Principal, error) { return p, err }
	r.mind.Store(&says)
}

// inMemory opens a store for a bubble.
func inMemory() store.DB {
	db, err := sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1})
	if err != nil {
		panic(err)
	}
	return db
}

// listenTo returns a function that makes a listen request with the filter.
func listenTo(filter string) func(*fixture) *http.Request {
	return func(f *fixture) *http.Request {
		return f.statelessRequest(alice, spec.MethodListen, `"notifications":`+filter)
	}
}

const toCI = `{"resourceSubscriptions":["event://ci"]}`

func TestStreamClock(t *testing.T) {
	bubble(t, "SUB-07_a_comment_at_least_every_15_s_of_quiet", inMemory, nil, listenTo(toCI), func(t *testing.T, b *bubbled) {
		time.Sleep(20 * time.Second)
		b.f.publish(deploy, `{}`)
		time.Sleep(100 * time.Second)
		b.f.publishIn("elsewhere", deploy, `{}`)
		synctest.Wait()
		b.neverQuietFor(t, 15*time.Second)
		if n := strings.Count(b.text(), ": \n\n"); n < 6 || n > 8 {
			t.Errorf("got %d comments in two minutes, want 6 to 8: %q", n, b.text())
		}
		expect.Lacks(t, "SUB-10 the stream, without SSE id and retry", b.text(), "\nid:", "retry:")
	})
	withDeadline := func(f *fixture) *http.Request {
		ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
		f.t.Cleanup(cancel)
		return listenTo(`{}`)(f).WithContext(ctx)
	}
	for name, tc := range map[string]struct {
		request func(*fixture) *http.Request
		after   time.Duration
	}{
		"the_maximum_age":        {listenTo(toCI), 5 * time.Minute},
		"the_request's_deadline": {withDeadline, 55 * time.Second},
	} {
		bubble(t, "SUB-06_"+name+"_ends_it_in_time_with_its_result", inMemory, nil, tc.request, func(t *testing.T, b *bubbled) {
			if <-b.done; b.took != tc.after || b.last(t).says() != "complete" {
				t.Errorf("it ended after %v with %s, want a result after %v", b.took, b.last(t).sse.Data, tc.after)
			}
		})
	}
	bubble(t, "SUB-05_nothing_is_sent_after_the_client_went_and_what_it_held_is_free_within_a_second", inMemory, nil, listenTo(toCI), func(t *testing.T, b *bubbled) {
		held := func() [2]int64 { return [2]int64{b.f.endpoint.OpenStreams(), int64(b.f.tails.Running())} }
		time.Sleep(time.Minute)
		if got := held(); got[0] != 1 || got[1] == 0 {
			t.Errorf("got the streams and tails %v, want 1 and some", got)
		}
		b.cancel()
		time.Sleep(time.Second)
		expect.Equal(t, "the streams and tails", held(), [2]int64{})
		expect.Lacks(t, "the stream without a result", b.text(), `"result"`)
	})
	for v, ends := range map[spec.Version]bool{spec.V20251125: true, spec.V20250618: false} {
		t.Run("SES-03_whether_a_session's_stream_ends_with_an_id_and_retry_at_"+string(v), func(t *testing.T) {
			inBubble(t, inMemory, nil, func(f *fixture) *http.Request {
				return f.request("GET", alice, "", "Mcp-Session-Id: "+f.newSession(session.Session{Version: v}).ID)
			}, func(b *bubbled) {
				<-b.done
				last := b.last(t).sse
				if got := last.Retry == time.Second && last.ID != "" && len(last.Data) == 0; got != ends {
					t.Errorf("the last event is %+v, want only an id and retry: %v", last, ends)
				}
			})
		})
	}
}

// newSession creates a session for alice directly, without a request.
func (f *fixture) newSession(s session.Session) *session.Session {
	f.t.Helper()
	s.Workspace, s.Principal = auth.DefaultWorkspace, "alice"
	return expect.Value(f.endpoint.sessions.Create(f.t.Context(), s))(f.t)
}

// frames returns the messages that the stream has sent so far. Their times are right only if each write was one message.
func (w *written) frames(t testing.TB) (out []frame) {
	t.Helper()
	at, r := w.times(), sse.NewReader(strings.NewReader(w.text()), 1<<20)
	for e, err := r.Next(); err == nil; e, err = r.Next() {
		m := decodeFrame(t, e)
		m.at = at[len(out)]
		out = append(out, m)
	}
	return out
}

// last returns the stream's last message.
func (w *written) last(t testing.TB) (m frame) {
	t.Helper()
	for _, m = range w.frames(t) {
	}
	return m
}

// neverQuietFor checks that at most this much time passed between two writes.
func (w *written) neverQuietFor(t testing.TB, most time.Duration) {
	t.Helper()
	at := w.times()
	for i := 1; i < len(at); i++ {
		expect.AtMost(t, "the time between two writes", at[i].Sub(at[i-1]), most)
	}
}

// several opens a store whose log has several writers and must be polled, like the log in DynamoDB.
func several() store.DB { return storetest.Unordered{DB: inMemory()} }

// TestUnsubscribedIsSilent publishes an event right after an unsubscribe, before the stream has been notified of it.
func TestUnsubscribedIsSilent(t *testing.T) {
	for name, dialect := range map[string]bool{"EVS-06_a_session's_stream": false, "SSE-04_a_stream_of_the_dialect": true} {
		t.Run(name, func(t *testing.T) {
			var s *session.Session
			inBubble(t, several, nil, func(f *fixture) *http.Request {
				s = f.newSession(session.Session{Version: spec.V20251125, Dialect: dialect})
				for _, uri := range []string{"event://ci/deploy", "event://ci/build-finished"} {
					expect.OK(f.t, expect.ErrOf(f.endpoint.sessions.Subscribe(f.t.Context(), s, session.URI{URI: uri})))
				}
				req := f.request("GET", alice, "", "Mcp-Session-Id: "+s.ID)
				if dialect {
					req.URL.Path = dialectPath
				}
				return req
			}, func(b *bubbled) {
				time.Sleep(10 * time.Second)
				b.f.publish(deploy, `{"n":1}`)
				time.Sleep(10 * time.Second)
				expect.OK(b.f.t, b.f.endpoint.sessions.Unsubscribe(b.f.t.Context(), s, deploy))
				b.f.publish(deploy, `{"n":2}`)
				b.f.publish("event://ci/build-finished", `{"n":3}`)
				<-b.done
				if text := b.text(); !strings.Contains(text, `{"n":1}`) || strings.Contains(text, `{"n":2}`) || !strings.Contains(text, `{"n":3}`) {
					t.Errorf("got %s, want the events 1 and 3 and not 2", text)
				}
			})
		})
	}
}

// endings maps each requirement and framing to a check that the server has ended the stream properly.
var endings = map[string]struct {
	framing
	ended func(w *written, t *testing.T) bool
}{
	"AUT-04 listen":               {byListen, completed},
	"AUT-04 GET":                  {bySession, says("retry: ")},
	"AUT-04 the dialect's GET":    {byDialect, says(`{"reason":"revoked"}`)},
	"AUT-04 EVX-17 events/stream": {byType, terminated},
}

func says(end string) func(*written, *testing.T) bool {
	return func(w *written, _ *testing.T) bool { return strings.Contains(w.text(), end) }
}

// completed reports whether a stream ended with the result of request 1.
func completed(w *written, t *testing.T) bool {
	return string(w.last(t).ID) == "1" && w.last(t).says() == "complete"
}

// terminated reports whether a stream ended with a termination notice and then the result.
func terminated(w *written, t *testing.T) bool {
	all := w.frames(t)
	if len(all) < 3 || !completed(w, t) { // The first message is notifications/events/active.
		return false
	}
	notice := all[len(all)-2]
	return notice.Method == spec.NoteEventsTerminated && notice.Params.Error != nil && notice.Params.Error.Code == method.Codes[spec.Released]["Forbidden"]
}

// served serves a request without a network connection. The request must succeed.
func (f *fixture) served(r *http.Request) *httptest.ResponseRecorder {
	f.t.Helper()
	w := httptest.NewRecorder()
	if routed(f.endpoint).ServeHTTP(w, r); w.Code != http.StatusOK || strings.Contains(w.Body.String(), `"error"`) {
		f.t.Fatalf("got status %d: %s, want 200 without an error", w.Code, w.Body)
	}
	return w
}

// TestCredentialsOfOpenStreams revokes credentials or scopes while a stream is open.
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
	for name, o := range endings {
		uris := []string{"event://ci", "event://billing/invoice"}
		if o.name == byType.name {
			uris = []string{deploy}
		}
		for mind, change := range minds {
			t.Run(name+" ends: "+mind, func(t *testing.T) {
				inBubble(t, inMemory, nil, o.opening(uris...), func(b *bubbled) {
					time.Sleep(time.Minute)
					expect.True(t, "it is open before anything was taken away", !b.finished())
					change(b.caller)
					time.Sleep(heartbeat + time.Second)
					if !b.finished() || !o.ended(b.written, t) {
						t.Errorf("a quiet stream: ended %v, want true and its last message: %s", b.finished(), b.text())
					}
				})
				inBubble(t, inMemory, nil, o.opening(uris...), func(b *bubbled) {
					change(b.caller)
					for range 20 { // more often than heartbeats are due
						b.f.publish(deploy, `{"secret":true}`)
						time.Sleep(time.Second)
					}
					if n := strings.Count(b.text(), o.payload+`{"secret"`); !b.finished() || n < 1 || n > 15 || !o.ended(b.written, t) {
						t.Errorf("a busy stream: ended %v, after %d events, want 1 to 15: %s", b.finished(), n, b.text())
					}
				})
			})
		}
		if len(uris) > 1 {
			bubble(t, name+" sends no more of what a scope was for", inMemory, nil, o.opening(uris...), func(t *testing.T, b *bubbled) {
				b.f.publish("event://billing/invoice", `{"n":"first"}`)
				time.Sleep(2 * time.Second)
				withoutScope(b.caller)
				time.Sleep(heartbeat)
				b.f.publish("event://billing/invoice", `{"n":"second"}`)
				b.f.publish(deploy, `{"n":"third"}`)
				time.Sleep(2 * time.Second)
				if text := b.text(); b.finished() || !strings.Contains(text, "first") || strings.Contains(text, "second") || !strings.Contains(text, "third") {
					t.Errorf("ended %v: got %s, want the first and the third event", b.finished(), text)
				}
			})
		}
		bubble(t, name+" stays while credentials cannot be looked at", inMemory, nil, o.opening(uris...), func(t *testing.T, b *bubbled) {
			b.caller.say(auth.Principal{}, fault.New(fault.Unavailable, "no answer"))
			time.Sleep(2 * time.Minute)
			b.f.publish(deploy, `{"n":"still"}`)
			time.Sleep(2 * time.Second)
			if b.finished() || !strings.Contains(b.text(), "still") {
				t.Errorf("ended %v: got %s, want an open stream with the event", b.finished(), b.text())
			}
		})
	}
	bubble(t, "AUT-04 EVX-17 events/stream ends without the scope that its event type needs", inMemory, nil, byType.opening("event://billing/invoice"), func(t *testing.T, b *bubbled) {
		b.f.publish("event://billing/invoice", `{"n":"first"}`)
		time.Sleep(time.Minute)
		if b.finished() || !strings.Contains(b.text(), "first") {
			t.Errorf("before anything was taken away: ended %v, want false and the event: %s", b.finished(), b.text())
		}
		withoutScope(b.caller)
		time.Sleep(heartbeat + time.Second)
		if !b.finished() || !terminated(b.written, t) {
			t.Errorf("ended %v, want true and a termination: %s", b.finished(), b.text())
		}
	})
}

// watchingGateway sends a state of a task every second. Only principals with the scope billing see the backend of the task.
type watchingGateway struct{ *fakeGateway }

func (watchingGateway) Backends(_ context.Context, p auth.Principal) []string {
	if p.Has("billing") {
		return []string{"b"}
	}
	return nil
}

func (watchingGateway) WatchTasks(ctx context.Context, _ api.Client, ids []string) ([]string, <-chan *api.Task, error) {
	states := make(chan *api.Task)
	go func() {
		defer close(states)
		for periodic.Sleep(ctx, time.Second) == nil {
			select {
			case states <- &api.Task{Backend: "b", Params: json.RawMessage(`{"taskId":"t","status":"working"}`)}:
			case <-ctx.Done():
			}
		}
	}()
	return ids, states, nil
}

// TestCredentialsOfWatchedTasks revokes credentials or scopes while states of a task arrive more often than heartbeats are due.
func TestCredentialsOfWatchedTasks(t *testing.T) {
	for name, tc := range map[string]struct {
		now  auth.Principal
		err  error
		ends bool
	}{
		"AUT-04 GWN-23 revoked credentials end the listen": {auth.Principal{}, auth.ErrNoToken, true},
		"GWN-23 no states arrive from a backend that the caller may no longer see": {
			auth.Principal{ID: "billing", Workspace: "default", Scopes: auth.Scopes()}, nil, false,
		},
	} {
		bubble(t, name, inMemory, func(o *Options) { o.Gateway = watchingGateway{newFakeGateway()} }, func(f *fixture) *http.Request {
			return f.statelessRequest(billing, spec.MethodListen, `"notifications":{"taskIds":["t"]}`)
		}, func(t *testing.T, b *bubbled) {
			states := func() int { return strings.Count(b.text(), `"`+spec.NoteTasks+`"`) }
			time.Sleep(10*time.Second + time.Millisecond)
			expect.Equal(t, "states", states(), 10)
			expect.Equal(t, "SUB-08: cursors, with that of the acknowledgment", strings.Count(b.text(), spec.MetaCursor), 11)
			b.caller.say(tc.now, tc.err)
			time.Sleep(time.Minute)
			expect.AtMost(t, "the states", states(), 10+15)
			expect.Equal(t, "the end of the stream", b.finished(), tc.ends)
		})
	}
}

// giveUpOrder makes ci.deploy an unordered event type. If announced is set, it also announces the change, and the streams
// notice it three seconds later.
func (b *bubbled) giveUpOrder(announced bool) {
	b.f.changeCatalog("  - name: ci.deploy\n", "  - name: ci.deploy\n    order: none\n")
	if announced {
		b.f.announceCatalog()
	}
}

// An event type becomes unordered while clients read it. In stores whose log has several writers, its events then go to
// other partitions of the log. Clients must still get all events, and so must clients that resume.
func TestAnEventTypeGivesUpItsOrderWhileClientsReadIt(t *testing.T) {
	for name, tc := range map[string]struct {
		framing
		announced bool // A listen learns of changes only from announcements.
	}{
		"EVX-06 events/stream, announced": {byType, true}, "EVX-06 events/stream, found by a heartbeat": {byType, false}, "SUB-08 a listen, announced": {byListen, true},
	} {
		bubble(t, name, several, nil, tc.opening(deploy), func(t *testing.T, b *bubbled) {
			time.Sleep(time.Second)
			b.f.publish(deploy, `{"n":"before"}`)
			time.Sleep(3 * time.Second)
			b.giveUpOrder(tc.announced)
			b.f.publish(deploy, `{"n":"at the change"}`)
			time.Sleep(40 * time.Second)
			b.f.publish(deploy, `{"n":"after"}`)
			time.Sleep(2 * time.Minute)
			for _, want := range []string{`"before"`, `"at the change"`, `"after"`} {
				expect.Contains(t, "the stream", b.text(), want)
			}
		})
	}

	waitIn(t, "RCH-04 wait_for_event", several, time.Hour, aWait(false, 0, `,"seconds":600`), func(t *testing.T, b *bubbled) {
		time.Sleep(time.Minute)
		b.giveUpOrder(false)
		b.f.publish(deploy, `{"n":1}`)
		got, _ := b.events()
		expect.List(t, "the events", got.data(), []string{`{"n":1}`})
		expect.AtMost(t, "the time", b.took, time.Minute+10*time.Second)
	})

	waitIn(t, "RCH-04 wait_for_event that ends right after the change, and the next call", several, time.Hour, aWait(false, 0, `,"seconds":12`), func(t *testing.T, b *bubbled) {
		time.Sleep(11 * time.Second)
		b.giveUpOrder(false)
		b.f.publish(deploy, `{"n":1}`)
		got, _ := b.events()
		next := b.recent(got.Subscription)
		expect.Deep(t, "the events of the wait and the next call", append(got.data(), next.data()...), []string{`{"n":1}`})
	})
}

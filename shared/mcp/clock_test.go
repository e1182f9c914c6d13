package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// written is an in-memory response that tells when it was written to.
type written struct {
	mu     sync.Mutex
	header http.Header
	buf    bytes.Buffer
	at     []time.Time
	takes  time.Duration // for a write
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

// slowDown makes every write take a time.
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
	cancel context.CancelFunc // the client goes away
	done   chan struct{}      // closed when it has been served
	began  time.Time
	took   time.Duration
}

// inBubble serves a request over a response that cannot flush, and ends it after during.
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

// finished says whether the request has been served.
func (b *bubbled) finished() bool {
	synctest.Wait()
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

func inMemory() store.DB { return newMemory() }

// listenTo makes a listen with the filter.
func listenTo(filter string) func(*fixture) *http.Request {
	return func(f *fixture) *http.Request {
		return f.statelessRequest(alice, spec.MethodListen, `"notifications":`+filter)
	}
}

const toCI = `{"resourceSubscriptions":["event://ci"]}`

func TestStreamClock(t *testing.T) {
	t.Run("SUB-07_a_comment_at_least_every_15_s_of_quiet", func(t *testing.T) {
		inBubble(t, inMemory, nil, listenTo(toCI), func(b *bubbled) {
			time.Sleep(20 * time.Second)
			b.f.publish("event://ci/deploy", `{}`)
			time.Sleep(100 * time.Second)
			b.f.publishIn("elsewhere", "event://ci/deploy", `{}`)
			synctest.Wait()
			at := b.times()
			for i := 1; i < len(at); i++ {
				if d := at[i].Sub(at[i-1]); d > 15*time.Second {
					t.Errorf("%v of quiet", d)
				}
			}
			comments := strings.Count(b.text(), ": \n\n")
			if comments < 6 || comments > 8 {
				t.Errorf("%d comments in two minutes: %q", comments, b.text())
			}
			if strings.Contains(b.text(), "\nid:") || strings.Contains(b.text(), "retry:") {
				t.Error("SUB-10: an SSE id or retry")
			}
		})
	})
	t.Run("SUB-06_the_maximum_age_ends_it_with_its_result", func(t *testing.T) {
		inBubble(t, inMemory, nil, listenTo(toCI), func(b *bubbled) {
			<-b.done
			frames := frames(t, b.text())
			if last := frames[len(frames)-1]; b.took != 5*time.Minute || last.Result.ResultType != "complete" {
				t.Errorf("it ended after %v with %s", b.took, last.sse.Data)
			}
		})
	})
	t.Run("SUB-06_the_request's_deadline_ends_it_in_time", func(t *testing.T) {
		inBubble(t, inMemory, nil, func(f *fixture) *http.Request {
			ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
			f.t.Cleanup(cancel)
			return listenTo(`{}`)(f).WithContext(ctx)
		}, func(b *bubbled) {
			if <-b.done; b.took != 55*time.Second || !strings.Contains(b.text(), `"resultType":"complete"`) {
				t.Errorf("after %v: %s", b.took, b.text())
			}
		})
	})
	t.Run("SUB-05_nothing_is_sent_after_the_client_went_and_what_it_held_is_free_within_a_second", func(t *testing.T) {
		inBubble(t, inMemory, nil, listenTo(toCI), func(b *bubbled) {
			time.Sleep(time.Minute)
			if b.f.endpoint.OpenStreams() != 1 || b.f.tails.Running() == 0 {
				t.Errorf("%d streams, %d tails", b.f.endpoint.OpenStreams(), b.f.tails.Running())
			}
			b.cancel()
			time.Sleep(time.Second)
			if b.f.endpoint.OpenStreams() != 0 || b.f.tails.Running() != 0 || strings.Contains(b.text(), `"result"`) {
				t.Errorf("a second later %d streams, %d tails, and %s", b.f.endpoint.OpenStreams(), b.f.tails.Running(), b.text())
			}
		})
	})
	for v, ends := range map[spec.Version]bool{spec.V20251125: true, spec.V20250618: false} {
		t.Run("SES-03_whether_a_session's_stream_ends_with_an_id_and_retry_at_"+string(v), func(t *testing.T) {
			inBubble(t, inMemory, nil, func(f *fixture) *http.Request {
				return f.request("GET", alice, "", "Mcp-Session-Id: "+f.newSession(session.Session{Version: v}).ID)
			}, func(b *bubbled) {
				<-b.done
				var last sse.Event
				r := sse.NewReader(strings.NewReader(b.text()), 1<<20)
				for e, err := r.Next(); err == nil; e, err = r.Next() {
					last = e
				}
				if got := last.Retry == time.Second && last.ID != "" && len(last.Data) == 0; got != ends {
					t.Errorf("the last event is %+v", last)
				}
			})
		})
	}
}

// newSession begins one of alice's without a request.
func (f *fixture) newSession(s session.Session) *session.Session {
	f.t.Helper()
	s.Workspace, s.Principal = auth.DefaultWorkspace, "alice"
	made, err := f.endpoint.sessions.Create(f.t.Context(), s)
	must(f.t, err)
	return made
}

// frames takes the messages of a stream apart.
func frames(t testing.TB, text string) (out []frame) {
	t.Helper()
	r := sse.NewReader(strings.NewReader(text), 1<<20)
	for {
		e, err := r.Next()
		if err != nil {
			return out
		}
		var m frame
		if err := json.Unmarshal(e.Data, &m); err != nil {
			t.Fatalf("%q: %v", e.Data, err)
		}
		m.sse = e
		out = append(out, m)
	}
}

// unordered is a store whose log has several writers and is polled, as DynamoDB's.
type unordered struct{ *memory }

func (unordered) Stamps() bool { return false }
func (unordered) Local() bool  { return false }

// several is such a store.
func several() store.DB { return unordered{newMemory()} }

// TestUnsubscribedIsSilent publishes after an unsubscribe of which no notice has come.
func TestUnsubscribedIsSilent(t *testing.T) {
	for name, dialect := range map[string]bool{"EVS-06_a_session's_stream": false, "SSE-04_a_stream_of_the_dialect": true} {
		t.Run(name, func(t *testing.T) {
			var s *session.Session
			inBubble(t, several, nil, func(f *fixture) *http.Request {
				s = f.newSession(session.Session{Version: spec.V20251125, Dialect: dialect})
				for _, uri := range []string{"event://ci/deploy", "event://ci/build-finished"} {
					must(f.t, f.endpoint.sessions.Subscribe(f.t.Context(), s, session.URI{URI: uri}))
				}
				req := f.request("GET", alice, "", "Mcp-Session-Id: "+s.ID)
				if dialect {
					req.URL.Path = dialectPath
				}
				return req
			}, func(b *bubbled) {
				time.Sleep(10 * time.Second)
				b.f.publish("event://ci/deploy", `{"n":1}`)
				time.Sleep(10 * time.Second)
				must(b.f.t, b.f.endpoint.sessions.Unsubscribe(b.f.t.Context(), s, "event://ci/deploy"))
				b.f.publish("event://ci/deploy", `{"n":2}`)
				b.f.publish("event://ci/build-finished", `{"n":3}`)
				<-b.done
				if text := b.text(); !strings.Contains(text, `{"n":1}`) || strings.Contains(text, `{"n":2}`) || !strings.Contains(text, `{"n":3}`) {
					t.Errorf("got %s", text)
				}
			})
		})
	}
}

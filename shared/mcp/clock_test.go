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

	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/sse"
)

// written is an in-memory response that tells when it was written to.
type written struct {
	mu     sync.Mutex
	header http.Header
	buf    bytes.Buffer
	at     []time.Time
}

func (w *written) Header() http.Header { return w.header }
func (w *written) WriteHeader(int)     {}
func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at = append(w.at, time.Now())
	return w.buf.Write(b)
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

// inBubble serves one stream over a response that cannot flush, in a synctest bubble.
func inBubble(t *testing.T, change func(*Options), serve func(f *fixture, w *written, finished <-chan struct{})) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newEndpointOn(t, newMemory(), change)
		w := &written{header: http.Header{}}
		finished := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		body := modernBody("1", mcpspec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci"]}`)
		req := f.request("POST", alice, body, modernHeaders(mcpspec.MethodListen, "")...).WithContext(ctx)
		go func() {
			defer close(finished)
			f.endpoint.ServeHTTP(w, req)
		}()
		synctest.Wait()
		serve(f, w, finished)
		cancel()
		<-finished
		f.tails.Close()
	})
}

func TestStreamClock(t *testing.T) {
	t.Run("SUB-07_a_comment_at_least_every_15_s_of_quiet", func(t *testing.T) {
		inBubble(t, nil, func(f *fixture, w *written, _ <-chan struct{}) {
			time.Sleep(20 * time.Second)
			f.publish("event://ci/deploy", `{}`)
			time.Sleep(100 * time.Second)
			f.publishIn("elsewhere", "event://ci/deploy", `{}`)
			synctest.Wait()
			at := w.times()
			for i := 1; i < len(at); i++ {
				if d := at[i].Sub(at[i-1]); d > 15*time.Second {
					t.Errorf("%v of quiet", d)
				}
			}
			comments := strings.Count(w.text(), ": \n\n")
			if comments < 6 || comments > 8 {
				t.Errorf("%d comments in two minutes: %q", comments, w.text())
			}
			if strings.Contains(w.text(), "\nid:") || strings.Contains(w.text(), "retry:") {
				t.Error("SUB-10: an SSE id or retry")
			}
		})
	})
	t.Run("SUB-06_the_maximum_age_ends_it_with_its_result", func(t *testing.T) {
		inBubble(t, nil, func(_ *fixture, w *written, finished <-chan struct{}) {
			began := time.Now()
			<-finished
			if d := time.Since(began); d != 5*time.Minute {
				t.Errorf("it ended after %v", d)
			}
			frames := frames(t, w.text())
			if last := frames[len(frames)-1]; last.Result.ResultType != "complete" {
				t.Errorf("the last message is %s", last.sse.Data)
			}
		})
	})
	t.Run("SUB-06_the_request's_deadline_ends_it_in_time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newEndpointOn(t, newMemory(), nil)
			defer f.tails.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			w := &written{header: http.Header{}}
			began := time.Now()
			f.endpoint.ServeHTTP(w, f.request("POST", alice, modernBody("1", mcpspec.MethodListen, `"notifications":{}`), modernHeaders(mcpspec.MethodListen, "")...).WithContext(ctx))
			if d := time.Since(began); d != 55*time.Second || !strings.Contains(w.text(), `"resultType":"complete"`) {
				t.Errorf("after %v: %s", d, w.text())
			}
		})
	})
	t.Run("SUB-05_nothing_is_sent_after_the_client_went", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newEndpointOn(t, newMemory(), nil)
			defer f.tails.Close()
			ctx, cancel := context.WithCancel(t.Context())
			w := &written{header: http.Header{}}
			time.AfterFunc(time.Second, cancel)
			f.endpoint.ServeHTTP(w, f.request("POST", alice, modernBody("1", mcpspec.MethodListen, `"notifications":{}`), modernHeaders(mcpspec.MethodListen, "")...).WithContext(ctx))
			if strings.Contains(w.text(), `"result"`) {
				t.Errorf("got %s", w.text())
			}
		})
	})
	t.Run("SUB-05_what_it_held_is_free_within_a_second", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newEndpointOn(t, newMemory(), nil)
			defer f.tails.Close()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				f.endpoint.ServeHTTP(&written{header: http.Header{}}, f.request("POST", alice, modernBody("1", mcpspec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci"]}`), modernHeaders(mcpspec.MethodListen, "")...).WithContext(ctx))
			}()
			time.Sleep(time.Minute)
			if f.endpoint.OpenStreams() != 1 || f.tails.Running() == 0 {
				t.Errorf("%d streams, %d tails", f.endpoint.OpenStreams(), f.tails.Running())
			}
			cancel()
			time.Sleep(time.Second)
			if f.endpoint.OpenStreams() != 0 || f.tails.Running() != 0 {
				t.Errorf("a second later %d streams, %d tails", f.endpoint.OpenStreams(), f.tails.Running())
			}
			<-ended
		})
	})
	t.Run("SES-03_a_session's_stream_ends_with_an_id_and_retry", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := newEndpointOn(t, newMemory(), nil)
			defer f.tails.Close()
			for v, ends := range map[mcpspec.Version]bool{mcpspec.V20251125: true, mcpspec.V20250618: false} {
				sess, err := f.endpoint.sessions.Create(t.Context(), session.Session{Workspace: "default", Principal: "alice", Version: v})
				must(t, err)
				w := &written{header: http.Header{}}
				f.endpoint.ServeHTTP(w, f.request("GET", alice, "", "Mcp-Session-Id: "+sess.ID))
				var last sse.Event
				r := sse.NewReader(strings.NewReader(w.text()), 1<<20)
				for {
					e, err := r.Next()
					if err != nil {
						break
					}
					last = e
				}
				if got := last.Retry == time.Second && last.ID != "" && len(last.Data) == 0; got != ends {
					t.Errorf("%s: the last event is %+v", v, last)
				}
			}
		})
	})
}

// frames takes the messages of a stream apart.
func frames(t *testing.T, text string) (out []frame) {
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

func (unordered) Ordered() bool { return false }

// TestUnsubscribedIsSilent publishes after an unsubscribe of which no notice has come.
func TestUnsubscribedIsSilent(t *testing.T) {
	for name, workspace := range map[string]string{"EVS-06_a_session's_stream": "", "SSE-04_a_stream_of_the_dialect": "default"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newEndpointOn(t, unordered{newMemory()}, nil)
				defer f.tails.Close()
				ctx := t.Context()
				sess, err := f.endpoint.sessions.Create(ctx, session.Session{Workspace: "default", Principal: "alice", Version: mcpspec.V20251125, Dialect: workspace != ""})
				must(t, err)
				for _, uri := range []string{"event://ci/deploy", "event://ci/build-finished"} {
					must(t, f.endpoint.sessions.Subscribe(ctx, sess, session.URI{URI: uri}))
				}
				req := f.request("GET", alice, "", "Mcp-Session-Id: "+sess.ID)
				if workspace != "" {
					req.SetPathValue(PathWorkspace, workspace)
				}
				w := &written{header: http.Header{}}
				finished := make(chan struct{})
				go func() {
					defer close(finished)
					f.endpoint.ServeHTTP(w, req)
				}()
				time.Sleep(10 * time.Second)
				f.publish("event://ci/deploy", `{"n":1}`)
				time.Sleep(10 * time.Second)
				must(t, f.endpoint.sessions.Unsubscribe(ctx, sess, "event://ci/deploy"))
				f.publish("event://ci/deploy", `{"n":2}`)
				f.publish("event://ci/build-finished", `{"n":3}`)
				<-finished
				text := w.text()
				if !strings.Contains(text, `{"n":1}`) || strings.Contains(text, `{"n":2}`) || !strings.Contains(text, `{"n":3}`) {
					t.Errorf("got %s", text)
				}
			})
		})
	}
}

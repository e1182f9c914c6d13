package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// sends writes notifications to a stream.
func sends(w http.ResponseWriter, messages ...string) string {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, m := range messages {
		fmt.Fprintf(w, "data: %s\n\n", m)
	}
	w.(http.Flusher).Flush()
	return ""
}

func note(kind, params string) string {
	return `{"jsonrpc":"2.0","method":"notifications/events/` + kind + `","params":` + params + `}`
}

// receive subscribes, and returns when the subscription has ended. It returns nil if the context ends before the server accepts.
func receive(ctx context.Context, c *client.Client, o client.SubscribeOptions) error {
	sub, err := c.Subscribe(ctx, o)
	switch {
	case err != nil && errors.Is(err, ctx.Err()):
		return nil
	case err != nil:
		return err
	}
	<-sub.Done()
	return sub.Err()
}

func cursorOf(t *testing.T, params json.RawMessage) any {
	t.Helper()
	var p struct{ Cursor any }
	expect.OK(t, json.Unmarshal(params, &p))
	return p.Cursor
}

// asked checks the cursors of all requests of a method.
func (s *script) asked(t *testing.T, method string, want ...any) {
	t.Helper()
	for n, params := range s.params(method) {
		if got := cursorOf(t, params); n >= len(want) || got != want[n] {
			t.Errorf("request %d asked from %v, want of all requests %v", n+1, got, want)
		}
	}
}

// makePage returns the result of a poll with the events e<from> to e<to-1>, followed by the other members.
func makePage(from, to int, members string) string {
	var events []string
	for i := from; i < to; i++ {
		events = append(events, occurrence("e"+strconv.Itoa(i)))
	}
	return `{"events":[` + strings.Join(events, ",") + `],` + members + `}`
}

func TestPush(t *testing.T) {
	t.Parallel()
	t.Run("RCH-01 gaps, heartbeats and the end of a stream move the cursor", func(t *testing.T) {
		s := newScript(t, "events/stream", func(n int, w http.ResponseWriter) string {
			switch n {
			case 1:
				return sends(w, note("active", `{"cursor":"c1","truncated":false}`), note("event", occurrence("e1")),
					note("error", `{"error":{"code":-32603,"message":"upstream"}}`), "nonsense", note("active", `{"cursor":"c2","truncated":true}`))
			case 2:
				return sends(w, note("active", `{"cursor":"c3"}`), note("event", occurrence("e1")), note("event", occurrence("e2")), note("heartbeat", `{"cursor":"c4"}`))
			}
			return sends(w, note("terminated", `{"error":{"code":-32012,"message":"Forbidden"}}`))
		})
		store := client.File(t.TempDir() + "/cursor")
		p := run(t, s.URL, client.ModePush, func(p *program) { p.o.Store = store })
		p.begins()
		p.handles("e1", "e2")
		expect.Equal(t, "the cursor of the gap", take(t, p.gaps, nil).Cursor, "c2")
		isTerminated(t, take(t, p.ended, nil))
		s.asked(t, "events/stream", nil, "c2", "c4")
		expect.Equal(t, "the saved cursor", expect.Value(store.Load(t.Context(), ""))(t), "c4")
	})
}

func TestPoll(t *testing.T) {
	t.Parallel()
	t.Run("RCH-01 pages are handled in order, and gaps and refusals are values", func(t *testing.T) {
		var times []time.Time
		s := newScript(t, "events/poll", func(n int, _ http.ResponseWriter) string {
			times = append(times, time.Now())
			switch n {
			case 1:
				return `{"events":[],"cursor":"c1","nextPollMs":0}`
			case 2:
				return `{"events":[` + occurrence("e1") + `,` + occurrence("e2") + `],"cursor":"c2","hasMore":true,"nextPollMs":99999}`
			case 3: // hasMore with an unchanged cursor must not make the client hurry
				return `{"events":[],"cursor":"c2","hasMore":true,"truncated":true}`
			}
			return `{"code":-32023,"message":"NotFound"}`
		})
		store := client.File(t.TempDir() + "/cursor")
		p := run(t, s.URL, client.ModePoll, func(p *program) { p.o.Store, p.o.MinPoll = store, 100*time.Millisecond })
		p.begins()
		for _, want := range []string{"e1", "e2"} {
			expect.Equal(t, "the event", take(t, p.got, nil), want)
		}
		expect.Equal(t, "the cursor of the gap", take(t, p.gaps, nil).Cursor, "c2")
		if err := take(t, p.ended, nil); !errors.As(err, new(*client.Terminated)) {
			t.Errorf("ended by %v", err)
		}
		s.asked(t, "events/poll", nil, "c1", "c2", "c2")
		if times[1].Sub(times[0]) < 100*time.Millisecond || times[3].Sub(times[2]) < 100*time.Millisecond {
			t.Errorf("polled at %v", times)
		}
	})
	t.Run("RCH-01 empty pages that announce more are followed by the next poll immediately", func(t *testing.T) {
		s := newScript(t, "events/poll", func(n int, _ http.ResponseWriter) string {
			if n < 5 {
				return fmt.Sprintf(`{"events":[],"cursor":"c%d","hasMore":true,"nextPollMs":3600000}`, n)
			}
			return `{"events":[` + occurrence("e1") + `],"cursor":"c5","nextPollMs":3600000}`
		})
		p := run(t, s.URL, client.ModePoll, nil)
		p.handles("e1")
		p.ends()
		expect.Equal(t, "polls", len(s.params("events/poll")), 5)
	})
	t.Run("RCH-01 a page that a proxy answers for a moment does not end the subscription", func(t *testing.T) {
		for _, status := range []int{http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusRequestTimeout, http.StatusTooEarly} {
			t.Run(strconv.Itoa(status), func(t *testing.T) {
				t.Parallel()
				s := newScript(t, "events/poll", func(n int, w http.ResponseWriter) string {
					switch n {
					case 1:
						return `{"events":[],"cursor":"c1"}`
					case 2:
						w.Header().Set("Content-Type", "text/html")
						w.WriteHeader(status)
						fmt.Fprint(w, "<html>no backend</html>")
						return ""
					}
					return `{"events":[` + occurrence("e1") + `],"cursor":"c2"}`
				})
				p := run(t, s.URL, client.ModePoll, nil)
				p.handles("e1")
				p.ends()
			})
		}
	})
	t.Run("RCH-01 a page instead of the first answer is an error, because the URL may be wrong", func(t *testing.T) {
		s := newScript(t, "events/poll", func(_ int, w http.ResponseWriter) string {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, "<html>not here</html>")
			return ""
		})
		p := run(t, s.URL, client.ModePoll, nil)
		expect.Fault(t, "the end", take(t, p.ended, nil), fault.NotFound)
	})
	t.Run("RCH-01 the last ten thousand events are recognized when they arrive again", func(t *testing.T) {
		const first, all = 5000, 10_001
		s := newScript(t, "events/poll", func(n int, _ http.ResponseWriter) string {
			switch n {
			case 1:
				return makePage(0, first, `"cursor":"a","hasMore":true`)
			case 2:
				return makePage(first, all, `"cursor":"b","hasMore":true`)
			case 3:
				return makePage(all-10_000, first, `"cursor":"c","hasMore":true`)
			}
			return `{"events":[` + occurrence("last") + `],"cursor":"d"}`
		})
		handled, last := map[string]int{}, make(chan string, 1)
		p := run(t, s.URL, client.ModePoll, func(p *program) {
			p.sub.Event = func(_ context.Context, e client.Event) error {
				if handled[e.ID]++; e.ID == "last" {
					last <- e.ID
				}
				return nil
			}
		})
		take(t, last, p.ended)
		p.ends()
		expect.AtMost(t, "the most times that an event was handled", slices.Max(slices.Collect(maps.Values(handled))), 1)
		expect.Equal(t, "the number of handled events", len(handled), all+1)
	})
	t.Run("RCH-01 events of different URIs, or published at different times, with one id are all handled", func(t *testing.T) {
		event := func(uri, at string) string {
			return `{"eventId":"e1","name":"order.shipped","timestamp":"` + at + `","data":{},"_meta":{"io.github.mcp-events/uri":"` + uri + `"}}`
		}
		const early, late = "2026-11-21T09:24:00Z", "2026-11-21T09:34:00Z"
		s := newScript(t, "events/poll", func(n int, _ http.ResponseWriter) string {
			if n == 1 {
				return `{"events":[` + strings.Join([]string{
					event("event://orders/1/shipped", early), event("event://orders/2/shipped", early), event("event://orders/1/shipped", late),
					event("event://orders/2/shipped", early), // again
				}, ",") + `],"cursor":"a","hasMore":true}`
			}
			return `{"events":[` + occurrence("last") + `],"cursor":"b"}`
		})
		var handled []string
		last := make(chan string, 1)
		p := run(t, s.URL, client.ModePoll, func(p *program) {
			p.sub.Event = func(_ context.Context, e client.Event) error {
				if e.ID == "last" {
					last <- e.ID
					return nil
				}
				handled = append(handled, e.URI+" "+e.Time)
				return nil
			}
		})
		take(t, last, p.ended)
		p.ends()
		want := []string{"event://orders/1/shipped " + early, "event://orders/2/shipped " + early, "event://orders/1/shipped " + late}
		expect.List(t, "the handled events", handled, want)
	})
	t.Run("RCH-01 a refusal of the first request is not a termination", func(t *testing.T) {
		s := newScript(t, "events/poll", func(int, http.ResponseWriter) string {
			return `{"code":-32011,"message":"NotFound"}`
		})
		p := run(t, s.URL, client.ModePoll, nil)
		if err := take(t, p.ended, nil); err == nil || errors.As(err, new(*client.Terminated)) {
			t.Errorf("ended by %v", err)
		}
	})
}

func TestAnEventThatIsNotAcknowledgedBoundsHowManyLaterOnesAreHandled(t *testing.T) {
	t.Parallel()
	const most, last = 1000, 2500
	s := newScript(t, "events/poll", func(n int, _ http.ResponseWriter) string {
		return makePage((n-1)*100, min(n*100, last+1), fmt.Sprintf(`"cursor":"c%d","hasMore":%t`, n, n*100 <= last))
	})
	older, logged := make(chan struct{}), make(chan string, 100)
	var handled atomic.Int32
	all := make(chan struct{})
	p := run(t, s.URL, client.ModePoll, func(p *program) {
		p.o.Log = slog.New(slog.NewTextHandler(lines(logged), nil))
		p.sub.Concurrency = 2
		p.sub.Event = func(ctx context.Context, e client.Event) error {
			if e.ID == "e0" {
				<-older
			}
			if handled.Add(1) == last+1 {
				close(all)
			}
			return nil
		}
	})
	t.Run("RCH-01 RCH-03 they wait, and the log says so", func(t *testing.T) {
		for !strings.Contains(take(t, logged, p.ended), "waiting for an older event") {
		}
		for deadline := time.Now().Add(patience); handled.Load() < most-1 && time.Now().Before(deadline); {
			runtime.Gosched() // let the running calls end
		}
		expect.Equal(t, "events handled after the one that is not acknowledged", handled.Load(), most-1)
	})
	t.Run("RCH-01 they continue when it is acknowledged", func(t *testing.T) {
		close(older)
		take(t, all, p.ended)
	})
	p.ends()
}

// lines is a writer that sends each line to a channel, and drops lines while the channel is full.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	select {
	case l <- string(b):
	default:
	}
	return len(b), nil
}

// journal is a store that checks each saved cursor against the acknowledged events.
type journal struct {
	mu     sync.Mutex
	acked  map[int]bool
	cursor int
	fault  string
}

func (j *journal) Load(context.Context, string) (string, error) { return "", nil }

func (j *journal) Save(_ context.Context, _, cursor string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if _, err := fmt.Sscanf(cursor, "after-%d", &j.cursor); err != nil {
		return nil // the cursor of the active message
	}
	for n := 1; n <= j.cursor; n++ {
		if !j.acked[n] {
			j.fault = fmt.Sprintf("cursor %d was saved before event %d was acknowledged", j.cursor, n)
		}
	}
	return nil
}

func TestTheCursorNeverPassesAnEventThatIsNotAcknowledged(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		count := rapid.IntRange(1, 30).Draw(r, "events")
		messages := []string{note("active", `{"cursor":"c0"}`)}
		takes := map[int]int{}
		for n := 1; n <= count; n++ {
			takes[n] = rapid.IntRange(0, 1000).Draw(r, "turns")
			messages = append(messages, note("event", occurrence(fmt.Sprint(n))))
		}
		s := newScript(t, "events/stream", func(n int, w http.ResponseWriter) string {
			if n > 1 {
				return sends(w, note("terminated", "{}"))
			}
			return sends(w, messages...)
		})
		defer s.Close()
		j := &journal{acked: map[int]bool{}}
		c, err := client.Connect(t.Context(), s.URL, client.Options{Store: j})
		if err != nil {
			r.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_ = receive(ctx, c, client.SubscribeOptions{
			Name: "order.shipped", Mode: client.ModePush, Concurrency: rapid.IntRange(1, 8).Draw(r, "concurrency"),
			Event: func(_ context.Context, e client.Event) error {
				var n int
				_, _ = fmt.Sscan(e.ID, &n)
				for range takes[n] {
					runtime.Gosched()
				}
				j.mu.Lock()
				j.acked[n] = true
				full := len(j.acked) == count
				j.mu.Unlock()
				if full {
					defer cancel()
				}
				return nil
			},
		})
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.fault != "" || j.cursor != count {
			r.Fatalf("RCH-01 %s; the last cursor is %d of %d", j.fault, j.cursor, count)
		}
	})
}

func TestAServerThatEndsEachSessionAtOnceIsNotAskedWithoutAPause(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := newScript(t, "events/poll", func(n int, w http.ResponseWriter) string {
		if n == 1 {
			time.AfterFunc(400*time.Millisecond, cancel)
		}
		http.Error(w, "no such session", http.StatusNotFound)
		return ""
	})
	s.answer["initialize"] = func(_ int, w http.ResponseWriter) string {
		w.Header().Set("Mcp-Session-Id", "s1")
		return `{"protocolVersion":"2025-11-25"}`
	}
	c := expect.Value(client.Connect(t.Context(), s.URL, client.Options{Revision: "2025-11-25"}))(t)
	err := receive(ctx, c, client.SubscribeOptions{Name: "order.shipped", Mode: client.ModePoll, Event: func(context.Context, client.Event) error { return nil }})
	if n := len(s.params("events/poll")); err != nil || n > 4 {
		t.Errorf("RCH-01: %d polls in 400 ms, %v", n, err)
	}
}

// first subscribes to event://a/b with a stream and returns the first event.
func first(ctx context.Context, c *client.Client) (got client.Event, err error) {
	ctx, stop := context.WithTimeout(ctx, patience)
	defer stop()
	events := make(chan client.Event, 100)
	sub, err := c.Subscribe(ctx, client.SubscribeOptions{
		URIs: []string{"event://a/b"}, Mode: client.ModePush,
		Event: func(_ context.Context, e client.Event) error { events <- e; return nil },
	})
	if err != nil {
		return got, err
	}
	defer func() { _ = sub.Close() }()
	select {
	case got = <-events:
		return got, nil
	case <-sub.Done():
		return got, sub.Err()
	case <-ctx.Done():
		return got, ctx.Err()
	}
}

// streaming returns a client of a server that answers the n-th request, from 1 on, as write does.
func streaming(t *testing.T, silence time.Duration, write func(n int, w *streamWriter)) (c *client.Client, requests *atomic.Int32) {
	t.Helper()
	requests = &atomic.Int32{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		write(int(requests.Add(1)), &streamWriter{w})
	}))
	t.Cleanup(s.Close)
	c = expect.Value(client.Connect(t.Context(), s.URL, client.Options{Agent: "test/1", Revision: string(spec.V20260728)}))(t)
	if silence > 0 {
		client.SetSilence(c, silence)
	}
	return c, requests
}

type streamWriter struct{ http.ResponseWriter }

const ofAB = `{"uri":"event://a/b","payload":1}`

func (w *streamWriter) acknowledge() {
	w.Header().Set("Content-Type", "text/event-stream")
	io.WriteString(w, `data: {"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"notifications":{"resourceSubscriptions":["event://a/b"]}}}`+"\n\n")
	w.ResponseWriter.(http.Flusher).Flush()
}

func (w *streamWriter) update(params string) {
	io.WriteString(w, `data: {"jsonrpc":"2.0","method":"notifications/resources/updated","params":`+params+`}`+"\n\n")
}

// TestAStreamThatIsSilentIsOpenedAgain uses a proxy that keeps the connection open although its server is gone.
func TestAStreamThatIsSilentIsOpenedAgain(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	c, requests := streaming(t, 50*time.Millisecond, func(n int, w *streamWriter) {
		if w.acknowledge(); n == 1 {
			<-end
			return
		}
		w.update(ofAB)
	})
	defer close(end)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := first(ctx, c); err != nil {
		t.Errorf("the stream ended with %v after %d requests, want the event of the second", err, requests.Load())
	}
}

// TestAStreamWithHeartbeatsStaysOpen sends comments as heartbeats, which do not count as events.
func TestAStreamWithHeartbeatsStaysOpen(t *testing.T) {
	t.Parallel()
	c, requests := streaming(t, 500*time.Millisecond, func(_ int, w *streamWriter) {
		w.acknowledge()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range 10 {
			<-tick.C
			io.WriteString(w, ":\n\n")
			w.ResponseWriter.(http.Flusher).Flush()
		}
		w.update(ofAB)
	})
	if _, err := first(t.Context(), c); err != nil || requests.Load() != 1 {
		t.Errorf("the stream ended with %v after %d requests, want the event of the first", err, requests.Load())
	}
}

// SUB-08: a server that cannot begin a listen at the moment says so in a response with status 200. The client tries again.
func TestAStreamThatCannotBeginNowIsTriedAgain(t *testing.T) {
	t.Parallel()
	c, requests := streaming(t, 0, func(n int, w *streamWriter) {
		if n == 1 {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"jsonrpc":"2.0","id":1,"error":{"code":%d,"message":"try again"}}`, jsonrpc.InternalError)
			return
		}
		w.acknowledge()
		w.update(ofAB)
	})
	if _, err := first(t.Context(), c); err != nil {
		t.Errorf("the stream ended with %v after %d requests, want the event of the second", err, requests.Load())
	}
}

// encoding/json ignores the case of names, so a member of another name could replace the one that we read.
func TestAStreamReadsMembersByTheirExactNames(t *testing.T) {
	t.Parallel()
	c, _ := streaming(t, 0, func(_ int, w *streamWriter) {
		w.acknowledge()
		w.update(`{"uri":"event://a/b","payload":1,"_meta":{"io.github.mcp-events/cursor":"c1"},"URI":"event://forged","Payload":2,"_META":{"io.github.mcp-events/cursor":"forged"}}`)
	})
	got := expect.Value(first(t.Context(), c))(t)
	if got.URI != "event://a/b" || string(got.Data) != "1" || got.Cursor != "c1" {
		t.Errorf("got the event of %s with data %s and cursor %s, want event://a/b, 1 and c1", got.URI, got.Data, got.Cursor)
	}
}

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

const (
	patience = 20 * time.Second
	shipped  = "event://orders/42/shipped"
)

var modes = []string{client.ModeWebhook, client.ModePush, client.ModePoll}

// home is a server that keeps its data and address across restarts.
type home struct {
	t       *testing.T
	options standalone.Options
	server  *standalone.Server
}

func newHome(t *testing.T, change func(*standalone.Options)) *home {
	t.Helper()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	_ = l.Close()
	h := &home{t: t, options: standalone.Options{
		Addr: addr, Data: t.TempDir(), Catalog: []byte(catalog), CatalogName: "catalog.yaml",
		Limits: standalone.DefaultLimits(), Log: slog.New(slog.DiscardHandler),
	}}
	h.options.Limits.AllowInsecureTargets, h.options.Limits.MinTTL = true, time.Second
	h.options.Limits.PollMin, h.options.Limits.PollMax = 100*time.Millisecond, 100*time.Millisecond
	if change != nil {
		change(&h.options)
	}
	h.start()
	t.Cleanup(h.stop)
	return h
}

func (h *home) start() {
	h.t.Helper()
	h.server = expect.Value(standalone.New(context.Background(), h.options))(h.t)
}

func (h *home) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := h.server.Shutdown(ctx); err != nil {
		h.t.Errorf("stop the server: %v", err)
	}
}

func (h *home) restart() { h.t.Helper(); h.stop(); h.start() }

func (h *home) publish(ids ...string) {
	h.t.Helper()
	for _, id := range ids {
		_, err := h.server.Publish(h.t.Context(), "default", standalone.Event{ID: id, URI: shipped, Data: json.RawMessage(`{"id":"` + id + `"}`)})
		expect.OK(h.t, err)
	}
}

// program is one run of a program that subscribes.
type program struct {
	t       *testing.T
	url     string
	o       client.Options
	sub     client.SubscribeOptions
	known   []string // events that an earlier run has handled and that may arrive again
	started chan *client.Subscription
	got     chan string // ids of the events that were handled
	gaps    chan client.Gap
	ended   chan error
	stop    context.CancelFunc
}

func run(t *testing.T, url, mode string, change func(*program)) *program {
	t.Helper()
	p := &program{
		t: t, url: url, started: make(chan *client.Subscription, 1), got: make(chan string, 100), gaps: make(chan client.Gap, 100), ended: make(chan error, 1),
		o: client.Options{Agent: "test/1", MinPoll: 50 * time.Millisecond},
	}
	p.sub = client.SubscribeOptions{
		Name: "order.shipped", Arguments: map[string]string{"order": "42"}, Mode: mode,
		Event: func(_ context.Context, e client.Event) error {
			if !slices.Contains(p.known, e.ID) {
				p.got <- e.ID
			}
			return nil
		},
		Gap: func(_ context.Context, g client.Gap) error { p.gaps <- g; return nil },
	}
	if mode == client.ModeWebhook {
		p.o.Webhooks = startHandler(t)
	}
	if change != nil {
		change(p)
	}
	ctx, cancel := context.WithCancel(t.Context())
	p.stop = cancel
	go func() {
		c, err := client.Connect(ctx, p.url, p.o)
		if err == nil {
			err = p.receive(ctx, c)
			_ = c.Close()
		}
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = nil // the test stopped the program before the server accepted
		}
		p.ended <- err
	}()
	t.Cleanup(cancel)
	return p
}

// failFirst does not acknowledge the first attempts at an event.
func (p *program) failFirst(attempts int32, id string) {
	var tries atomic.Int32
	p.sub.Event = func(_ context.Context, e client.Event) error {
		if e.ID == id && tries.Add(1) <= attempts {
			return errors.New("not now")
		}
		p.got <- e.ID
		return nil
	}
}

// receive subscribes, and returns when the subscription has ended.
func (p *program) receive(ctx context.Context, c *client.Client) error {
	sub, err := c.Subscribe(ctx, p.sub)
	if err != nil {
		return err
	}
	p.started <- sub
	<-sub.Done()
	return sub.Err()
}

// startHandler starts an HTTP server with a handler for webhooks.
func startHandler(t *testing.T) *client.Handler {
	t.Helper()
	h := &client.Handler{}
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	h.URL = s.URL
	return h
}

func (p *program) begins() *client.Subscription { p.t.Helper(); return take(p.t, p.started, p.ended) }

// handles waits for events, in any order.
func (p *program) handles(want ...string) {
	p.t.Helper()
	var got []string
	for range want {
		got = append(got, take(p.t, p.got, p.ended))
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		p.t.Fatalf("handled %v, want %v", got, want)
	}
}

// ends stops the program and checks that it has not failed and has handled no other events.
func (p *program) ends() {
	p.t.Helper()
	p.stop()
	expect.OK(p.t, take(p.t, p.ended, nil))
	select {
	case id := <-p.got:
		p.t.Errorf("also handled %s, want no other events", id)
	default:
	}
}

func take[T any](t *testing.T, c chan T, ended chan error) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case err := <-ended:
		select {
		case v = <-c: // both were ready
		default:
			t.Fatalf("the subscription has ended: %v", err)
		}
	case <-time.After(patience):
		t.Fatalf("got no %T within %s", v, patience)
	}
	return v
}

func TestSubscribe(t *testing.T) {
	t.Parallel()
	for _, mode := range modes {
		t.Run("RCH-01 EVX-19 with "+mode+" each event arrives once although the server restarts", func(t *testing.T) {
			t.Parallel()
			h := newHome(t, nil)
			p := run(t, h.server.URL, mode, nil)
			expect.MustEqual(t, "the mode", p.begins().Mode(), mode)
			h.publish("a", "b")
			p.handles("a", "b")
			h.restart()
			h.publish("c")
			p.handles("c")
			p.ends()
		})
		t.Run("RCH-01 with "+mode+" a program that starts again continues after the last event it acknowledged", func(t *testing.T) {
			t.Parallel()
			h := newHome(t, nil)
			store := client.Dir(filepath.Join(t.TempDir(), "cursors"))
			p := run(t, h.server.URL, mode, func(p *program) { p.o.Store = store })
			p.begins()
			h.publish("a")
			p.handles("a")
			p.ends()
			var known []string
			if mode == client.ModeWebhook { // its cursor was made before the event it came with was acknowledged
				known = []string{"a"}
			}
			refused := make(chan string, 100)
			p = run(t, h.server.URL, mode, func(p *program) {
				p.o.Store = store
				p.sub.Event = func(_ context.Context, e client.Event) error {
					if !slices.Contains(known, e.ID) {
						refused <- e.ID
						return errors.New("not now")
					}
					return nil
				}
			})
			p.begins()
			h.publish("b")
			expect.MustEqual(t, "the event", take(t, refused, p.ended), "b")
			p.ends()
			h.publish("c")
			p = run(t, h.server.URL, mode, func(p *program) { p.o.Store, p.known = store, known })
			p.handles("b", "c")
			p.ends()
		})
		t.Run("RCH-01 with "+mode+" an event that is not acknowledged arrives again", func(t *testing.T) {
			t.Parallel()
			h := newHome(t, func(o *standalone.Options) {
				o.Limits.EventsSchedule = []time.Duration{0, time.Second, time.Second}
			})
			p := run(t, h.server.URL, mode, func(p *program) { p.failFirst(1, "a") })
			p.begins()
			h.publish("a")
			p.handles("a")
			p.ends()
		})
	}
}

// EVX-13, EVX-19: a gap is reported, and the events after its cursor arrive again.
func TestWebhooksThatTheServerGaveUp(t *testing.T) {
	t.Parallel()
	h := newHome(t, func(o *standalone.Options) { o.Limits.EventsSchedule = []time.Duration{0, time.Second} })
	p := run(t, h.server.URL, client.ModeWebhook, func(p *program) { p.failFirst(2, "a") })
	p.begins()
	h.publish("a")
	if g := take(t, p.gaps, p.ended); g.Cursor == "" || g.Name != "order.shipped" {
		t.Errorf("got the gap %+v, want a cursor and order.shipped", g)
	}
	p.handles("a")
	h.publish("b")
	p.handles("b")
	p.ends()
}

// TestARollingDeployment starts the new version of a program before it ends the old one. Both have the same URL, event type
// and arguments, and so the same subscription.
func TestARollingDeployment(t *testing.T) {
	t.Parallel()
	h := newHome(t, nil)
	var current atomic.Pointer[client.Handler]
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { current.Load().ServeHTTP(w, r) }))
	defer front.Close()
	version := func() *program {
		hooks := &client.Handler{URL: front.URL}
		current.Store(hooks)
		p := run(t, h.server.URL, client.ModeWebhook, func(p *program) { p.o.Webhooks = hooks })
		p.begins()
		return p
	}
	old := version()
	h.publish("a")
	old.handles("a")
	next := version()
	h.publish("b")
	next.handles("b")
	old.ends()
	h.publish("c")
	t.Run("RCH-01 EVX-19 the new program receives webhooks after the end of the old one", func(t *testing.T) {
		next.t = t
		next.handles("c")
	})
	next.ends()
}

func TestTheModeIsTheBestThatBothHave(t *testing.T) {
	t.Parallel()
	const types = `
events:
  - {name: all, uri: event://x/all}
  - {name: polled, uri: event://x/polled, delivery: [poll]}
  - {name: open, uri: event://x/open, delivery: [push, poll]}
  - {name: hooked, uri: event://x/hooked, delivery: [webhook]}
`
	h := newHome(t, func(o *standalone.Options) { o.Catalog = []byte(types) })
	for _, tt := range []struct {
		name      string
		reachable bool
		mode      string // or an error
	}{
		{"all", true, "webhook"},
		{"all", false, "push"},
		{"open", true, "push"},
		{"polled", true, "poll"},
		{"hooked", false, "which this client cannot use"},
		{"none", true, "unknown event type"},
	} {
		t.Run(fmt.Sprintf("RCH-01 %s, reachable %t", tt.name, tt.reachable), func(t *testing.T) {
			p := run(t, h.server.URL, "", func(p *program) {
				p.sub.Name, p.sub.Arguments = tt.name, nil
				if tt.reachable {
					p.o.Webhooks = startHandler(t)
				}
			})
			select {
			case b := <-p.started:
				expect.Equal(t, "the mode", b.Mode(), tt.mode)
				p.ends()
			case err := <-p.ended:
				expect.Error(t, "the end", err, tt.mode)
			case <-time.After(patience):
				t.Fatalf("the subscription is still pending after %s", patience)
			}
		})
	}
}

func TestSubscribeRefusesInvalidOptions(t *testing.T) {
	t.Parallel()
	h := newHome(t, nil)
	event := func(context.Context, client.Event) error { return nil }
	c := expect.Value(client.Connect(t.Context(), h.server.URL, client.Options{}))(t)
	unwritable := filepath.Join(t.TempDir(), "file")
	expect.OK(t, os.WriteFile(unwritable, []byte("x"), 0o600))
	for _, tt := range []struct {
		name string
		sub  client.SubscribeOptions
		says string
	}{
		{"no name", client.SubscribeOptions{Event: event}, "needs the name"},
		{"a name and URIs", client.SubscribeOptions{Name: "order.shipped", URIs: []string{shipped}, Event: event}, "or URIs"},
		{"polls of URIs", client.SubscribeOptions{URIs: []string{shipped}, Mode: "poll", Event: event}, "allowed: webhook, push"},
		{"webhooks for URIs without a handler", client.SubscribeOptions{URIs: []string{shipped}, Mode: "webhook", Event: event}, "needs Options.Webhooks"},
		{"no function", client.SubscribeOptions{Name: "order.shipped"}, "a function for its events"},
		{"an unknown mode", client.SubscribeOptions{Name: "order.shipped", Mode: "pigeon", Event: event}, `"pigeon" is not a mode`},
		{"webhooks without a handler", client.SubscribeOptions{Name: "order.shipped", Mode: "webhook", Event: event}, "needs Options.Webhooks"},
		{"arguments that are not an object", client.SubscribeOptions{Name: "order.shipped", Mode: "push", Arguments: []int{1}, Event: event}, "not a JSON object"},
		{"an unknown argument", client.SubscribeOptions{Name: "order.shipped", Mode: "push", Arguments: map[string]int{"x": 1}, Event: event}, `"x"`},
		{"a forged cursor", client.SubscribeOptions{Name: "order.shipped", Mode: "poll", Cursor: "forged", Event: event}, "cursor"},
	} {
		t.Run("RCH-01 "+tt.name, func(t *testing.T) {
			expect.Error(t, "the subscription", expect.ErrOf(c.Subscribe(t.Context(), tt.sub)), tt.says)
		})
	}
	t.Run("RCH-01 a store that cannot save ends the subscription", func(t *testing.T) {
		sub, err := c.Subscribe(t.Context(), client.SubscribeOptions{
			Name: "order.shipped", Mode: "push", Store: client.Dir(filepath.Join(unwritable, "below")), Event: event,
		})
		if err == nil {
			<-sub.Done()
			err = sub.Err()
		}
		expect.Fault(t, "the end", err, fault.Unavailable, "cursor")
	})
}

// startOlder starts a server that does not know 2026-07-28 and forwards requests to target, which does. The function forget ends all
// sessions and answers the given number of requests for a new session with a 404 page.
func startOlder(t *testing.T, target string) (url string, forget func(refused int32)) {
	t.Helper()
	var sessions, gone sync.Map
	var refuse atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Mcp-Protocol-Version") == "2026-07-28" {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"error":{"code":-32022,"message":"Unsupported protocol version"}}`)
			return
		}
		if r.Header.Get("Mcp-Session-Id") == "" && refuse.Add(-1) >= 0 {
			http.Error(w, "<html>no backend</html>", http.StatusNotFound)
			return
		}
		if _, gone := gone.Load(r.Header.Get("Mcp-Session-Id")); gone {
			http.Error(w, "no such session", http.StatusNotFound)
			return
		}
		req, _ := http.NewRequestWithContext(r.Context(), r.Method, target+r.URL.Path, strings.NewReader(string(body)))
		req.Header = r.Header.Clone()
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer func() { _ = resp.Body.Close() }()
		if id := resp.Header.Get("Mcp-Session-Id"); id != "" {
			sessions.Store(id, true)
		}
		for name, values := range resp.Header {
			w.Header()[name] = values
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(s.Close)
	return s.URL, func(refused int32) {
		refuse.Store(refused)
		sessions.Range(func(id, _ any) bool { gone.Store(id, true); return true })
	}
}

func TestSubscribeToAServerWithSessions(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{client.ModeWebhook, client.ModePoll} {
		for refused, name := range []string{
			"RCH-01 with " + mode + " the client starts a new session if the server has ended the old one",
			"RCH-01 with " + mode + " the client starts a new session although a proxy has no backend at first",
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := newHome(t, nil)
				url, forget := startOlder(t, h.server.URL)
				p := run(t, url, mode, func(p *program) { p.sub.TTL = 3 * time.Second })
				p.begins()
				h.publish("a")
				p.handles("a")
				forget(int32(refused))
				h.publish("b")
				p.handles("b")
				h.publish("c")
				p.handles("c")
				p.ends()
			})
		}
	}
	t.Run("RCH-01 without a mode the client polls", func(t *testing.T) {
		h := newHome(t, nil)
		url, _ := startOlder(t, h.server.URL)
		p := run(t, url, "", nil)
		expect.Equal(t, "the mode", p.begins().Mode(), client.ModePoll)
		p.ends()
	})
}

func TestAnEventCarriesItsURI(t *testing.T) {
	t.Parallel()
	h := newHome(t, nil)
	// reads makes a program handle only the event with the id. The event before may arrive too, because a webhook can be sent
	// while its event is written to the log, and a stream that begins at that moment then has the event as well.
	reads := func(id string, uris chan<- string) func(p *program) {
		return func(p *program) {
			p.sub.Arguments = nil // all orders
			p.sub.Event = func(_ context.Context, e client.Event) error {
				if e.ID == id {
					uris <- e.URI
				}
				return nil
			}
		}
	}
	for _, mode := range modes {
		t.Run("EVX-24 by "+mode, func(t *testing.T) {
			uris := make(chan string, 10)
			p := run(t, h.server.URL, mode, reads("by-"+mode, uris))
			p.begins()
			h.publish("by-" + mode)
			expect.Equal(t, "the URI", take(t, uris, p.ended), shipped)
			p.ends()
		})
	}
	for _, meta := range []string{`null`, `7`, `{}`, `{"io.github.mcp-events/uri":7}`} {
		t.Run("EVX-24 a server with other metadata, "+meta, func(t *testing.T) {
			s := newScript(t, "events/poll", func(n int, _ http.ResponseWriter) string {
				if n == 1 {
					return `{"events":[],"cursor":"c1","nextPollMs":0}`
				}
				return `{"events":[` + strings.Replace(occurrence("e1"), `{`, `{"_meta":`+meta+`,`, 1) + `],"cursor":"c2","nextPollMs":99999}`
			})
			uris := make(chan string, 10)
			p := run(t, s.URL, client.ModePoll, reads("e1", uris))
			expect.Equal(t, "the URI", take(t, uris, p.ended), "")
			p.ends()
		})
	}
}

func TestFilesOfCursors(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cursors")
	d := client.Dir(dir)
	loads := func(t *testing.T, store client.Store, key, want string) {
		t.Helper()
		expect.Equal(t, "the cursor of "+key, expect.Value(store.Load(t.Context(), key))(t), want)
	}
	t.Run("RCH-01 at first there is no cursor", func(t *testing.T) { loads(t, d, "a", "") })
	t.Run("RCH-01 each key has the cursor that was saved last under it", func(t *testing.T) {
		for _, cursor := range []string{"1", "2"} {
			for _, key := range []string{"a", "b"} {
				expect.OK(t, d.Save(t.Context(), key, key+cursor))
			}
		}
		loads(t, d, "a", "a2")
		loads(t, d, "b", "b2")
	})
	t.Run("RCH-01 no temporary files are left, and other users cannot read the files", func(t *testing.T) {
		files := expect.Value(os.ReadDir(dir))(t)
		expect.MustLen(t, "the files", files, 2)
		for _, f := range files {
			expect.Equal(t, "the mode", expect.Value(f.Info())(t).Mode().Perm(), 0o600)
		}
	})
	t.Run("RCH-01 RCH-03 two subscriptions cannot share a file", func(t *testing.T) {
		file := client.File(filepath.Join(t.TempDir(), "cursor"))
		expect.OK(t, file.Save(t.Context(), "a", "a1"))
		expect.Fault(t, "the load of another subscription", expect.ErrOf(file.Load(t.Context(), "b")), fault.Conflict)
		expect.Fault(t, "the save of another subscription", file.Save(t.Context(), "b", "b1"), fault.Conflict)
		loads(t, file, "a", "a1")
	})
	t.Run("RCH-01 RCH-03 a file that holds only a cursor belongs to the subscription that loads it", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "cursor")
		expect.OK(t, os.WriteFile(path, []byte("a1"), 0o600))
		file := client.File(path)
		loads(t, file, "a", "a1")
		expect.OK(t, file.Save(t.Context(), "a", "a2"))
		loads(t, file, "a", "a2")
	})
	t.Run("RCH-01 a file that does not hold a cursor is refused", func(t *testing.T) {
		file := filepath.Join(dir, "large")
		expect.OK(t, os.WriteFile(file, []byte(strings.Repeat("x", 100_000)), 0o600))
		expect.Fault(t, "the load", expect.ErrOf(client.File(file).Load(t.Context(), "")), fault.Invalid)
	})
}

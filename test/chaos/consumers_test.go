//go:build unix

package chaos

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// door serves the endpoints of the test's process, by path. An endpoint that is broken answers in one of the [ways]
// instead.
type door struct {
	url string

	mu        sync.Mutex
	endpoints map[string]http.Handler
	broken    map[string]http.HandlerFunc
}

func newDoor(t *testing.T) *door {
	d := &door{endpoints: map[string]http.Handler{}, broken: map[string]http.HandlerFunc{}}
	d.url = "http://" + serve(t, d).String() + "/"
	return d
}

func (d *door) put(name string, h http.Handler) (url string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.endpoints[name] = h
	return d.url + name
}

// fail breaks an endpoint; a nil handler repairs it.
func (d *door) fail(name string, way http.HandlerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.broken[name] = way
}

func (d *door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	d.mu.Lock()
	endpoint, way := d.endpoints[name], d.broken[name]
	d.mu.Unlock()
	switch {
	case endpoint == nil:
		http.NotFound(w, r)
	case way == nil:
		endpoint.ServeHTTP(w, r)
	default:
		if _, err := io.Copy(io.Discard, r.Body); err == nil {
			way(w, r)
		}
	}
}

// register makes a SEP-1803 subscription whose endpoint is in the test's process.
func register(t *testing.T, target *harness.Target, d *door, l *ledger, uri string) {
	t.Helper()
	var r struct {
		Subscription struct {
			URI           string
			WebhookSecret struct{ Key string }
		}
	}
	var secret func() string
	url := d.put(l.name, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
		if err != nil {
			return // the sender was cut off
		}
		wh, err := standardwebhooks.NewWebhook(secret())
		if err == nil {
			err = wh.Verify(body, req.Header)
		}
		var payload struct{ Data struct{ ID string } }
		if err == nil {
			err = json.Unmarshal(body, &payload)
		}
		if err != nil {
			l.fault("a webhook was not verified: %v", err)
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		l.receive(req.Header.Get("webhook-id"), payload.Data.ID)
	}))
	known := make(chan struct{})
	secret = func() string { <-known; return r.Subscription.WebhookSecret.Key }
	defer close(known)
	retry(t, func(ctx context.Context) error {
		return call(ctx, target.Stateless("alice"), "resources/subscriptions/register", map[string]any{"uris": []string{uri}, "targetUri": url}, &r)
	})
	l.setSubscription(strings.TrimPrefix(r.Subscription.URI, "subscription://"))
	l.start()
}

// byWebhook subscribes with a webhook of the package client, whose endpoint is behind the door. The subscription's lifetime
// is short, so that it is refreshed often and a suspension ends soon.
func byWebhook(target *harness.Target, d *door, name string, arguments map[string]any) func(context.Context, *follower) error {
	return func(ctx context.Context, f *follower) error {
		hooks := &client.Handler{Log: slog.New(f)}
		hooks.URL = d.put(f.name, hooks)
		c, err := newClient(ctx, target, "alice", spec.V20260728, f, hooks)
		if err != nil {
			return err
		}
		return receive(ctx, c, client.SubscribeOptions{
			Name: name, Arguments: arguments, Mode: client.ModeWebhook, TTL: time.Minute,
			Event: f.received,
			Gap:   func(context.Context, client.Gap) error { f.gap(); return nil },
		}, func(sub *client.Subscription) { f.setSubscription(sub.ID()); f.opened() })
	}
}

// listener is the command "mcpevents listen" with a cursor file, which is killed and started again.
type listener struct {
	*ledger
	command  func(context.Context) *exec.Cmd
	readyLog string // the log message by which it shows that it receives events

	ready chan struct{}
	once  sync.Once

	mu     sync.Mutex
	cmd    *exec.Cmd
	killed bool
	away   time.Duration // how long it stays away after a kill
}

// startListener starts a listener of one event type, which ends with the test.
func startListener(t *testing.T, target *harness.Target, l *ledger, mode, name string, flags ...string) *listener {
	t.Helper()
	flags = append([]string{
		"listen", "--name", name, "--mode", mode, "--cursor-file", filepath.Join(t.TempDir(), "cursor"), "--log-format", "text",
	}, flags...)
	p := &listener{ledger: l, readyLog: "following", ready: make(chan struct{})}
	if mode == client.ModeWebhook {
		p.readyLog = "receiving webhooks"
		flags = append(flags, "--listen", harness.FreeAddr(t)) // a restarted process keeps its subscription only if its URL stays the same
	}
	binary := harness.Binary(t, "./cmd/mcpevents", false)
	p.command = func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, binary, flags...)
		cmd.Env = append(os.Environ(), "MCPEVENTS_SERVER="+target.MCP, "MCPEVENTS_KEY="+target.Keys["alice"])
		return cmd
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			p.runProcess(ctx)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	expect.Receive(t, "the subscription of "+l.name, p.ready)
	return p
}

// runProcess starts the process, waits for its end, and then waits until the next one may start.
func (p *listener) runProcess(ctx context.Context) {
	cmd := p.command(ctx)
	log := &lastLines{seen: func(b []byte) {
		if bytes.Contains(b, []byte(p.readyLog)) {
			p.once.Do(func() { close(p.ready) })
		}
	}}
	cmd.Stderr = log
	out, _ := cmd.StdoutPipe() // fails only if it is called twice
	if err := cmd.Start(); err != nil {
		p.fault("%v", err)
		return
	}
	p.start()
	p.mu.Lock()
	p.cmd, p.killed = cmd, false
	p.mu.Unlock()
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		p.line(lines.Bytes())
	}
	err := cmd.Wait()
	p.mu.Lock()
	killed, away := p.killed, p.away
	p.cmd = nil
	p.mu.Unlock()
	if !killed && ctx.Err() == nil {
		p.fault("the process ended: %v\n%s", err, log)
		away = time.Second
	}
	timer := time.NewTimer(away)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func (p *listener) line(line []byte) {
	var e struct {
		client.Event
		Envelope string
	}
	var data struct{ ID string }
	if err := json.Unmarshal(line, &e); err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.killed { // a killed process may leave half a line
			p.fault("the process printed %s: %v", line, err)
		}
		return
	}
	if e.Envelope == "gap" {
		p.gap()
		return
	}
	_ = json.Unmarshal(e.Data, &data) // receive reports invalid data
	if e.Subscription != "" {
		p.setSubscription(e.Subscription)
	}
	p.receive(e.ID, data.ID)
}

// kill kills the process, as a crash would, and keeps it away for a while.
func (p *listener) kill(away time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return
	}
	p.killed, p.away = true, away
	_ = p.cmd.Process.Kill()
}

// lastLines keeps the end of a process's log.
type lastLines struct {
	seen func([]byte)
	mu   sync.Mutex
	text []byte
}

func (l *lastLines) Write(b []byte) (int, error) {
	l.seen(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	if over := len(l.text) - 4<<10; over > 0 {
		l.text = l.text[over:]
	}
	return len(b), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// ways is how an endpoint answers while it is broken, by its name.
var ways = map[string]http.HandlerFunc{
	"hangs":     hang,
	"drips":     drip,
	"fails":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	"throttles": throttle,
	"closes":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// drip answers a byte at a time, without end.
func drip(w http.ResponseWriter, r *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	for _, b := range []byte("HTTP/1.1 200 OK\r\nX-Drip: " + strings.Repeat("x", 1000)) {
		if _, err := conn.Write([]byte{b}); err != nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}

func throttle(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "2")
	w.WriteHeader(http.StatusTooManyRequests)
}

// serve runs an HTTP server on 127.0.0.1 that ends with the test.
func serve(t *testing.T, h http.Handler) net.Addr {
	t.Helper()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	s := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return l.Addr()
}

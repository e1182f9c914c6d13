package standalone

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

// patience bounds every wait.
const patience = 30 * time.Second

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// serve starts a server with the sample catalog, and ends it with the test.
func serve(t *testing.T, change func(*Options)) *Server {
	t.Helper()
	s, _ := serveOptions(t, change)
	return s
}

// serveOptions starts a server like [serve], and also returns its options.
func serveOptions(t *testing.T, change func(*Options)) (*Server, Options) {
	t.Helper()
	o := settingsFor(t, change)
	return restart(t, o), o
}

// restart starts a server with these options, and ends it with the test.
func restart(t *testing.T, o Options) *Server {
	t.Helper()
	s := expect.Value(New(t.Context(), o))(t)
	t.Cleanup(func() { end(t, s) })
	return s
}

// settingsFor returns the options of a server with the sample catalog.
func settingsFor(t *testing.T, change func(*Options)) Options {
	t.Helper()
	src := expect.Value(os.ReadFile("../../../catalog.yaml"))(t)
	s := Options{
		Addr: "127.0.0.1:0", Data: t.TempDir(), Catalog: src, CatalogName: "catalog.yaml", Auth: auth.ModeNone,
		Limits: config.DefaultLimits(), Log: quiet(),
	}
	s.Limits.AllowInsecureTargets = true
	if change != nil {
		change(&s)
	}
	return s
}

// end shuts a server down. The server may have been shut down before.
func end(t *testing.T, e *Server) {
	t.Helper()
	http.DefaultClient.CloseIdleConnections() // otherwise the server waits 5 s for a connection that was never used
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	expect.OK(t, e.Shutdown(ctx), "end the server")
}

// refuses checks that a server does not start with these options, and that the error contains a text.
func refuses(t *testing.T, o Options, says string) {
	t.Helper()
	s, err := New(t.Context(), o)
	if err == nil {
		end(t, s)
		t.Fatalf("the server started, want the error %q", says)
	}
	expect.Fault(t, "the start", err, fault.Invalid, says)
}

// starts checks that a server starts with these options, and ends it.
func starts(t *testing.T, o Options) {
	t.Helper()
	end(t, expect.Value(New(t.Context(), o))(t))
}

// hash returns the SHA-256 hash of an API key, as a configuration contains it.
func hash(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}

// request sends a request with the key who, or without a key if who is empty. At /mcp, rpc is its method.
func request(t *testing.T, s *Server, who, method, path, rpc, body string) *http.Response {
	t.Helper()
	req := expect.Value(http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body)))(t)
	req.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+who)
	}
	if rpc != "" {
		req.Header.Set(spec.HeaderVersion, string(spec.V20260728))
		req.Header.Set(spec.HeaderMethod, rpc)
	}
	return expect.Value(http.DefaultClient.Do(req))(t)
}

// read reads a response to its end.
func read(t *testing.T, resp *http.Response) (status int, text string) {
	t.Helper()
	defer resp.Body.Close()
	return resp.StatusCode, strings.TrimSpace(string(expect.Value(io.ReadAll(resp.Body))(t)))
}

// ask sends a request and reads the response.
func ask(t *testing.T, s *Server, who, method, path, body string) (status int, text string) {
	t.Helper()
	return read(t, request(t, s, who, method, path, "", body))
}

// call calls a method of /mcp.
func call(t *testing.T, s *Server, who, method string, params map[string]any) *http.Response {
	t.Helper()
	params["_meta"] = map[string]any{
		spec.MetaVersion: spec.V20260728, spec.MetaClient: map[string]string{"name": "test", "version": "1"}, spec.MetaCapabilities: map[string]any{},
	}
	body := expect.Value(json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))(t)
	return request(t, s, who, "POST", "/mcp", method, string(body))
}

// subscribed registers an endpoint for events.
func subscribed(t *testing.T, s *Server, endpoint, uri string) {
	t.Helper()
	status, text := read(t, call(t, s, "", spec.MethodRegister, map[string]any{"uris": []string{uri}, "targetUri": endpoint}))
	if status != http.StatusOK || strings.Contains(text, `"error"`) {
		t.Fatalf("%d %s", status, text)
	}
}

const (
	buildFinished = "event://ci/build-finished"
	pullRequest   = "event://github/acme/website/pull_request"
)

// RCH-07: the error of a server with invalid options names the problem.
func TestOptionsThatCannotBeAreRefused(t *testing.T) {
	types := []byte("events: []")
	for want, o := range map[string]Options{
		"Data is missing":       {Catalog: types},
		`Auth is "basic"`:       {Data: ":memory:", Catalog: types, Auth: "basic"},
		"--log-retention is 0s": {Data: ":memory:", Catalog: types, Limits: config.Limits{Quota: 5, Streams: 5}},
		"is empty":              {Data: ":memory:"},
		"that is nil":           {Data: ":memory:", Catalog: types, Upstream: http.HandlerFunc(nil)},
	} {
		refuses(t, o, want)
	}
}

func TestAnEmptyDatabaseBesideOldKeysIsRefused(t *testing.T) {
	settings := settingsFor(t, nil)
	starts(t, settings)
	path := filepath.Join(settings.Data, "mcpevents.db")
	for _, step := range []struct {
		name   string
		damage func() error
	}{
		{"is empty", func() error { return os.WriteFile(path, nil, 0o600) }},
		{"is missing", func() error { return os.Remove(path) }},
		{"is damaged", func() error { return os.WriteFile(path, []byte(strings.Repeat("no database ", 1000)), 0o600) }},
	} {
		expect.OK(t, step.damage())
		refuses(t, settings, step.name)
		refuses(t, settings, "a backup")
	}
	// An operator who removes the database and the keys starts again with an empty server.
	for _, name := range []string{path, secretsPath(settings.Data)} {
		expect.OK(t, os.Remove(name))
	}
	starts(t, settings)
}

func TestADataDirectoryThatCannotBeWrittenIsNamed(t *testing.T) {
	dir := t.TempDir()
	expect.OK(t, os.Chmod(dir, 0o555))
	if f, err := os.CreateTemp(dir, "x"); err == nil { // by root
		_ = f.Close()
		dir = "/proc/self"
	}
	s := Options{Addr: "127.0.0.1:0", Data: dir, Catalog: []byte("events:\n  - {name: a.b, uri: event://a/b}\n"), CatalogName: "catalog.yaml", Auth: auth.ModeNone, Limits: config.DefaultLimits(), Log: quiet()}
	refuses(t, s, "the data directory "+dir+" cannot be written")
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	return len(expect.Value(os.ReadDir("/proc/self/fd"))(t))
}

// A failed start leaves no goroutines and no open files, no matter how far it came.
func TestAFailedStartLeavesNothingOpen(t *testing.T) {
	taken := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	for name, change := range map[string]func(*Options){
		"keys": func(s *Options) {
			expect.OK(t, os.WriteFile(filepath.Join(s.Data, "keys.json"), []byte("{"), 0o600))
			expect.OK(t, os.WriteFile(filepath.Join(s.Data, "mcpevents.db"), nil, 0o600))
		},
		"address": func(s *Options) { s.Addr = taken.Addr().String() },
		"backend": func(s *Options) {
			s.Config = configured(t, "backends:\n  - {name: b, url: \"http://127.0.0.1:1/mcp\", prefix: b_, headers: {Authorization: \"env:NOT_THERE\"}}\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			settings := settingsFor(t, nil)
			starts(t, settings) // opens everything that a process opens only once
			change(&settings)
			http.DefaultClient.CloseIdleConnections()
			goroutines, files := runtime.NumGoroutine(), openDescriptors(t)
			for range 10 {
				if e, err := New(t.Context(), settings); err == nil {
					end(t, e)
					t.Fatal("the server started, want an error")
				}
			}
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
				g, f := runtime.NumGoroutine(), openDescriptors(t)
				if g <= goroutines && f <= files {
					return
				}
				if time.Now().After(deadline) {
					t.Fatalf("got %d goroutines and %d descriptors, want at most %d and %d as before", g, f, goroutines, files)
				}
			}
		})
	}
}

// sqlJob is a job that runs a statement.
type sqlJob string

func (s sqlJob) Apply(tx *engine.Tx) error { return tx.Exec(string(s)) }
func (sqlJob) Done(error)                  {}

// OPS-16 OPS-12: a server is unhealthy and not ready while its writes to the database fail. Its metrics are still served, and one of
// them says that it is unhealthy.
func TestAliveAndReady(t *testing.T) {
	e := serve(t, nil)
	if code, body := ask(t, e, "", "GET", "/readyz", ""); code != http.StatusOK || body != `{"status":"ready"}` {
		t.Errorf("got %d %s", code, body)
	}
	get := func() (int, string) { return ask(t, e, "", "GET", "/healthz", "") }
	if code, body := get(); code != http.StatusOK || body != `{"status":"ok"}` {
		t.Fatalf("got %d %s", code, body)
	}
	healthy := func(want float64) {
		t.Helper()
		expect.Equal(t, "OPS-12 "+metric.Healthy, value(scrape(t, e), metric.Healthy, ""), want)
	}
	healthy(1)
	do := func(sql string) error { return e.db.Engine().Do(t.Context(), sqlJob(sql)) }
	if err := do("PRAGMA max_page_count=1"); err != nil { // the disk is full
		t.Fatal(err)
	}
	// A small write of the server itself may still succeed between two steps, because it fits into the rest of a page.
	code, body, ready, health := 0, "", 0, 1.0
	for try := 0; try < 20 && (code != http.StatusServiceUnavailable || ready != http.StatusServiceUnavailable || health != 0); try++ {
		for _, look := range []func(){
			func() { code, body = get() },
			func() { ready, _ = ask(t, e, "", "GET", "/readyz", "") },
			func() { health = value(scrape(t, e), metric.Healthy, "") },
		} {
			expect.Error(t, "a write to a full disk", do("CREATE TABLE x AS SELECT zeroblob(100000)"))
			look()
		}
	}
	if code != http.StatusServiceUnavailable || body != `{"reason":"the last write to the database failed","status":"unavailable"}` || health != 0 {
		t.Errorf("got %d %s and %s %v, want 503 and 0", code, body, metric.Healthy, health)
	}
	expect.Equal(t, "the status of /readyz", ready, http.StatusServiceUnavailable)
	expect.OK(t, do("PRAGMA max_page_count=1000000; CREATE TABLE x AS SELECT zeroblob(100000)"))
	if code, body := get(); code != http.StatusOK {
		t.Errorf("after a successful write: got %d %s, want 200", code, body)
	}
	healthy(1)
	expect.OK(t, do("ALTER TABLE queue_events RENAME TO lost"))
	code, _ = ask(t, e, "", "GET", "/readyz", "")
	expect.Equal(t, "the status of /readyz without a queue", code, http.StatusServiceUnavailable)
}

// A program that embeds the server gets an error for an event that no client can read.
func TestPublishRefusesAWorkspaceThatCannotExist(t *testing.T) {
	t.Parallel()
	s := serve(t, nil)
	for _, workspace := range []string{"", "two words", "a#b"} {
		_, err := s.Publish(t.Context(), workspace, Event{URI: buildFinished, Data: []byte(`{"build":1,"status":"passed"}`)})
		expect.Fault(t, fmt.Sprintf("an event of the workspace %q", workspace), err, fault.Invalid)
	}
}

// A shutdown that reaches its deadline cancels the running deliveries, and the next start repeats them.
func TestCloseCutsOffWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	settings := settingsFor(t, nil)
	arrived := make(chan struct{}, 10)
	release := make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer receiver.Close()
	e := expect.Value(New(t.Context(), settings))(t)
	subscribed(t, e, receiver.URL+"/hook", buildFinished)
	expect.OK(t, expect.ErrOf(e.Publish(t.Context(), auth.DefaultWorkspace, Event{URI: buildFinished, Data: []byte(`{"build":1,"status":"passed"}`)})))
	<-arrived
	http.DefaultClient.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	start := time.Now()
	expect.Is(t, "Shutdown", e.Shutdown(ctx), context.DeadlineExceeded)
	expect.AtMost(t, "the time that Shutdown took", time.Since(start), 10*time.Second)
	expect.Is(t, "the second Shutdown", e.Shutdown(t.Context()), context.DeadlineExceeded)
	settings.Log = quiet()
	restart(t, settings)
	defer close(release)
	expect.Receive(t, "the delivery, which is repeated", arrived)
}

// Browsers open connections in advance. While the server waits for them, clients cannot reach it.
func TestShutdownDoesNotWaitForConnectionsWithoutARequest(t *testing.T) {
	t.Parallel()
	e := expect.Value(New(t.Context(), settingsFor(t, func(o *Options) { o.AdminAddr = "127.0.0.1:0" })))(t)
	for _, url := range []string{e.URL, e.AdminURL} {
		conn := expect.Value(net.Dial("tcp", strings.TrimPrefix(url, "http://")))(t)
		defer conn.Close()
	}
	time.Sleep(100 * time.Millisecond) // the server accepts the connections
	start := time.Now()
	expect.OK(t, e.Shutdown(t.Context()))
	expect.AtMost(t, "the time that Shutdown took", time.Since(start), 4*time.Second)
}

// A request at the address of the admin API must not outlive the server, whose database is closed.
func TestShutdownCutsOffOperators(t *testing.T) {
	t.Parallel()
	e := expect.Value(New(t.Context(), settingsFor(t, func(o *Options) { o.AdminAddr = "127.0.0.1:0" })))(t)
	conn := expect.Value(net.Dial("tcp", strings.TrimPrefix(e.AdminURL, "http://")))(t)
	defer conn.Close()
	expect.OK(t, expect.ErrOf(io.WriteString(conn, "PUT /admin/v1/switches/all HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{")))
	time.Sleep(100 * time.Millisecond) // the server begins to read the request
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	expect.Is(t, "Shutdown", e.Shutdown(ctx), context.DeadlineExceeded)
	expect.OK(t, conn.SetReadDeadline(time.Now().Add(400*time.Millisecond)))
	expect.True(t, "the connection is closed after Shutdown", !errors.Is(expect.ErrOf(io.ReadAll(conn)), os.ErrDeadlineExceeded))
}

// An idle server does not write to the disk or sync it. Once a minute it looks for due deliveries, but this test is too short
// for that.
func TestAtRestNothingIsWritten(t *testing.T) {
	t.Parallel()
	e := serve(t, nil)
	disk := func() [2]int64 {
		s := e.db.Engine().Stats()
		return [2]int64{s.Syncs, s.Written}
	}
	last, since := disk(), time.Now()
	for start := time.Now(); time.Since(since) < 3*time.Second; time.Sleep(50 * time.Millisecond) {
		if now := disk(); now != last {
			last, since = now, time.Now()
		}
		if time.Since(start) > 20*time.Second {
			t.Fatal("syncs and bytes written still change 20 s after the start")
		}
	}
	expect.Differ(t, "the syncs, with those of the start", last[0], 0)
}

// An entry that no host or origin equals would silently have no effect, so that for example a blocked target would not be blocked.
func TestHostsAndOrigins(t *testing.T) {
	complete := func(change func(*config.Limits)) (config.Limits, error) {
		o := Options{Data: ":memory:", Limits: DefaultLimits()}
		change(&o.Limits)
		err := o.complete()
		return o.Limits, err
	}
	for _, host := range []string{"events.example.com", "Events.example.com:8443", "10.0.0.1", "[fd00::1]:8080", "[fd00::1]", "fd00::1", "localhost", ""} {
		expect.OK(t, expect.ErrOf(complete(func(l *config.Limits) { l.BlockedTargets, l.AllowedHosts = []string{host}, []string{host} })), "the host "+host)
	}
	expect.OK(t, expect.ErrOf(complete(func(l *config.Limits) { l.BlockedTargets = []string{".example.com"} })), "a blocked suffix")
	expect.Fault(t, "an allowed suffix", expect.ErrOf(complete(func(l *config.Limits) { l.AllowedHosts = []string{".example.com"} })), fault.Invalid)
	for _, host := range []string{
		"https://events.example.com", "events.example.com/mcp", "*.example.com", "*", "events.example.com.", "a@events.example.com",
		"events.example.com:https", "b\u00fccher.example", "a.example b.example",
	} {
		expect.Fault(t, "the blocked target "+host, expect.ErrOf(complete(func(l *config.Limits) { l.BlockedTargets = []string{host} })), fault.Invalid)
		expect.Fault(t, "the allowed host "+host, expect.ErrOf(complete(func(l *config.Limits) { l.AllowedHosts = []string{host} })), fault.Invalid)
	}
	for _, origin := range []string{"https://console.example.com", "http://localhost:3000", "http://[::1]:3000", "vscode-webview://0ab", "https://a.example:8443", "null", ""} {
		expect.OK(t, expect.ErrOf(complete(func(l *config.Limits) { l.AllowedOrigins = []string{origin} })), "the origin "+origin)
	}
	for _, origin := range []string{
		"https://console.example.com/", "console.example.com", "*", "https://*.example.com", "https://Console.example.com",
		"https://console.example.com:443", "http://a.example:80",
	} {
		expect.Fault(t, "the origin "+origin, expect.ErrOf(complete(func(l *config.Limits) { l.AllowedOrigins = []string{origin} })), fault.Invalid)
	}
	l, err := complete(func(l *config.Limits) {
		l.BlockedTargets, l.JWTAudience = []string{"a.example", " b.example"}, []string{"https://a.example/mcp", " b "}
	})
	expect.OK(t, err, "lists with spaces")
	expect.Equal(t, "the blocked target", l.BlockedTargets[1], "b.example")
	expect.Equal(t, "the audience", l.JWTAudience[1], "b")
}

func TestAttemptsThatHangLeaveConnectionsToOthers(t *testing.T) {
	for _, conns := range []int{4, 48, 240, 1008, 4096} {
		if l := newAttemptLimits(conns); l.detached+l.slow > conns/2 || l.first+l.detached+l.slow > conns {
			t.Errorf("WHK-17: got %+v with %d connections, want at most half of them for detached and slow attempts", l, conns)
		}
	}
	if l, want := newAttemptLimits(4096), (attemptLimits{first: 256, detached: 1024, slow: 512}); l != want {
		t.Errorf("WHK-17: got %+v, want %+v", l, want)
	}
	if l := newAttemptLimits(1); l.first < 1 || l.slow < 1 {
		t.Errorf("WHK-17: got %+v, want at least one attempt of each lane", l)
	}
}

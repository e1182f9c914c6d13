package standalone

import (
	"context"
	"errors"
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
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
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
	var settings Options
	end(t, serve(t, func(s *Options) { settings = *s }))
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
	all := expect.Value(os.ReadDir("/proc/self/fd"))(t)
	return len(all)
}

// A failed start leaves no goroutines and no open files, no matter how far it came.
func TestAFailedStartLeavesNothingOpen(t *testing.T) {
	taken := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	parsed := func(src string) *config.Config {
		c := expect.Value(config.Parse([]byte(src)))(t)
		return c
	}
	for name, change := range map[string]func(*Options){
		"keys": func(s *Options) {
			expect.OK(t, os.WriteFile(filepath.Join(s.Data, "keys.json"), []byte("{"), 0o600))
			expect.OK(t, os.WriteFile(filepath.Join(s.Data, "mcpevents.db"), nil, 0o600))
		},
		"address": func(s *Options) { s.Addr = taken.Addr().String() },
		"backend": func(s *Options) {
			s.Config = parsed("backends:\n  - {name: b, url: \"http://127.0.0.1:1/mcp\", prefix: b_, headers: {Authorization: \"env:NOT_THERE\"}}\n")
		},
	} {
		t.Run(name, func(t *testing.T) {
			var settings Options
			end(t, serve(t, func(s *Options) { settings = *s })) // opens everything that a process opens only once
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

// OPS-16 OPS-12: GET /healthz and GET /readyz are independent. A server is unhealthy while its writes to the database fail. Its metrics
// are still served, and one of them says that it is unhealthy.
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
	code, body, health := 0, "", 1.0
	for try := 0; try < 20 && (code != http.StatusServiceUnavailable || health != 0); try++ {
		for _, look := range []func(){func() { code, body = get() }, func() { health = value(scrape(t, e), metric.Healthy, "") }} {
			if err := do("CREATE TABLE x AS SELECT zeroblob(100000)"); err == nil {
				t.Fatal("the disk is not full")
			}
			look()
		}
	}
	if code != http.StatusServiceUnavailable || body != `{"reason":"the last write to the database failed","status":"unavailable"}` || health != 0 {
		t.Errorf("got %d %s and %s %v, want 503 and 0", code, body, metric.Healthy, health)
	}
	expect.OK(t, do("PRAGMA max_page_count=1000000; CREATE TABLE x AS SELECT zeroblob(100000)"))
	if code, body := get(); code != http.StatusOK {
		t.Errorf("after a successful write: got %d %s, want 200", code, body)
	}
	healthy(1)
}

// A shutdown that reaches its deadline cancels the running deliveries, and the next start repeats them.
func TestCloseCutsOffWhatTakesTooLong(t *testing.T) {
	t.Parallel()
	var settings Options
	end(t, serve(t, func(s *Options) { settings = *s }))
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
	if err := e.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown returned %v, want %v", err, context.DeadlineExceeded)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("Shutdown took %v, want at most 10s", took)
	}
	if err := e.Shutdown(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second Shutdown returned %v, want %v", err, context.DeadlineExceeded)
	}
	settings.Log = quiet()
	again := expect.Value(New(t.Context(), settings))(t)
	defer end(t, again)
	defer close(release)
	select {
	case <-arrived:
	case <-time.After(patience):
		t.Error("the delivery was not repeated")
	}
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
	if last[0] == 0 {
		t.Error("the counters are 0, want the writes of the start")
	}
}

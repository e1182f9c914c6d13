//go:build unix

package harness

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	queuesqlite "github.com/mcp-events/mcpevents/shared/storage/queue/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/identity"
)

// ServerOptions choose how the stand-alone server runs. The zero value is a server that has keys for [Callers], sends
// webhooks to any target, and uses a new data directory and the repository's catalog.
type ServerOptions struct {
	// Auth is "keys" (default) or "none".
	Auth string
	// Provider makes it "jwt": the server accepts the provider's tokens, which are issued for the server's MCP endpoint. Keys
	// is empty then, and a test adds tokens to it under the names of their holders.
	Provider *identity.Provider
	// Callers replace [Callers].
	Callers []Caller
	// Guarded leaves --allow-insecure-targets away.
	Guarded bool
	// Catalog is the text of a catalog file; empty is the repository's.
	Catalog string
	// Config is further text for config.yaml.
	Config string
	// Args are further arguments of serve, Env further settings.
	Args, Env []string
	// Data is the data directory; empty is a new one.
	Data string
	// Fast builds without the race detector, whatever [RaceVariable] says.
	Fast bool
}

// Server is the stand-alone server as a process.
type Server struct {
	Target
	// Data is its data directory.
	Data string

	tb      testing.TB
	addr    string
	binary  string
	catalog string // its file
	config  string // its file
	keys    string // the section of it
	args    []string
	env     []string
	p       *process
	out     *expect.Buffer
}

// StartServer builds and starts the stand-alone server, and ends it with the test.
func StartServer(tb testing.TB, o ServerOptions) *Server {
	tb.Helper()
	s := NewServer(tb, o)
	s.Start()
	return s
}

// NewServer prepares a server without starting it.
func NewServer(tb testing.TB, o ServerOptions) *Server {
	tb.Helper()
	s := &Server{tb: tb, Data: o.Data, out: new(expect.Buffer), env: o.Env}
	s.binary = Binary(tb, "./cmd/mcpevents", race() && !o.Fast)
	dir := tb.TempDir()
	if s.Data == "" {
		s.Data = filepath.Join(dir, "data")
	}
	s.addr = FreeAddr(tb)
	s.catalog = filepath.Join(Root(tb), "catalog.yaml")
	if o.Catalog != "" {
		s.catalog = writeFile(tb, dir, "catalog.yaml", o.Catalog)
	}
	config := o.Config
	auth := o.Auth
	switch {
	case o.Provider != nil:
		auth = "jwt"
	case auth == "":
		auth = "keys"
	}
	if auth == "keys" {
		callers := o.Callers
		if callers == nil {
			callers = Callers()
		}
		var section string
		section, s.Keys = keysConfig(callers)
		s.keys = section
		config = section + config
	}
	s.config = writeFile(tb, dir, "config.yaml", config)
	s.args = []string{
		"serve", "--addr", s.addr, "--data", s.Data, "--catalog", s.catalog, "--config", s.config, "--auth", auth, "--publish-rate", "0", "--registration-rate", "0",
	}
	if !o.Guarded {
		s.args = append(s.args, "--allow-insecure-targets")
	}
	s.Name, s.MCP, s.Events, s.Admin = "stand-alone", "http://"+s.addr+"/mcp", "http://"+s.addr+"/events", "http://"+s.addr+"/admin/v1/"
	if o.Provider != nil {
		o.Provider.Audience, s.Keys = s.MCP, map[string]string{}
		s.args = append(s.args, "--jwt-issuer", o.Provider.Issuer, "--jwt-audience", s.MCP)
	}
	s.args = append(s.args, o.Args...)
	tb.Cleanup(func() {
		if s.p != nil {
			if err := s.p.stop(); err != nil {
				tb.Errorf("end the server: %v", err)
			}
		}
		keepOutput(tb, "the server", s.out)
	})
	return s
}

// Start starts the server and waits until it is healthy.
func (s *Server) Start() {
	s.tb.Helper()
	if err := s.TryStart(s.tb.Context()); err != nil {
		s.tb.Fatalf("start the server: %v\n%s", err, s.out.Tail(8<<10))
	}
}

// TryStart works like [Server.Start], but returns an error if the server refuses to start.
func (s *Server) TryStart(ctx context.Context) error {
	p, err := begin(s.tb.TempDir(), s.env, s.out, s.binary, s.args...)
	if err != nil {
		return err
	}
	s.p = p
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if s.healthy(ctx) {
			return nil
		}
		select {
		case <-p.ended:
			return fmt.Errorf("it ended: %w", p.err)
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

func (s *Server) healthy(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.addr+"/healthz", nil)
	if err != nil {
		return false
	}
	resp, err := plain.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Kill ends the server with SIGKILL.
func (s *Server) Kill() { s.p.kill() }

// TryStop ends the server with SIGTERM and waits for it. It may be called from any goroutine.
func (s *Server) TryStop() error { return s.p.stop() }

// SetCatalog replaces the text of the catalog file, which [ServerOptions.Catalog] must have named. A running server
// notices the change. It may be called from any goroutine.
func (s *Server) SetCatalog(text string) error {
	next := s.catalog + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, s.catalog) // so that the server never reads half of it
}

// Stop ends the server with SIGTERM and waits for it.
func (s *Server) Stop() {
	s.tb.Helper()
	if err := s.p.stop(); err != nil {
		s.tb.Fatalf("stop the server: %v", err)
	}
}

// Enqueue puts messages on a queue of a server that does not run.
func (s *Server) Enqueue(tb testing.TB, name queue.Name, messages ...queue.Outgoing) {
	tb.Helper()
	db, err := sqlite.Open(filepath.Join(s.Data, "mcpevents.db"), sqlite.Options{})
	expect.OK(tb, err)
	defer db.Close()
	queues, err := queuesqlite.Open(db.Engine(), queuesqlite.Options{})
	expect.OK(tb, err)
	defer queues.Close()
	expect.OK(tb, queues.Send(tb.Context(), name, messages...))
}

// Signal sends the process a signal.
func (s *Server) Signal(sig os.Signal) {
	s.tb.Helper()
	expect.OK(s.tb, s.p.cmd.Process.Signal(sig))
}

// SetConfig replaces what follows the keys in the configuration.
func (s *Server) SetConfig(tb testing.TB, text string) {
	tb.Helper()
	expect.OK(tb, os.WriteFile(s.config, []byte(s.keys+text), 0o600))
}

// PeakRSS returns the running process's largest resident memory so far, in bytes.
func (s *Server) PeakRSS() int64 { return peakRSS(s.p.cmd.Process.Pid) }

// RSS returns the running process's resident memory in bytes.
func (s *Server) RSS() int64 { return procStatus(s.p.cmd.Process.Pid, "VmRSS:") }

// Files counts the open file descriptors of the running process; 0 if there is no /proc.
func (s *Server) Files() int {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	return len(entries)
}

// Output returns the server's output so far.
func (s *Server) Output() string { return s.out.String() }

// Base returns the server's URL without a path.
func (s *Server) Base() string { return "http://" + s.addr }

// Metrics returns the page /metrics.
func (s *Server) Metrics(tb testing.TB) string {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, s.Base()+"/metrics", nil)
	expect.OK(tb, err)
	req.Header.Set("Authorization", "Bearer "+s.Keys["monitor"])
	resp, err := plain.Do(req)
	expect.OK(tb, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		tb.Fatalf("%d %v: %s", resp.StatusCode, err, raw)
	}
	return string(raw)
}

// plain is a client for probes: no connection of it is kept.
var plain = &http.Client{
	Timeout:   Patience,
	Transport: &http.Transport{DisableKeepAlives: true, Proxy: nil},
}

// FreeAddr finds a free port of 127.0.0.1 for a program that must keep its port over restarts. The port is outside of the
// range from which the system assigns ports to connections and listeners, so that it stays free between restarts. A locked file
// keeps other tests, also of other processes, from choosing the port until the test ends.
func FreeAddr(tb testing.TB) string {
	tb.Helper()
	const first, end = 10_000, 32_000
	dir := filepath.Join(os.TempDir(), "mcp-events-test-ports")
	expect.OK(tb, os.MkdirAll(dir, 0o700))
	for range 100 {
		port := first + rand.IntN(end-first)
		lock, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_CREATE|os.O_RDWR, 0o600)
		expect.OK(tb, err)
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
				_ = l.Close()
				tb.Cleanup(func() { _ = lock.Close() })
				return l.Addr().String()
			}
		}
		_ = lock.Close()
	}
	tb.Fatal("no free port was found")
	return ""
}

func writeFile(tb testing.TB, dir, name, text string) string {
	tb.Helper()
	path := filepath.Join(dir, name)
	expect.OK(tb, os.WriteFile(path, []byte(strings.TrimLeft(text, "\n")), 0o600))
	return path
}

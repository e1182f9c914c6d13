package bench

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
)

const catalog = `events:
  - name: bench.tick
    uriTemplate: event://bench/{n}/tick
    title: Benchmark tick
    payloadSchema:
      type: object
      required: [filler]
      properties: {filler: {type: string}}
`

// server is the one that is measured. If it was there before, only its URL is known.
type server struct {
	url, debug string
	pid        int
	stop       func()
}

// start runs the serve command with a database in o.Data, or a temporary one, on a free port.
func (o Options) start(ctx context.Context, more ...string) (*server, error) {
	dir := o.Data
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "mcpevents-bench-"); err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "make a temporary directory")
		}
	}
	clean := func() {
		if o.Data == "" {
			_ = os.RemoveAll(dir)
		}
	}
	s, err := o.serve(ctx, dir, more)
	if err != nil {
		clean()
		return nil, err
	}
	end := s.stop
	s.stop = func() { end(); clean() }
	return s, nil
}

func (o Options) serve(ctx context.Context, dir string, more []string) (*server, error) {
	file := filepath.Join(dir, "catalog.yaml")
	if err := os.WriteFile(file, []byte(catalog), 0o600); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "write the catalog")
	}
	addr, profiles, err := freeAddresses()
	if err != nil {
		return nil, err
	}
	args := append(o.Serve[1:len(o.Serve):len(o.Serve)], "--addr", addr, "--data", dir, "--catalog", file, "--allow-insecure-targets",
		"--quota", strconv.Itoa(o.endpoints()+o.Hang*o.URIs+10), "--debug-addr", profiles, "--drain", "5s")
	cmd := exec.CommandContext(ctx, o.Serve[0], append(args, more...)...)
	cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), o.env...)
	if err := cmd.Start(); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "start the server")
	}
	s := &server{url: "http://" + addr, debug: "http://" + profiles, pid: cmd.Process.Pid}
	s.stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	}
	for {
		resp, err := http.Get(s.url + "/healthz")
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil && resp.StatusCode == http.StatusOK {
			return s, nil
		}
		select {
		case <-ctx.Done():
			s.stop()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// freeAddresses are two different ones.
func freeAddresses() (one, other string, err error) {
	var addrs []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return "", "", fault.Wrap(fault.Unavailable, err, "find a free port")
		}
		defer func() { _ = l.Close() }()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs[0], addrs[1], nil
}

// storeCounts are what the server's store counted since it began.
type storeCounts struct{ Commits, Syncs int64 }

// counts reads the store's counters from the server's debug address; nil if it tells none.
func (s *server) counts(ctx context.Context) *storeCounts {
	if s == nil || s.debug == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.debug+"/debug/vars", nil)
	if err != nil {
		return nil
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	var vars struct{ Database *storeCounts }
	if json.NewDecoder(resp.Body).Decode(&vars) != nil {
		return nil
	}
	return vars.Database
}

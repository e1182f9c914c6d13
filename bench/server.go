package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/bench/process"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
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

// server is the process that is measured. If the benchmark did not start the process, it knows at most one of the fields url and pid.
type server struct {
	url, debug string
	pid        int
	stop       func()
}

// start starts the command serve on a free port, or returns the server at o.Server. The parameter config is the content of a
// configuration file, and more has additional flags.
func (o Options) start(ctx context.Context, config string, more ...string) (*server, error) {
	if o.Server != "" {
		return &server{url: o.Server, stop: func() {}}, nil
	}
	dir, clean := o.Data, func() {}
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "mcpevents-bench-"); err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "make a temporary directory")
		}
		clean = func() { _ = os.RemoveAll(dir) }
	}
	s, err := o.serve(ctx, dir, config, more)
	if err != nil {
		clean()
		return nil, err
	}
	end := s.stop
	s.stop = func() { end(); clean() }
	return s, nil
}

func (o Options) serve(ctx context.Context, dir, config string, more []string) (*server, error) {
	addrs, err := process.FreeAddresses(2)
	if err != nil {
		return nil, err
	}
	addr, profiles := addrs[0], addrs[1]
	args := append(o.Serve[1:len(o.Serve):len(o.Serve)], "--addr", addr, "--data", dir, "--allow-insecure-targets",
		"--quota", strconv.Itoa(o.endpoints()+o.Hang*o.URIs+10), "--debug-addr", profiles)
	for name, text := range map[string]string{"catalog": catalog, "config": config} {
		if text == "" {
			continue
		}
		file := filepath.Join(dir, "bench-"+name+".yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "write the %s", name)
		}
		args = append(args, "--"+name, file)
	}
	cmd := exec.CommandContext(ctx, o.Serve[0], append(args, more...)...)
	cmd.Stderr, cmd.Env = os.Stderr, append(os.Environ(), o.env...)
	s := &server{url: "http://" + addr, debug: "http://" + profiles}
	started, err := process.Start(ctx, cmd, s.url)
	if err != nil {
		return nil, err
	}
	s.pid = started.PID()
	var profile sync.WaitGroup
	if o.Profile != "" {
		profile.Go(func() { s.writeProfile(ctx, o.Profile) })
	}
	s.stop = func() {
		profile.Wait()
		started.Stop()
	}
	return s, nil
}

type storeCounts struct {
	Commits, Syncs int64
	Written        int64 `json:"written_bytes"`
}

// counts returns the server's counters for its database, or nil if the server does not show its counters.
func (s *server) counts(ctx context.Context) *storeCounts {
	var vars struct{ Database *storeCounts }
	_ = json.Unmarshal(s.debugPage(ctx, "/debug/vars"), &vars)
	return vars.Database
}

func (s *server) goroutines(ctx context.Context) string {
	first, _, _ := strings.Cut(string(s.debugPage(ctx, "/debug/pprof/goroutine?debug=1")), "\n")
	return cmp.Or(strings.TrimPrefix(first, "goroutine profile: total "), "unknown")
}

// debugPage fetches a path, for example /debug/vars, from the address at which the measured server offers debug information. It returns nil
// if the server has no such address, or if the request fails.
func (s *server) debugPage(ctx context.Context, path string) []byte {
	if s.debug == "" {
		return nil
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.debug+path, nil)
	if err != nil {
		return nil
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return b
}

// writeProfile writes a CPU profile of the server for the next ten seconds to a file. It prints errors but does not return them, because
// the measurement is useful without the profile.
func (s *server) writeProfile(ctx context.Context, file string) {
	if err := os.WriteFile(file, s.debugPage(ctx, "/debug/pprof/profile?seconds=10"), 0o600); err != nil {
		fmt.Fprintf(os.Stderr, "write the profile: %v\n", err)
	}
}

// cpuSeconds returns the CPU time that a process has used. On systems other than Linux, it returns 0.
func cpuSeconds(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ") // the name may hold spaces
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100 // Linux counts in hundredths of a second
}

// memory returns a figure about the memory of a process in bytes, for example VmRSS (resident memory) or VmHWM (its peak). On systems
// other than Linux, it returns 0.
func memory(pid int, figure string) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, figure+":"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// fsyncTimes returns the durations, in ascending order, of 200 fsyncs, each after a write of 4 KiB.
func fsyncTimes(dir string) []time.Duration {
	f, err := os.CreateTemp(dir, "mcpevents-fsync-")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close(); _ = os.Remove(f.Name()) }()
	took := make([]time.Duration, 200)
	block := make([]byte, 4096)
	for i := range took {
		_, _ = f.Write(block)
		started := time.Now()
		_ = f.Sync()
		took[i] = time.Since(started)
	}
	slices.Sort(took)
	return took
}

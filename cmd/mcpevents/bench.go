package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"mcpevents/shared/fault"
)

// BenchCmd measures a server of its own: it starts one as a process, registers
// webhooks at a receiver in this process, publishes, and reports.
type BenchCmd struct {
	Events        int           `default:"20000" help:"Events to publish."`
	Subscribers   int           `default:"1" help:"Webhook subscriptions per event."`
	URIs          int           `name:"uris" default:"8" help:"Event URIs that the events are spread over."`
	Batch         int           `default:"10" help:"Events per publish request."`
	Publishers    int           `default:"8" help:"Concurrent publishers."`
	Payload       int           `default:"500" help:"Payload size in bytes."`
	Latency       bool          `help:"Instead, publish one event at a time and measure until it arrives."`
	StreamLatency bool          `help:"Instead, publish one event at a time and measure until it is on an open listen."`
	Streams       int           `placeholder:"N" help:"Instead, open N streams and measure their memory, the CPU while quiet, and one event to all of them."`
	Gateway       bool          `help:"Instead, put a backend behind the server, and measure what that adds to calls and progress messages, and a change of its tools to 1,000 streams."`
	Calls         int           `default:"1000" help:"With --gateway, calls each way."`
	Timeout       time.Duration `default:"2m" help:"Longest run."`
	Server        string        `help:"Measure this server instead of starting one; its CPU is not known then." placeholder:"URL"`
	Data          string        `help:"Directory for the server's database; a temporary one by default." placeholder:"DIR"`

	backend string // its URL, with --gateway
}

// Run implements the command.
func (c *BenchCmd) Run(g *Globals) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	defer cancel()
	receiver := newCounter()
	defer receiver.server.Close()
	url, debug, pid := c.Server, "", 0
	var backend *benchBackend
	if c.Gateway {
		if url != "" || c.Calls < 20 {
			return fault.New(fault.Invalid, "--gateway measures a server of its own, with 20 --calls or more")
		}
		backend = newBenchBackend()
		defer backend.close()
		c.backend = backend.server.URL + "/mcp"
	}
	if url == "" {
		var stop func()
		var err error
		if url, debug, pid, stop, err = c.start(ctx); err != nil {
			return err
		}
		defer stop()
	}
	switch {
	case c.Gateway:
		return c.gateway(ctx, g, url, backend)
	case c.StreamLatency:
		return c.streamLatency(ctx, url)
	case c.Streams > 0:
		return c.streams(ctx, url, debug, pid)
	}
	if err := c.register(ctx, url, receiver.server.URL); err != nil {
		return err
	}
	if c.Latency {
		return c.latency(ctx, g, url, receiver)
	}
	return c.throughput(ctx, g, url, pid, receiver)
}

func (c *BenchCmd) uri(i int) string { return fmt.Sprintf("event://bench/%d/tick", i%c.URIs) }

const benchCatalog = `events:
  - name: bench.tick
    uriTemplate: event://bench/{n}/tick
    title: Benchmark tick
    payloadSchema:
      type: object
      required: [filler]
      properties: {filler: {type: string}}
`

// start runs this program's serve command on a free port.
func (c *BenchCmd) start(ctx context.Context) (url, debug string, pid int, stop func(), err error) {
	dir := c.Data
	if dir == "" {
		if dir, err = os.MkdirTemp("", "mcpevents-bench-"); err != nil {
			return "", "", 0, nil, fault.Wrap(fault.Unavailable, err, "make a temporary directory")
		}
	}
	catalog := filepath.Join(dir, "catalog.yaml")
	if err := os.WriteFile(catalog, []byte(benchCatalog), 0o600); err != nil {
		return "", "", 0, nil, fault.Wrap(fault.Unavailable, err, "write the catalog")
	}
	self, err := os.Executable()
	if err != nil {
		return "", "", 0, nil, err
	}
	addr, profiles, err := freeAddresses()
	if err != nil {
		return "", "", 0, nil, err
	}
	args := []string{
		"--log-level", "error", "serve", "--addr", addr, "--data", dir,
		"--catalog", catalog, "--allow-insecure-targets", "--quota", strconv.Itoa(c.Subscribers*c.URIs + 10),
		"--streams", strconv.Itoa(c.Streams + 10), "--debug-addr", profiles,
	}
	if c.backend != "" {
		config, err := gatewayConfig(dir, c.backend)
		if err != nil {
			return "", "", 0, nil, err
		}
		args = append(args, "--config", config)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", "", 0, nil, fault.Wrap(fault.Unavailable, err, "start the server")
	}
	stop = func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if c.Data == "" {
			_ = os.RemoveAll(dir)
		}
	}
	url = "http://" + addr
	for {
		resp, err := http.Get(url + "/healthz")
		if err == nil {
			_ = resp.Body.Close()
		}
		if err == nil && resp.StatusCode == http.StatusOK {
			return url, "http://" + profiles, cmd.Process.Pid, stop, nil
		}
		select {
		case <-ctx.Done():
			stop()
			return "", "", 0, nil, ctx.Err()
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

func (c *BenchCmd) register(ctx context.Context, server, target string) error {
	jobs := make(chan int)
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for range 8 {
		wg.Go(func() {
			for i := range jobs {
				body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"resources/subscriptions/register","params":{"uris":[%q],"targetUri":"%s/hook/%d","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`,
					c.uri(i), target, i)
				answer, err := benchPost(ctx, server+"/mcp", []byte(body), map[string]string{
					"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "resources/subscriptions/register",
					"Accept": "application/json, text/event-stream",
				})
				if err == nil && !bytes.Contains(answer, []byte(`"subscription"`)) {
					err = fault.New(fault.Invalid, "register: %.300s", answer)
				}
				if err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	for i := range c.Subscribers * c.URIs {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

var benchClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: 30 * time.Second}

func benchPost(ctx context.Context, url string, body []byte, headers map[string]string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range headers {
		req.Header.Set(k, v)
	}
	resp, err := benchClient.Do(req)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "call the server")
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode >= 300 {
		err = fault.New(fault.Unavailable, "the server answered %s: %.300s", resp.Status, b)
	}
	return b, err
}

type benchEvent struct {
	ID   string          `json:"id"`
	URI  string          `json:"uri"`
	Data json.RawMessage `json:"data"`
}

func (c *BenchCmd) event(n int, filler json.RawMessage) benchEvent {
	return benchEvent{ID: fmt.Sprintf("bench-%d-%d", os.Getpid(), n), URI: c.uri(n), Data: filler}
}

func (c *BenchCmd) filler() json.RawMessage {
	b := make([]byte, max(1, (c.Payload-14)/2))
	_, _ = rand.Read(b) // never fails (Go 1.24)
	return json.RawMessage(fmt.Sprintf(`{"filler":"%x"}`, b))
}

func (c *BenchCmd) throughput(ctx context.Context, g *Globals, server string, pid int, r *counter) error {
	want := int64(c.Events) * int64(c.Subscribers)
	progress := mpb.NewWithContext(ctx, mpb.WithOutput(os.Stderr), mpb.WithAutoRefresh())
	if !g.terminal() {
		progress = mpb.NewWithContext(ctx, mpb.WithOutput(io.Discard))
	}
	bar := progress.AddBar(want, mpb.PrependDecorators(decor.Name("delivered "), decor.CountersNoUnit("%d / %d")),
		mpb.AppendDecorators(decor.EwmaETA(decor.ET_STYLE_GO, 30)))
	filler := c.filler()
	before, started := cpuSeconds(pid), time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	for range c.Publishers {
		wg.Go(func() {
			for {
				from := int(next.Add(int64(c.Batch))) - c.Batch
				if from >= c.Events || ctx.Err() != nil {
					return
				}
				var events []benchEvent
				for n := from; n < min(from+c.Batch, c.Events); n++ {
					events = append(events, c.event(n, filler))
				}
				body, _ := json.Marshal(events)
				if _, err := benchPost(ctx, server+"/events", body, nil); err != nil {
					failed.Store(&err)
					return
				}
			}
		})
	}
	wg.Wait()
	publishing := time.Since(started)
	if err := failed.Load(); err != nil {
		return *err
	}
	for r.total.Load() < want {
		bar.SetCurrent(r.total.Load())
		select {
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "only %d of %d deliveries arrived in time", r.total.Load(), want)
		case <-time.After(5 * time.Millisecond):
		}
	}
	bar.SetCurrent(want)
	took := time.Since(started)
	progress.Wait()
	cpu := cpuSeconds(pid) - before
	fmt.Printf("events %d, subscribers each %d, URIs %d, batch %d, payload %d B\n", c.Events, c.Subscribers, c.URIs, c.Batch, len(filler))
	fmt.Printf("published in           %s (%.0f/s)\n", publishing.Round(time.Millisecond), float64(c.Events)/publishing.Seconds())
	fmt.Printf("all delivered in       %s (%.0f deliveries/s)\n", took.Round(time.Millisecond), float64(want)/took.Seconds())
	fmt.Printf("arrived more than once %d\n", r.total.Load()-want)
	if pid != 0 {
		fmt.Printf("server CPU             %.2f s (%.2f s per 10,000 deliveries)\n", cpu, cpu*10000/float64(want))
		fmt.Printf("server peak memory     %s\n", peakMemory(pid))
	}
	return nil
}

func (c *BenchCmd) latency(ctx context.Context, _ *Globals, server string, r *counter) error {
	filler := c.filler()
	return c.oneByOne(ctx, server, r.arrived, "publish to arrival", func(i int) benchEvent { return c.event(i, filler) })
}

// oneByOne publishes one event after the other and measures until each arrives.
func (c *BenchCmd) oneByOne(ctx context.Context, server string, arrived <-chan time.Time, what string, event func(int) benchEvent) error {
	n := min(c.Events, 2000)
	took := make([]time.Duration, 0, n)
	for i := range n {
		body, _ := json.Marshal(event(i))
		started := time.Now()
		if _, err := benchPost(ctx, server+"/events", body, nil); err != nil {
			return err
		}
		select {
		case at := <-arrived:
			took = append(took, at.Sub(started))
		case <-ctx.Done():
			return fault.New(fault.Unavailable, "event %d did not arrive in time", i)
		}
	}
	slices.Sort(took)
	fmt.Printf("%s, one event at a time, %d events\n", what, n)
	fmt.Printf("p50 %s  p90 %s  p99 %s  max %s\n", took[n/2], took[n*9/10], took[n*99/100], took[n-1])
	fmt.Printf("fdatasync of the data directory's disk: p50 %s  p99 %s\n", fsyncTime(0.5), fsyncTime(0.99))
	return nil
}

// counter is a webhook receiver that only counts.
type counter struct {
	server  *httptest.Server
	total   atomic.Int64
	arrived chan time.Time
}

func newCounter() *counter {
	r := &counter{arrived: make(chan time.Time, 4096)}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		at := time.Now()
		_, _ = io.Copy(io.Discard, req.Body)
		r.total.Add(1)
		select {
		case r.arrived <- at:
		default:
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	return r
}

// cpuSeconds is the CPU time of a process so far (Linux; 0 elsewhere).
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
	return (user + system) / 100 // USER_HZ
}

func peakMemory(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

func fsyncTime(quantile float64) time.Duration {
	f, err := os.CreateTemp("", "mcpevents-fsync-")
	if err != nil {
		return 0
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
	return took[int(float64(len(took)-1)*quantile)]
}

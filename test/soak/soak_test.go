//go:build unix

// Package soak runs the stand-alone server for long with backends on official SDKs behind it and with clients of both
// generations in front of it, and holds what both ends saw against each other.
package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// Settings of a long run, for example:
//
//	make soak SOAK=1h
const (
	timeEnv = "MCPEVENTS_SOAK"      // how long the load lasts; 20s by default
	seedEnv = "MCPEVENTS_SOAK_SEED" // repeats the choices of a run that logged its seed
)

const (
	clients    = 50
	principals = 10
)

func TestMain(m *testing.M) {
	if os.Getenv(goBackend) != "" {
		if err := serveGo(os.Args[1], os.Args[2], os.Args[3]); err != nil {
			fmt.Fprintln(os.Stderr, "the Go backend:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(harness.Main(m))
}

// run is one run of [TestSoak].
type run struct {
	t        *testing.T
	server   *harness.Server
	debug    string // the address of its profiles
	backends []*backend
	clients  []*client
	account  *account
	http     *http.Client
	length   time.Duration
	seed     uint64
	pause    time.Duration // between two calls of a client
	reopen   time.Duration // how long a client keeps a stream
	samples  []sample
}

// sample is a measurement of the server.
type sample struct {
	after       time.Duration
	rss         int64
	files       int
	goroutines  int
	connections []int // by backend
}

// TestSoak has 50 clients of both generations follow and call backends on the official TypeScript, Python and Go SDKs for
// [timeEnv]. The backends change, restart, roll to new versions, and have slow and refusing resources. The clients cancel,
// answer late and reconnect. Every change must reach every subscriber, every cancellation and answer its backend, and
// every call must end with one response, unless its backend restarted meanwhile.
func TestSoak(t *testing.T) {
	r := &run{
		t: t, length: 20 * time.Second, seed: rand.Uint64(), account: newAccount(), pause: 5 * time.Second, reopen: time.Minute,
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}},
	}
	if text := os.Getenv(timeEnv); text != "" {
		var err error
		if r.length, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", timeEnv, err)
		}
	}
	if text := os.Getenv(seedEnv); text != "" {
		var err error
		if r.seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("%s: %v", seedEnv, err)
		}
	}
	if r.length < time.Minute {
		r.pause, r.reopen = 2*time.Second, 8*time.Second
	}
	defer r.http.CloseIdleConnections()
	r.start()
	t.Logf("%d clients and %d backends are ready; the load lasts %v (%s=%d)", clients, len(r.backends), r.length, seedEnv, r.seed)
	r.load()
	began := time.Now()
	r.settle()
	t.Logf("everything had arrived %v after the load", time.Since(began).Round(time.Second))
	r.account.check()
	t.Logf("after %v with the seed %d:%s", r.length, r.seed, r.account.report())
	for n, f := range append(r.account.faults, r.account.late...) {
		if n < 50 {
			t.Error(f)
		}
	}
	r.checkLevels()
}

func (r *run) start() {
	js, python := harness.Node(r.t), harness.NewPython(r.t)
	program, err := os.Executable()
	expect.OK(r.t, err)
	background := context.Background()
	r.backends = []*backend{
		newBackend(r.t, "ts", r.account, func(args ...string) *exec.Cmd { return js.Command(background, "backend.js", args...) }),
		newBackend(r.t, "py", r.account, func(args ...string) *exec.Cmd { return python.Command(background, "backend.py", args...) }),
		newBackend(r.t, "go", r.account, func(args ...string) *exec.Cmd {
			cmd := exec.Command(program, args...)
			cmd.Env = append(os.Environ(), goBackend+"=1")
			return cmd
		}),
	}
	config := "backends:\n"
	for _, b := range r.backends {
		config += b.config()
	}
	callers := []harness.Caller{}
	for n := range principals {
		callers = append(callers, harness.Caller{Principal: fmt.Sprint("p", n), Scopes: harness.All})
	}
	r.debug = harness.FreeAddr(r.t)
	r.server = harness.StartServer(r.t, harness.ServerOptions{
		Fast: true, Config: config, Callers: callers, Args: []string{"--log-level", "warn", "--debug-addr", r.debug},
	})
	for n := range clients {
		r.clients = append(r.clients, newClient(r, n))
	}
}

// load runs the clients and the disturbances for the length of the run. Streams and readers continue until settle is done.
func (r *run) load() {
	following, end := context.WithCancel(r.t.Context())
	var followers sync.WaitGroup
	r.t.Cleanup(func() { end(); followers.Wait() })
	var began sync.WaitGroup
	for _, c := range r.clients {
		began.Go(func() {
			bounded, cancel := context.WithTimeout(r.t.Context(), harness.Patience)
			defer cancel()
			if err := c.begin(bounded); err != nil {
				r.account.fault("%s: %v", c.name, err)
			}
		})
	}
	began.Wait()
	for n, c := range r.clients {
		choices := rand.New(rand.NewPCG(r.seed, uint64(500+n)))
		followers.Go(func() { c.follow(following, choices) })
		followers.Go(func() { c.read(following) })
	}
	ctx, stop := context.WithTimeout(r.t.Context(), r.length)
	defer stop()
	var wg sync.WaitGroup
	for n, do := range []func(context.Context, *rand.Rand){r.changeResources, r.changeRareResources, r.changeLists, r.restart, r.measure} {
		choices := rand.New(rand.NewPCG(r.seed, uint64(n)))
		wg.Go(func() { do(ctx, choices) })
	}
	for _, c := range r.clients {
		wg.Go(func() { c.work(ctx) })
	}
	wg.Wait()
	r.t.Logf("the load has ended; %d faults", r.account.wrong())
}

func (r *run) any(choices *rand.Rand) *backend { return r.backends[choices.IntN(len(r.backends))] }

func (r *run) change(b *backend, name string) {
	if err := b.change(name); err != nil {
		r.account.fault("change %s: %v", b.uri(name), err)
	}
}

func (r *run) changeResources(ctx context.Context, choices *rand.Rand) {
	for harness.Sleep(ctx, harness.About(choices, 1500*time.Millisecond)) {
		r.change(r.any(choices), []string{"r0", "r1", "r2", "slow", "refused"}[choices.IntN(5)])
	}
}

// changeRareResources changes resources so rarely that no later change hides the loss of one.
func (r *run) changeRareResources(ctx context.Context, choices *rand.Rand) {
	for n := choices.IntN(6); harness.Sleep(ctx, harness.About(choices, 25*time.Second)); n++ {
		r.change(r.backends[n%3], []string{"r3", "r4"}[n/3%2])
	}
}

func (r *run) changeLists(ctx context.Context, choices *rand.Rand) {
	for harness.Sleep(ctx, harness.About(choices, min(40*time.Second, r.length/3))) {
		r.change(r.any(choices), "list")
	}
}

// restart ends a backend, by a signal or as a crash would, and starts its next version.
func (r *run) restart(ctx context.Context, choices *rand.Rand) {
	for harness.Sleep(ctx, harness.About(choices, min(50*time.Second, r.length/3))) {
		b := r.any(choices)
		sig := []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[choices.IntN(2)]
		r.account.count("restarts of backends")
		if err := b.restart(sig, time.Duration(choices.IntN(4000))*time.Millisecond); err != nil {
			r.account.fault("restart: %v", err)
			return
		}
	}
}

// settle waits until every subscriber has read the current versions and every cancellation has arrived.
func (r *run) settle() {
	for _, b := range r.backends {
		for _, name := range append([]string{"list"}, resources...) {
			r.change(b, name)
		}
	}
	var behind []string
	if !harness.Within(r.t, 2*lateAfter, func() bool {
		behind = nil
		for _, c := range r.clients {
			behind = append(behind, c.behind()...)
		}
		return len(behind) == 0
	}) {
		for _, text := range behind[:min(20, len(behind))] {
			r.t.Error(text)
		}
		r.t.Errorf("%d versions were not read", len(behind))
	}
	harness.Within(r.t, lateAfter, func() bool { return len(r.account.open()) == 0 })
}

// measure takes samples until ctx ends.
func (r *run) measure(ctx context.Context, _ *rand.Rand) {
	began := time.Now()
	every := min(10*time.Second, r.length/20)
	for n := 1; harness.Sleep(ctx, every); n++ {
		s := sample{after: time.Since(began), rss: r.server.RSS(), files: r.server.Files(), goroutines: r.goroutines(ctx)}
		for _, b := range r.backends {
			s.connections = append(s.connections, b.connections())
		}
		r.samples = append(r.samples, s)
		if n%6 == 0 {
			r.t.Logf("after %v: %d MiB, %d files, %d goroutines, connections to backends %v; %d faults, %d late", s.after.Round(time.Second),
				s.rss>>20, s.files, s.goroutines, s.connections, r.account.wrong(), r.account.lateCount())
		}
	}
}

var total = regexp.MustCompile(`total (\d+)`)

// goroutines returns the number of goroutines of the server, or 0 if the server does not answer.
func (r *run) goroutines(ctx context.Context) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.debug+"/debug/pprof/goroutine?debug=1", nil)
	if err != nil {
		return 0
	}
	resp, err := r.http.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	first := make([]byte, 100)
	n, _ := resp.Body.Read(first)
	m := total.FindSubmatch(first[:n])
	if m == nil {
		return 0
	}
	count, _ := strconv.Atoi(string(m[1]))
	return count
}

// checkLevels compares what the server held in the last quarter of the load with the first quarter.
func (r *run) checkLevels() {
	quarter := len(r.samples) / 4
	if quarter == 0 {
		r.t.Error("there are too few samples")
		return
	}
	first, last := r.samples[:quarter], r.samples[len(r.samples)-quarter:]
	compare := func(what string, slack float64, of func(sample) float64) {
		mean := func(samples []sample) (sum float64) {
			for _, s := range samples {
				sum += of(s) / float64(len(samples))
			}
			return sum
		}
		before, after := mean(first), mean(last)
		r.t.Logf("%s: %.0f in the first quarter, %.0f in the last", what, before, after)
		if after > before*1.25+slack {
			r.t.Errorf("%s grew from %.0f to %.0f", what, before, after)
		}
	}
	compare("MiB of memory", 60, func(s sample) float64 { return float64(s.rss >> 20) })
	compare("open files", 40, func(s sample) float64 { return float64(s.files) })
	compare("goroutines", 150, func(s sample) float64 { return float64(s.goroutines) })
	for n, b := range r.backends {
		compare("connections to "+b.name, 20, func(s sample) float64 { return float64(s.connections[n]) })
	}
}

// Package runner runs the deployment template on this machine: it creates the template's tables, queues and keys at
// an AWS endpoint, builds its functions, and runs the real binaries with the triggers that they have on AWS.
//
//	front ──▶ Function URLs ─┐
//	queues ──▶ mappings ─────┼──▶ functions (processes) ──▶ AWS endpoint
//	clock ──▶ schedules ─────┤            │
//	Invoke API ──────────────┘◀───────────┘
//
// It connects the packages in localstack/internal, which simulate AWS. localstack/README.md lists what they omit.
package runner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/mapping"
	"github.com/mcp-events/mcpevents/localstack/internal/schedule"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
	"github.com/mcp-events/mcpevents/test/awscount"
)

// Stack is a running template. It is safe for concurrent use.
type Stack struct {
	opts       Options
	endpoints  Endpoints // as the functions see them
	unreserved *lambda.Limit
	output     io.Writer
	dir        string // directory of the built functions
	gate       *gate

	tpl       *template.Template
	update    sync.Mutex        // held during an update, and by Close
	resources map[string]*made  // by logical id
	queues    map[string]*queue // by logical id
	mappings  []*mapped
	schedules []scheduled
	invoke    net.Addr
	front     net.Addr

	mu        sync.Mutex
	functions []*function       // replaced by changes, never modified
	urls      map[string]string // logical id to Function URL
	handlers  map[string]http.Handler
	outputs   map[string]string
	status    string         // as CloudFormation calls it
	names     map[string]int // number of names that each logical id has had
	ports     int            // number of ports that Function URLs have had

	callbacks     callbacks
	distributions distributions
	running       context.Context    // context of mappings, schedules and kills; nil before they start
	stop          context.CancelFunc // ends running
	triggers      sync.WaitGroup
	servers       []*http.Server
	serving       sync.WaitGroup
	closeOnce     sync.Once
}

// function is a function of the template.
type function struct {
	*lambda.Function
	id     string       // logical id
	server *http.Server // of its URL; nil without a URL

	// The remaining fields are used by updates.
	fixed       []byte // properties that updates cannot change, as JSON
	reserved    *template.Int
	limit       *lambda.Limit
	versions    int    // number of published versions
	description string // of the latest version
	published   []byte // properties of the latest version, as JSON
}

type mapped struct {
	id     string // logical id
	fn     *function
	source mapping.Source
	opts   mapping.Options
	stop   context.CancelFunc // nil before it starts
}

type scheduled struct {
	fn    *function
	every time.Duration
	rule  string
}

// Start starts the stack and returns when it accepts requests. ctx limits only the start; [Stack.Close] stops the
// stack.
func Start(ctx context.Context, o Options) (*Stack, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("local runner: %w", err)
	}
	s := &Stack{
		opts: o, endpoints: o.Endpoints, unreserved: lambda.NewLimit(o.Concurrency), output: &lockedWriter{w: o.Output},
		queues: map[string]*queue{}, urls: map[string]string{}, handlers: map[string]http.Handler{}, names: map[string]int{}, status: creating,
		callbacks: callbacks{waiting: map[string]chan callback{}}, distributions: distributions{running: map[string]*distribution{}},
	}
	s.gate = &gate{
		stack: s, policies: map[string]access.Policy{}, tables: map[string]tableName{}, counts: map[string]awscount.Counts{}, calls: map[Call]bool{},
	}
	if err := s.start(ctx); err != nil {
		s.Close()
		return nil, fmt.Errorf("local runner: %w", err)
	}
	return s, nil
}

func (s *Stack) start(ctx context.Context) error {
	src, err := os.ReadFile(s.opts.Template)
	if err != nil {
		return err
	}
	if s.tpl, err = template.Parse(s.opts.Template, src); err != nil {
		return err
	}
	if err := s.tpl.CheckParameters(s.opts.Parameters); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "mcpevents-functions-"); err != nil {
		return err
	}
	if !s.opts.Direct {
		if err := s.gate.open(); err != nil {
			return err
		}
	}
	if s.invoke, err = s.serve("127.0.0.1:0", s.invokeAPI()); err != nil {
		return err
	}
	sc := s.scope(ctx, s.opts.Parameters)
	if err := s.build(ctx, sc); err != nil {
		return err
	}
	first := !sc.deployedBefore()
	outputs, err := sc.makeAll()
	if err != nil {
		if first {
			err = errors.Join(err, sc.undo())
		}
		return err
	}
	if err := s.settle(sc, outputs); err != nil {
		return err
	}
	if err := s.serveFront(); err != nil {
		return err
	}
	s.trigger()
	return nil
}

// trigger starts the mappings, the schedules and the kills.
func (s *Stack) trigger() {
	ctx, cancel := context.WithCancel(context.Background())
	s.running, s.stop = ctx, cancel
	for _, m := range s.mappings {
		s.startMapping(m)
	}
	for _, t := range s.schedules {
		s.triggers.Go(func() {
			schedule.Run(ctx, t.every, t.rule, func(ctx context.Context, payload []byte) { s.tick(ctx, t.fn, payload) })
		})
	}
	if s.opts.Kills > 0 {
		s.triggers.Go(func() { s.chaos(ctx) })
	}
}

// startMapping starts a mapping, unless the stack is not running yet.
func (s *Stack) startMapping(m *mapped) {
	if s.running == nil {
		return
	}
	ctx, cancel := context.WithCancel(s.running)
	m.stop = cancel
	s.triggers.Go(func() { mapping.Run(ctx, m.source, m.fn, m.opts) })
}

// tick runs a scheduled invocation. It ignores the response and logs a failure.
func (s *Stack) tick(ctx context.Context, fn *function, payload []byte) {
	ctx, cancel := context.WithTimeout(ctx, fn.Timeout()+time.Minute)
	defer cancel()
	resp, err := fn.Invoke(ctx, lambda.Invocation{Payload: payload})
	var answer []byte
	if err == nil {
		answer, err = resp.ReadAll()
		if err == nil && resp.FunctionError != "" {
			err = fmt.Errorf("the function failed: %s", answer)
		}
	}
	if err != nil && !errors.Is(err, lambda.ErrClosed) {
		s.opts.Log.Warn("scheduled invocation failed", "function", fn.Name(), "error", err)
	}
}

// chaos kills processes at random times, on average Kills per second.
func (s *Stack) chaos(ctx context.Context) {
	for {
		pause := time.Duration(rand.ExpFloat64() / s.opts.Kills * float64(time.Second))
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
			if id := s.Kill(); id != "" {
				s.opts.Log.Info("killed a process", "function", id)
			}
		}
	}
}

// Kill sends SIGKILL to a random process of one of the functions with the logical ids, or of any function if ids
// is empty. Processes with a running invocation are preferred. It returns the function's id, or "" if there was no
// process.
func (s *Stack) Kill(ids ...string) string {
	functions := s.all()
	for _, busy := range []bool{true, false} {
		for _, n := range rand.Perm(len(functions)) {
			fn := functions[n]
			if (len(ids) == 0 || slices.Contains(ids, fn.id)) && fn.Kill(busy) {
				return fn.id
			}
		}
	}
	return ""
}

// Retire sends SIGTERM to all processes of the function with the logical id. They receive no further calls.
func (s *Stack) Retire(id string) {
	if fn := s.function(id); fn != nil {
		fn.Retire()
	}
}

// Deploy replaces the executable of the function with the logical id, as an update of its code does. Running
// invocations finish with the old executable, and new ones use the new one.
func (s *Stack) Deploy(id, binary string) {
	if fn := s.function(id); fn != nil {
		fn.Deploy(binary)
	}
}

// Outputs returns the outputs of the template.
func (s *Stack) Outputs() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return over(s.outputs, nil)
}

// QueueURL returns the URL of the queue with a logical id, or "" if the stack does not have this queue.
func (s *Stack) QueueURL(id string) string {
	s.gate.mu.RLock()
	defer s.gate.mu.RUnlock()
	if q := s.queues[id]; q != nil {
		return q.url
	}
	return ""
}

// Stats returns the counts of each function, by logical id.
func (s *Stack) Stats() map[string]lambda.Stats {
	out := map[string]lambda.Stats{}
	for _, fn := range s.all() {
		out[fn.id] = fn.Stats()
	}
	return out
}

// Environment returns the environment of the latest version of the function with a logical id.
func (s *Stack) Environment(id string) map[string]string {
	fn := s.function(id)
	if fn == nil {
		return nil
	}
	return fn.Env()
}

// AtWork returns the number of processes with a running invocation of the function with a logical id.
func (s *Stack) AtWork(id string) int {
	fn := s.function(id)
	if fn == nil {
		return 0
	}
	return fn.Live() - fn.Idle()
}

// Invoke invokes the function with a logical id and returns its response. If the function reports an error, Invoke
// returns it.
func (s *Stack) Invoke(ctx context.Context, id string, payload []byte) ([]byte, error) {
	fn := s.function(id)
	if fn == nil {
		return nil, fmt.Errorf("local runner: there is no function %s", id)
	}
	resp, err := fn.Invoke(ctx, lambda.Invocation{Payload: payload})
	if err != nil {
		return nil, err
	}
	b, err := resp.ReadAll()
	if err == nil && resp.FunctionError != "" {
		err = fmt.Errorf("local runner: %s failed: %s", id, b)
	}
	return b, err
}

// closeTime limits how long requests may take to end after their functions have ended.
const closeTime = 5 * time.Second

// Close stops the stack: first the triggers, then the functions' processes, and then the servers. It returns when
// everything has ended. Data in AWS remains.
func (s *Stack) Close() {
	s.closeOnce.Do(func() {
		s.update.Lock()
		defer s.update.Unlock()
		if s.stop != nil {
			s.stop()
		}
		// Batches that have been received may finish within the grace period. Then their functions end.
		done := make(chan struct{})
		go func() {
			s.triggers.Wait()
			close(done)
		}()
		timer := time.NewTimer(max(s.opts.Grace, 2*time.Second))
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
		}
		var closing sync.WaitGroup
		for _, fn := range s.all() {
			closing.Go(fn.Close)
		}
		closing.Wait()
		<-done
		ctx, cancel := context.WithTimeout(context.Background(), closeTime)
		defer cancel()
		for _, srv := range s.servers {
			if srv.Shutdown(ctx) != nil {
				_ = srv.Close()
			}
		}
		s.serving.Wait()
		if s.dir != "" {
			if err := os.RemoveAll(s.dir); err != nil {
				s.opts.Log.Warn("built functions not removed", "error", err)
			}
		}
	})
}

// all returns the functions, which an update may add and remove.
func (s *Stack) all() []*function {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.functions
}

func (s *Stack) function(id string) *function {
	for _, fn := range s.all() {
		if fn.id == id {
			return fn
		}
	}
	return nil
}

func (s *Stack) queueByARN(arn string) *queue {
	s.gate.mu.RLock()
	defer s.gate.mu.RUnlock()
	for _, q := range s.queues {
		if q.arn == arn {
			return q
		}
	}
	return nil
}

func (s *Stack) id() string {
	return fmt.Sprintf("arn:aws:cloudformation:%s:%s:stack/%s/local", s.opts.Region, account, s.opts.Name)
}

func (s *Stack) progress(format string, args ...any) {
	fmt.Fprintf(s.opts.Progress, format+"\n", args...)
}

// lockedWriter allows several processes to write to one writer.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// strict decodes JSON and refuses members that are not in v.
func strict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

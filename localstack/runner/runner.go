// Package runner runs the deployment template on this machine: it creates the
// template's tables, queues and keys at an AWS endpoint, builds its functions, and
// runs the real binaries with what would trigger them on AWS.
//
//	front ──▶ Function URLs ─┐
//	queues ──▶ mappings ─────┼──▶ functions (processes) ──▶ endpoint of AWS
//	clock ──▶ schedules ─────┤            │
//	Invoke API ──────────────┘◀───────────┘
//
// It wires the packages beside it and holds no rule of its own about how AWS
// behaves. What it leaves out is listed in localstack/README.md.
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

// Stack is a template that runs. Its methods may be called concurrently.
type Stack struct {
	opts       Options
	endpoints  Endpoints // what the functions are given
	unreserved *lambda.Limit
	output     io.Writer
	dir        string // of the built functions
	gate       *gate

	tpl       *template.Template
	update    sync.Mutex       // held by an update, and by the end of the stack
	resources map[string]*made // by logical id
	functions []*function
	queues    map[string]*queue // by logical id
	mappings  []*mapped
	schedules []scheduled
	urls      map[string]string // logical id to Function URL
	handlers  map[string]http.Handler
	invoke    net.Addr
	front     net.Addr

	mu      sync.Mutex
	outputs map[string]string
	status  string         // as CloudFormation calls it
	names   map[string]int // how many names each logical id has had

	callbacks callbacks
	running   context.Context    // of mappings, schedules and kills; nil before they start
	stop      context.CancelFunc // ends running
	triggers  sync.WaitGroup
	servers   []*http.Server
	serving   sync.WaitGroup
	closeOnce sync.Once
}

// function is a function of the template.
type function struct {
	*lambda.Function
	id string // logical

	// The rest is for updates.
	fixed       []byte // the properties that they cannot change, as JSON
	reserved    *template.Int
	limit       *lambda.Limit
	versions    int    // how many were published
	description string // of the last version
	published   []byte // the properties of the last version, as JSON
}

type mapped struct {
	id     string // logical
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

// Start brings the stack up and returns when it takes requests. ctx bounds the
// start only; [Stack.Close] ends the stack.
func Start(ctx context.Context, o Options) (*Stack, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("local runner: %w", err)
	}
	s := &Stack{
		opts: o, endpoints: o.Endpoints, unreserved: lambda.NewLimit(o.Concurrency), output: &lockedWriter{w: o.Output},
		queues: map[string]*queue{}, urls: map[string]string{}, handlers: map[string]http.Handler{}, names: map[string]int{}, status: creating,
		callbacks: callbacks{waiting: map[string]chan callback{}},
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
	outputs, err := sc.makeAll()
	if err != nil {
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

// trigger starts what invokes functions without being asked.
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

// startMapping starts a mapping, unless the stack does not run yet.
func (s *Stack) startMapping(m *mapped) {
	if s.running == nil {
		return
	}
	ctx, cancel := context.WithCancel(s.running)
	m.stop = cancel
	s.triggers.Go(func() { mapping.Run(ctx, m.source, m.fn, m.opts) })
}

// tick is a scheduled invocation. Its response is not read; a failure is logged.
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

// chaos kills processes at random times, Kills a second on average.
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

// Kill sends SIGKILL to a process of one of the functions with the logical ids,
// or of any when none is given, chosen at random; processes at work come first. It
// returns the id of the function that was hit, "" when there was no process.
func (s *Stack) Kill(ids ...string) string {
	for _, busy := range []bool{true, false} {
		for _, n := range rand.Perm(len(s.functions)) {
			fn := s.functions[n]
			if (len(ids) == 0 || slices.Contains(ids, fn.id)) && fn.Kill(busy) {
				return fn.id
			}
		}
	}
	return ""
}

// Retire sends SIGTERM to all processes of the function with the logical id. They
// get no further call.
func (s *Stack) Retire(id string) {
	for _, fn := range s.functions {
		if fn.id == id {
			fn.Retire()
		}
	}
}

// Deploy gives the function with the logical id another executable, as an update of its code
// does: what runs ends with the one of before, what begins gets the new one.
func (s *Stack) Deploy(id, binary string) {
	if fn := s.function(id); fn != nil {
		fn.Deploy(binary)
	}
}

// Outputs are the outputs of the template.
func (s *Stack) Outputs() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return over(s.outputs, nil)
}

// QueueURL is the URL of the queue with a logical id, "" if there is none.
func (s *Stack) QueueURL(id string) string {
	s.gate.mu.RLock()
	defer s.gate.mu.RUnlock()
	if q := s.queues[id]; q != nil {
		return q.url
	}
	return ""
}

// Stats are the counts of each function, by logical id.
func (s *Stack) Stats() map[string]lambda.Stats {
	out := make(map[string]lambda.Stats, len(s.functions))
	for _, fn := range s.functions {
		out[fn.id] = fn.Stats()
	}
	return out
}

// Environment is that of the last version of the function with a logical id.
func (s *Stack) Environment(id string) map[string]string {
	fn := s.function(id)
	if fn == nil {
		return nil
	}
	return fn.Env()
}

// AtWork is the number of processes of the function with a logical id that serve something.
func (s *Stack) AtWork(id string) int {
	fn := s.function(id)
	if fn == nil {
		return 0
	}
	return fn.Live() - fn.Idle()
}

// Invoke invokes the function with a logical id and returns its response. What
// the function reports as an error is an error.
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

// closeTime bounds what requests may take to end once their functions are gone.
const closeTime = 5 * time.Second

// Close ends the stack: first what triggers functions, then their processes,
// then the servers. It returns when all is gone; what the stack wrote to AWS stays.
func (s *Stack) Close() {
	s.closeOnce.Do(func() {
		s.update.Lock()
		defer s.update.Unlock()
		if s.stop != nil {
			s.stop()
		}
		// Batches in hand may finish within the grace; then their functions go.
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
		for _, fn := range s.functions {
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
		if err := s.record(); err != nil {
			s.opts.Log.Warn("calls not recorded", "file", s.opts.Calls, "error", err)
		}
		if s.dir != "" {
			if err := os.RemoveAll(s.dir); err != nil {
				s.opts.Log.Warn("the built functions could not be removed", "error", err)
			}
		}
	})
}

func (s *Stack) function(id string) *function {
	for _, fn := range s.functions {
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

// lockedWriter lets several processes print to one writer.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// strict decodes JSON and refuses members that v does not name.
func strict(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}

package stdio

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

const (
	// maxMessage limits the length of a message in bytes, as for backends over HTTP. The gateway ends a process that writes a line of more
	// than maxLine bytes.
	maxMessage = 8 << 20
	maxLine    = 4 * maxMessage
	maxQueued  = 2 * maxMessage // bytes of messages that wait to be read
	// maxQuestions limits the questions of a process that clients have not answered yet. Together they have up to maxQueued bytes.
	maxQuestions = 1000
	// maxEarly limits the questions of a process that wait for the next call because no call is running. Each waits for up to earlyTime.
	// In addition, up to maxEarly notifications of up to maxNote bytes wait for the next call.
	maxEarly  = 16
	maxNote   = 64 << 10
	earlyTime = 10 * time.Second
	// lateTime is how long a client may take to answer a question after the call that carried the question has ended. It equals the
	// default limit of a call's duration.
	lateTime = 15 * time.Minute
	// The gateway logs up to stderrLine bytes of each line that a process writes to standard error. After the first stderrBurst lines, it
	// logs stderrRate lines per second.
	stderrLine, stderrRate, stderrBurst = 2 << 10, 5, 50
	// minSecret is the minimum length of a line of a secret that the gateway hides in logged output. Shorter texts may occur by chance.
	minSecret  = 4
	drainTime  = 200 * time.Millisecond // limits how long the output of a process is read after its end
	hangUpTime = 2 * time.Second        // how long the relay has to close its streams before an idle process ends
)

// process is one run of a command. Its states are:
//
//	──▶ starting ──▶ running ──stop: unused, retired, closed──▶ stopping ──▶ ended
//	       │            └──────────────its own end──────────────────────────▶ │
//	       └──the command does not start─────────────────────────────────────▶┘
//
// A starting process already counts toward the limits on processes (see [Transport.place]), but its command does not run yet.
//
// Five goroutines belong to a process. One supervises it, and the others write its standard input and read its standard output, standard
// error and exit status.
type process struct {
	server *server
	id     string // random; also the session id if the process belongs to a client's session
	holder string // the principal to whom it belongs, or empty for the shared process
	cmd    *exec.Cmd
	log    *slog.Logger
	since  time.Time
	// answersLate is set if the client can still answer a question after the call that carried the question has ended.
	answersLate bool

	// The handshake sets these fields for a shared process. stateless is true if the process speaks a revision without sessions.
	// Otherwise, initialized is the result of its initialize.
	stateless   bool
	initialized json.RawMessage

	out chan []byte // messages for its standard input
	// The context stopping is canceled when the process begins to end, see [process.endLocked]. The context killing is canceled so that a
	// process that is already stopping ends without waiting for [Transport.Grace].
	stopping, killing   context.Context
	beginStopping, kill context.CancelFunc
	done                chan struct{}

	mu        sync.Mutex
	why       string               // why it ends; empty while it runs, or if it ends by itself
	failed    bool                 // it ends because it broke the protocol
	opened    int                  // the number of requests so far
	exchanges map[string]*exchange // running requests by id
	listening *exchange            // the newest GET stream, or nil
	questions map[string]question  // its own unanswered requests by id
	notes     []json.RawMessage    // notifications that wait for the next call
	late      map[string]bool      // ids of cancelled requests, whose responses may still arrive
	replies   int                  // messages of this package that wait until the process reads
	calls     int                  // running requests, except listens
	queued    int                  // the sum of the size of all exchanges
	used      time.Time
	idle      *time.Timer
	leaving   bool // the process is idle, and will stop when the relay has had time to close its streams
	// The map watched has the reasons why the shared process keeps running without calls, see [process.watch]: URIs of resources, listen
	// requests and event streams.
	watched map[string]bool
	retired bool // the configuration no longer has the backend
}

func newProcess(s *server, holder string) *process {
	p := &process{
		server: s, id: rand.Text(), holder: holder, since: time.Now(), used: time.Now(),
		out: make(chan []byte), done: make(chan struct{}),
		exchanges: map[string]*exchange{}, questions: map[string]question{}, late: map[string]bool{}, watched: map[string]bool{},
	}
	p.stopping, p.beginStopping = context.WithCancel(context.Background())
	p.killing, p.kill = context.WithCancel(context.Background())
	return p
}

// spawn creates a process and starts its command. If a limit on processes is reached, it first ends another process.
func (s *server) spawn(ctx context.Context, holder string) (*process, error) {
	p := newProcess(s, holder)
	p.answersLate = upstream.DeclaredIn(ctx).AnswersLate
	if err := s.t.place(ctx, p); err != nil {
		return nil, err
	}
	err := p.start(ctx)
	if err != nil {
		s.forget(p)
		close(p.done)
		s.recordFailure(holder, err.Error(), false, 0)
		return nil, newUnsentError(fault.Unavailable, s.backend, "does not start: "+err.Error())
	}
	return p, nil
}

func (p *process) start(ctx context.Context) error {
	b, c := p.server.backend, p.server.backend.Command
	env, hide, err := buildEnvironment(ctx, p.server.t, c)
	if err != nil {
		return err
	}
	var files []*os.File
	pipe := func() (r, w *os.File) {
		var failed error
		r, w, failed = os.Pipe()
		err = cmp.Or(err, failed)
		files = append(files, r, w)
		return r, w
	}
	inRead, in := pipe()
	out, outWrite := pipe()
	errs, errsWrite := pipe()
	cmd := exec.Command(c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Dir, env, inRead, outWrite, errsWrite
	inGroup(cmd)
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		for _, f := range files {
			_ = f.Close()
		}
		return err
	}
	for _, f := range []*os.File{inRead, outWrite, errsWrite} {
		_ = f.Close() // the child process has its own copies of these files
	}
	p.cmd, p.log = cmd, p.server.t.Log.With("backend", b.Name, "pid", cmd.Process.Pid)
	if err := limitMemory(cmd.Process.Pid, int64(cmp.Or(c.MemoryMiB, api.DefaultMemoryMiB))<<20); err != nil {
		p.log.Warn("backend memory not limited", "error", err)
	}
	p.log.Info("backend process started", "session", p.holder != "")
	p.mu.Lock()
	p.idle = time.AfterFunc(p.idleTime(), p.checkIdle)
	p.mu.Unlock()
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	var reading sync.WaitGroup
	reading.Go(func() { p.read(out) })
	reading.Go(func() { p.readErrors(errs, hide) })
	go p.write(in)
	go p.supervise(exited, in, []*os.File{out, errs}, &reading)
	return nil
}

// buildEnvironment returns the environment of a command, and a replacer that hides its secrets in log lines. The environment has HOME
// because package runners such as npx and uvx keep their packages there.
func buildEnvironment(ctx context.Context, t *Transport, c *api.Command) (env []string, hide *strings.Replacer, err error) {
	var hidden []string
	for _, name := range []string{"PATH", "HOME"} {
		if _, given := c.Env[name]; !given {
			env = append(env, name+"="+os.Getenv(name))
		}
	}
	for name, value := range c.Env {
		text, err := t.Secrets(ctx, value)
		if err != nil {
			return nil, nil, fault.Wrap(fault.Invalid, err, "env %s", name)
		}
		env = append(env, name+"="+text)
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); value.IsReference() && len(line) >= minSecret {
				hidden = append(hidden, line, "("+value.String()+")")
			}
		}
	}
	return env, strings.NewReplacer(hidden...), nil
}

func (p *process) supervise(exited <-chan error, in *os.File, outputs []*os.File, reading *sync.WaitGroup) {
	var err error
	select {
	case err = <-exited:
		p.stop("")
	case <-p.stopping.Done():
		err = p.terminate(exited, in)
	}
	p.endGroup()
	_ = in.Close()
	for _, f := range outputs {
		// A child that has left the process group may keep the pipe open, so do not wait for the end of the output.
		_ = f.SetReadDeadline(time.Now().Add(drainTime))
	}
	reading.Wait()
	for _, f := range outputs {
		_ = f.Close()
	}
	p.idle.Stop()
	p.finish(err)
}

// terminate ends the process as the specification says (2025-11-25, Lifecycle, Shutdown): it closes standard input, then sends SIGTERM,
// then SIGKILL, with a pause of [Transport.Grace] before each signal.
func (p *process) terminate(exited <-chan error, in *os.File) error {
	_ = in.Close()
	for _, signal := range []func(*exec.Cmd){terminateGroup, killGroup} {
		wait := time.NewTimer(p.server.t.grace())
		select {
		case err := <-exited:
			wait.Stop()
			return err
		case <-p.killing.Done():
		case <-wait.C:
		}
		signal(p.cmd)
	}
	return <-exited
}

// endGroup ends the processes that the command has started and left running.
func (p *process) endGroup() {
	terminateGroup(p.cmd)
	for end := time.Now().Add(p.server.t.grace()); groupExists(p.cmd); time.Sleep(10 * time.Millisecond) {
		if p.killing.Err() != nil || !time.Now().Before(end) {
			killGroup(p.cmd)
			return
		}
	}
}

func (p *process) finish(exit error) {
	how := "its process exited"
	if exit != nil {
		how = "its process ended with " + exit.Error()
	}
	p.mu.Lock()
	failed := p.failed || p.why == ""
	ready := p.stateless || p.initialized != nil || p.holder != "" // a process of a client's session always counts as ready
	how = cmp.Or(p.why, how)
	for _, x := range p.exchanges {
		x.end(errors.New(how))
	}
	if p.listening != nil {
		p.listening.end(errors.New(how))
	}
	p.mu.Unlock()
	lived := time.Since(p.since)
	if failed {
		p.log.Warn("backend process failed", "after", lived.Round(time.Millisecond), "error", how)
		p.server.recordFailure(p.holder, how, ready, lived)
	} else {
		p.log.Info("backend process stopped", "because", how, "after", lived.Round(time.Millisecond))
	}
	p.server.forget(p)
	close(p.done)
}

// stop begins to end the process for the reason why. Only the first call counts. An empty reason means that the process has already ended
// by itself.
func (p *process) stop(why string) { p.beginEnd(why, false) }

// fail begins to end a process that broke the protocol, and delays the next start of its command.
func (p *process) fail(why string) { p.beginEnd(why, true) }

func (p *process) beginEnd(why string, failed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(why, failed)
}

// endLocked begins to end the process. The caller holds the lock, so that no request can begin between the caller's check that the
// process is idle and the end.
func (p *process) endLocked(why string, failed bool) {
	if !p.isEnding() {
		p.why, p.failed = why, failed
		p.beginStopping()
	}
}

func (p *process) isEnding() bool { return p.stopping.Err() != nil }

func (p *process) idleTime() time.Duration {
	return cmp.Or(p.server.backend.Command.Idle, api.DefaultIdle)
}

func (p *process) touch() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.used, p.leaving = time.Now(), false
}

func (p *process) isLeaving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leaving
}

// usage returns when the process was last used. The result running is 1 if the process has running calls, and otherwise 0.
func (p *process) usage() (used time.Time, running int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.used, min(p.calls, 1)
}

// checkIdle stops the process if it has been idle for too long. A shared process stops in two steps. First, [Transport.Running] becomes
// false, so that the relay closes its streams. At most [hangUpTime] later, the process stops, unless a client has used it meanwhile.
func (p *process) checkIdle() {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Until(p.used.Add(p.idleTime()))
	busy := p.calls > 0 || len(p.watched) > 0
	stop := !busy && left <= 0 && p.leaving
	switch {
	case busy:
		left = p.idleTime()
	case left <= 0:
		p.leaving, left = true, min(hangUpTime, p.idleTime())
		if p.holder != "" {
			stop = true // a process of a client's session has no streams of the relay, so it can stop immediately
		}
	}
	if stop {
		p.endLocked("it was unused", false)
		return
	}
	p.idle.Reset(left)
}

// retire stops the process because the configuration no longer has the backend. It lets running calls end first.
func (p *process) retire() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.retired = true; p.calls == 0 {
		p.endLocked("the configuration changed", false)
	}
}

func (s *server) triesDiscover() bool {
	version := s.backend.ProtocolVersion
	return version == api.AutoVersion || spec.Version(version).Stateless()
}

func (s *server) triesInitialize() bool {
	version := s.backend.ProtocolVersion
	return version == api.AutoVersion || !spec.Version(version).Stateless()
}

// oldestVersion is the first revision of MCP. The gateway treats it as the second one, 2025-03-26, because over stdio the two differ only
// in features that the gateway does not use.
const oldestVersion = "2024-11-05"

type answer struct {
	discover bool
	message  json.RawMessage
	err      error
}

// handshake finds out which revision the shared process speaks. If probe is set, it first sends server/discover. If the process answers
// that with an error, or not within ProbeTime, handshake sends initialize (2026-07-28, stdio, Backward Compatibility).
//
// A command that takes long to start answers both requests. So handshake accepts a late answer to server/discover, even after a refused
// initialize.
func (p *process) handshake(ctx context.Context, probe bool) error {
	answers := make(chan answer, 2)
	ask := func(discover bool, method string, params json.RawMessage) {
		id := upstream.FreshID()
		x, err := p.request(ctx, id, method, jsonrpc.AppendRequest(nil, id, method, params))
		if err != nil {
			answers <- answer{discover, nil, err}
			return
		}
		go func() {
			message, err := x.await()
			_ = x.Close()
			answers <- answer{discover, message, err}
		}()
	}
	initialize := func() { ask(false, spec.MethodInitialize, p.initializeParams()) }
	var silent <-chan time.Time
	var refusal error
	probing := probe // whether server/discover is still unanswered
	switch {
	case !probe:
		initialize()
	default:
		ask(true, spec.MethodDiscover, (&upstream.Client{Server: p.server.t.Server}).MetaParams(spec.V20260728))
		if p.server.triesInitialize() {
			silent = time.After(p.server.t.probeTime())
		}
	}
	for {
		select {
		case <-silent:
			silent = nil
			initialize()
		case a := <-answers:
			probing = probing && !a.discover
			switch {
			case ctx.Err() != nil:
				return cmp.Or(refusal, fmt.Errorf("it did not answer within %s", p.server.t.startTime()))
			case a.err != nil:
				return a.err
			case a.discover && speaksStateless(a.message):
				p.mu.Lock()
				p.stateless = true
				p.mu.Unlock()
				return nil
			case !a.discover:
				if refusal = p.begin(ctx, a.message); refusal == nil || !probing {
					return refusal
				}
			case refusal != nil:
				return refusal
			case !p.server.triesInitialize():
				return errors.New("it does not speak 2026-07-28")
			case silent != nil:
				silent = nil
				initialize()
			}
		}
	}
}

func speaksStateless(response json.RawMessage) bool {
	for v := range jsonrpc.Elements(jsonrpc.Member(jsonrpc.Member(response, "result"), "supportedVersions")) {
		if text, _ := jsonrpc.String(v); text == string(spec.V20260728) {
			return true
		}
	}
	return false
}

func (p *process) initializeParams() json.RawMessage {
	version := spec.LatestSessionBased
	if pinned := p.server.backend.ProtocolVersion; pinned != api.AutoVersion {
		version = spec.Version(pinned)
	}
	params := append([]byte(`{"protocolVersion":`), jsonrpc.Quote(string(version))...)
	params = append(append(params, `,"capabilities":`...), upstream.ListCapabilities...)
	params = append(append(params, `,"clientInfo":`...), p.server.t.Server...)
	return append(params, '}')
}

func (p *process) begin(ctx context.Context, response json.RawMessage) error {
	result := jsonrpc.Member(response, "result")
	if result == nil {
		return fmt.Errorf("it refuses initialize with the error %.20s", jsonrpc.Member(jsonrpc.Member(response, "error"), "code"))
	}
	p.mu.Lock()
	p.initialized = withKnownVersion(result)
	p.mu.Unlock()
	return p.send(ctx, jsonrpc.AppendNotification(nil, spec.NoteInitialized, nil))
}

// withKnownVersion replaces the version [oldestVersion] in the result of initialize with the oldest version that the gateway speaks.
func withKnownVersion(result json.RawMessage) json.RawMessage {
	if version, _ := jsonrpc.String(jsonrpc.Member(result, "protocolVersion")); version == oldestVersion {
		return jsonrpc.Replace(result, "protocolVersion", jsonrpc.Quote(string(spec.V20250326)))
	}
	return result
}

package lambda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
)

// instance is one process of a function and its Runtime API server.
type instance struct {
	f        *Function
	id       string
	cmd      *exec.Cmd
	server   *http.Server
	started  time.Time
	timeout  time.Duration // limit of an invocation
	since    time.Time     // when a call ended; the function's mutex guards since, taken and replaced
	taken    int           // number of calls that it has
	replaced bool          // whether it runs replaced code or settings
	stopping chan struct{}
	stopOnce sync.Once
	gone     chan struct{} // closed when the process has exited
	work     chan *invocation

	mu       sync.Mutex
	dead     bool
	ready    bool                   // whether it has asked for an invocation
	calls    map[string]*invocation // calls that the process has received and not finished
	over     []*invocation          // calls that it has answered completely
	init     *time.Timer
	timedOut bool
	initErr  []byte // what the process sent to init/error
}

// invocation is a call that an instance handles.
type invocation struct {
	id        string
	payload   []byte
	trace     string
	limit     *Limit         // the limit of which it holds a slot
	result    chan *Response // unbuffered: a response is either received or abandoned
	abandoned chan struct{}
	// The instance's mutex guards the following fields. answered means that the response has begun, failed that it is
	// an error, and late that we sent an error in place of the process, which may still respond itself.
	answered, failed, late bool
	deadline               *time.Timer
	cut                    func(error) // breaks off the response
}

// deliver sends the response to the caller. It returns false if the caller no longer waits.
func (c *invocation) deliver(r *Response) bool {
	select {
	case c.result <- r:
		return true
	case <-c.abandoned:
		return false
	}
}

// start starts a process whose first call is waiting. The caller holds the function's mutex.
func (f *Function) start(call *invocation) (*instance, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	i := &instance{
		f: f, id: uuid.NewString()[:8], timeout: f.cfg.Timeout,
		stopping: make(chan struct{}), gone: make(chan struct{}),
		work: make(chan *invocation, f.atOnce), calls: map[string]*invocation{call.id: call},
	}
	i.server = &http.Server{Handler: i.routes(), ReadHeaderTimeout: time.Minute}
	i.cmd = exec.Command(f.cfg.Binary)
	i.cmd.Env = f.environment(i, l.Addr().String())
	out := &lines{w: f.cfg.Output, prefix: f.cfg.Name + " " + i.id + " "}
	i.cmd.Stdout, i.cmd.Stderr = out, out
	i.cmd.WaitDelay = f.cfg.Grace
	i.cmd.SysProcAttr = endWithParent() // because a stopped process would not notice the end of the runner
	i.work <- call
	i.started = time.Now()
	if err := i.cmd.Start(); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	i.mu.Lock() // the process is already running
	i.init = time.AfterFunc(f.cfg.InitTimeout, i.expireInit)
	i.mu.Unlock()
	f.cfg.Log.Debug("instance started", "function", f.cfg.Name, "instance", i.id, "pid", i.cmd.Process.Pid)
	f.wg.Go(func() {
		if err := i.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			f.cfg.Log.Error("runtime API ended", "function", f.cfg.Name, "instance", i.id, "error", err)
		}
	})
	f.wg.Go(func() { i.wait(out) })
	return i, nil
}

// environment returns the environment variables that Lambda and the template set for a process.
func (f *Function) environment(i *instance, api string) []string {
	kind := "on-demand"
	if f.atOnce > 1 {
		kind = "lambda-managed-instances"
	}
	env := []string{
		"_HANDLER=bootstrap",
		"AWS_EXECUTION_ENV=AWS_Lambda_provided.al2023",
		"AWS_LAMBDA_FUNCTION_NAME=" + f.cfg.Name,
		fmt.Sprintf("AWS_LAMBDA_FUNCTION_MEMORY_SIZE=%d", f.cfg.Memory),
		"AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
		"AWS_LAMBDA_INITIALIZATION_TYPE=" + kind,
		"AWS_LAMBDA_LOG_GROUP_NAME=/aws/lambda/" + f.cfg.Name,
		"AWS_LAMBDA_LOG_STREAM_NAME=" + i.id,
		"AWS_LAMBDA_RUNTIME_API=" + api,
		"LAMBDA_RUNTIME_DIR=/var/runtime",
		"LAMBDA_TASK_ROOT=/var/task",
		"TZ=:UTC",
	}
	for k, v := range f.cfg.Env {
		env = append(env, k+"="+v)
	}
	return env
}

// give passes a call to an instance with a free slot. It returns false if the process has died.
func (i *instance) give(call *invocation) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dead {
		return false
	}
	if i.f.atOnce == 1 {
		i.signal(syscall.SIGCONT)
	}
	i.calls[call.id] = call
	i.work <- call // never blocks, because there is a free slot
	return true
}

// freeze stops an idle process, as Lambda does between events. It does not stop a process that is being ended, which
// could not handle its SIGTERM.
func (i *instance) freeze() {
	i.mu.Lock()
	defer i.mu.Unlock()
	select {
	case <-i.stopping:
	default:
		i.signal(syscall.SIGSTOP)
	}
}

// signal sends a signal. An error means that the process has already exited.
func (i *instance) signal(s syscall.Signal) { _ = i.cmd.Process.Signal(s) }

func (i *instance) busy() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.calls) > 0
}

func (i *instance) kill() {
	// An error means that the process has already exited.
	_ = i.cmd.Process.Kill()
}

// expireInit ends a process that did not ask for an invocation in time.
func (i *instance) expireInit() {
	i.mu.Lock()
	late := !i.ready
	i.timedOut = i.timedOut || late
	i.mu.Unlock()
	if late {
		i.kill()
	}
}

// expire ends the process of a call that has timed out. A managed instance continues, and only the call fails.
func (i *instance) expire(call *invocation) {
	i.mu.Lock()
	if i.calls[call.id] != call || slices.Contains(i.over, call) {
		i.mu.Unlock()
		return
	}
	if i.f.atOnce == 1 {
		i.timedOut = true
		i.mu.Unlock()
		i.kill()
		return
	}
	begun, cut := call.answered, call.cut
	call.answered, call.failed, call.late = true, true, !begun
	i.mu.Unlock()
	i.f.count(func(s *Stats) { s.Errors++; s.Timeouts++ })
	r := failure(call.id, "Sandbox.Timedout", "Task timed out after %.2f seconds", i.timeout.Seconds())
	if !begun {
		call.deliver(r)
	} else if cut != nil {
		cut(errors.New("lambda: the invocation timed out"))
	}
}

// stop asks the process to end, and kills it after the grace period.
func (i *instance) stop() {
	i.stopOnce.Do(func() {
		i.mu.Lock()
		close(i.stopping)
		i.signal(syscall.SIGTERM)
		i.signal(syscall.SIGCONT)
		i.mu.Unlock()
		i.f.wg.Go(func() {
			timer := time.NewTimer(i.f.cfg.Grace)
			defer timer.Stop()
			select {
			case <-i.gone:
			case <-timer.C:
				i.kill()
			}
		})
	})
}

// wait waits until the process has exited, and fails its unfinished calls.
func (i *instance) wait(out *lines) {
	err := i.cmd.Wait()
	out.flush()
	i.mu.Lock()
	i.dead = true
	i.init.Stop()
	calls := i.calls
	i.calls, i.over = nil, nil
	var unanswered []*invocation
	for _, call := range calls {
		if call.deadline != nil {
			call.deadline.Stop()
		}
		if !call.answered {
			call.answered = true
			unanswered = append(unanswered, call)
		}
	}
	i.mu.Unlock()
	close(i.gone)
	i.f.exited(i)

	reason := "exit status 0"
	if err != nil {
		reason = err.Error()
	}
	for _, call := range calls {
		i.lost(call, reason)
	}
	for _, call := range unanswered {
		call.deliver(i.obituary(call, reason))
	}
	for _, call := range calls {
		call.limit.release()
	}
	// A reader may still be receiving a response of the dead process.
	ctx, cancel := context.WithTimeout(context.Background(), i.f.cfg.Grace)
	defer cancel()
	if i.server.Shutdown(ctx) != nil {
		_ = i.server.Close()
	}
}

// lost counts a call whose process has ended. Nothing else changes the call, because the instance is dead.
func (i *instance) lost(call *invocation, reason string) {
	i.f.cfg.Log.Info("instance ended at work", "function", i.f.cfg.Name, "instance", i.id, "reason", reason, "timeout", i.timedOut)
	i.f.count(func(s *Stats) {
		if !call.failed {
			s.Errors++
		}
		if i.timedOut {
			s.Timeouts++
		} else {
			s.Crashes++
		}
	})
}

// obituary returns the response for the caller of a process that has ended.
func (i *instance) obituary(call *invocation, reason string) *Response {
	switch {
	case i.timedOut && i.ready:
		return failure(call.id, "Sandbox.Timedout", "Task timed out after %.2f seconds", i.timeout.Seconds())
	case i.timedOut:
		return failure(call.id, "Sandbox.Timedout", "Init timed out after %.2f seconds", i.f.cfg.InitTimeout.Seconds())
	case i.initErr != nil:
		return failed(call.id, i.initErr)
	}
	return failure(call.id, "Runtime.ExitError", "Runtime exited: %s", reason)
}

// lines forwards complete lines to w, each with a prefix. A process's two output streams share it, and exec writes
// them one after the other.
type lines struct {
	w      io.Writer
	prefix string
	rest   []byte
}

// maxLine is the maximum length of a line that a function prints.
const maxLine = 64 << 10

func (l *lines) Write(p []byte) (int, error) {
	n := len(p)
	for {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			break
		}
		l.rest = append(l.rest, p[:end]...)
		l.flush()
		p = p[end+1:]
	}
	if room := maxLine - len(l.rest); len(p) > room {
		p = p[:max(room, 0)]
	}
	l.rest = append(l.rest, p...)
	return n, nil
}

func (l *lines) flush() {
	if len(l.rest) == 0 {
		return
	}
	line := make([]byte, 0, len(l.prefix)+len(l.rest)+1)
	line = append(append(append(line, l.prefix...), l.rest...), '\n')
	_, _ = l.w.Write(line) // a failure cannot be reported
	l.rest = l.rest[:0]
}

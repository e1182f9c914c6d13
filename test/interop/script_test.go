//go:build unix

package interop

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// object is a JSON object as a test writes it.
type object = map[string]any

// step is a line that a script writes.
type step struct {
	Step   string
	Result json.RawMessage
	Error  string

	// of "connected"
	Version string
	// of "updated"
	URI     string
	Meta    map[string]any
	Payload map[string]any
	// of "ended": graceful, local, or the error
	Cause string
	// of the notifications of events/stream
	Params occurrence
	// of "event" of a webhook
	Subscription string
	Event        occurrence
	// of "request"
	Status int
}

// occurrence is an event as MCP Events shows it, or a message about its stream.
type occurrence struct {
	EventID, Name, Timestamp string
	Data                     map[string]any
	Cursor                   *string
	Truncated                bool
}

// page is the result of events/poll.
type page struct {
	Events    []occurrence
	Cursor    string
	Truncated bool
}

// steps holds the steps of a client, in one queue for each step name.
type steps struct {
	mu     sync.Mutex
	byName map[string]chan step
	ended  chan struct{}
}

func newSteps() *steps {
	return &steps{byName: map[string]chan step{}, ended: make(chan struct{})}
}

func (s *steps) of(name string) chan step {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byName[name] == nil {
		s.byName[name] = make(chan step, 1000)
	}
	return s.byName[name]
}

// next waits for the next step of the name.
func (s *steps) next(t *testing.T, name string) step {
	t.Helper()
	timer := time.NewTimer(harness.Patience)
	defer timer.Stop()
	select {
	case st := <-s.of(name):
		expect.MustEqual(t, "the error of the step "+name, st.Error, "")
		return st
	case <-s.ended:
		t.Fatalf("the client ended before %q", name)
	case <-timer.C:
		t.Fatalf("no step %q", name)
	}
	panic("not reached")
}

// script is a running script.
type script struct {
	*steps
	in io.WriteCloser
}

// start runs a script until the end of the test.
func start(t *testing.T, cmd *exec.Cmd) *script {
	t.Helper()
	in := expect.Value(cmd.StdinPipe())(t)
	out, err := cmd.StdoutPipe()
	expect.OK(t, err)
	cmd.Stderr = os.Stderr
	expect.OK(t, cmd.Start())
	s := &script{steps: newSteps(), in: in}
	go func() {
		defer close(s.ended)
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var st step
			if err := json.Unmarshal(lines.Bytes(), &st); err != nil {
				t.Errorf("a script wrote %.300q: %v", lines.Bytes(), err)
			}
			s.of(st.Step) <- st
		}
	}()
	t.Cleanup(func() {
		in.Close() // the script ends with its input
		<-s.ended
		if err := cmd.Wait(); err != nil && t.Context().Err() == nil {
			t.Errorf("%s: %v", cmd.Args, err)
		}
	})
	return s
}

// do sends a command and waits for its result.
func (s *script) do(t *testing.T, command object, result any) {
	t.Helper()
	b := expect.Value(json.Marshal(command))(t)
	expect.OK(t, expect.ErrOf(s.in.Write(append(b, '\n'))))
	st := s.next(t, command["do"].(string))
	if result == nil {
		return
	}
	expect.OK(t, json.Unmarshal(st.Result, result), command["do"], st.Result)
}

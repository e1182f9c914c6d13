//go:build unix

package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// party is a client that gets what it wished for, in a process that is started again whenever it ends.
type party struct {
	name string
	wish
	// mortal parties resume after they were killed, because they, or the test as their application, kept a cursor.
	mortal bool
	// patient parties wait for a server that is away; others end, and are started again.
	patient bool
	// says is what it logs when it has begun; scripts tell it.
	says    string
	command func(context.Context) *exec.Cmd
	line    func([]byte)          // takes a line that the process wrote
	silent  func()                // is called when the process has written nothing for longer than the heartbeat
	inside  func(context.Context) // runs it in the test's process instead

	begun chan struct{} // closed when the server has accepted its subscription
	once  sync.Once

	mu      sync.Mutex
	process *exec.Cmd
	in      io.Writer
	killed  bool
	starts  int
	cursor  string // of those whose application keeps it
	got     map[string]int
	faults  []string
}

// follow runs the party until the test ends, and returns when it has begun.
func (p *party) follow(t *testing.T) {
	t.Helper()
	p.begun, p.got = make(chan struct{}), map[string]int{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			p.live(ctx)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	select {
	case <-p.begun:
	case <-time.After(harness.Patience):
		t.Fatalf("%s does not begin: %v", p.name, p.faults)
	}
}

// longestQuiet is more than twice the heartbeat of the servers here.
const longestQuiet = 5 * time.Second

// live runs a process to its end.
func (p *party) live(ctx context.Context) {
	if p.inside != nil {
		p.inside(ctx)
		return
	}
	cmd := p.command(ctx)
	log := &logged{p: p}
	cmd.Stderr = log
	in, _ := cmd.StdinPipe() // fails only if it is called twice
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		p.fault(err.Error())
		return
	}
	p.mu.Lock()
	p.process, p.in, p.killed = cmd, in, false
	p.starts++
	p.mu.Unlock()
	quiet := time.AfterFunc(longestQuiet, func() {
		if p.silent != nil {
			p.silent()
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		quiet.Reset(longestQuiet)
		p.line(lines.Bytes())
	}
	quiet.Stop()
	err := cmd.Wait()
	p.mu.Lock()
	unasked := !p.killed && ctx.Err() == nil
	p.mu.Unlock()
	if unasked && p.patient {
		p.fault(fmt.Sprintf("it ended: %v\n%s", err, log.text.String()))
	}
}

// logged is what a process logs.
type logged struct {
	p    *party
	text strings.Builder
}

func (l *logged) Write(b []byte) (int, error) {
	if l.text.Len() < 4<<10 {
		l.text.Write(b)
	}
	if l.p.says != "" && bytes.Contains(b, []byte(l.p.says)) {
		l.p.began()
	}
	return len(b), nil
}

// kill kills the process, as a crash would.
func (p *party) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.killed = true
	_ = p.process.Process.Kill()
}

func (p *party) began() { p.once.Do(func() { close(p.begun) }) }

// take takes an event, whose data repeats its id.
func (p *party) take(id string, data any) {
	b, err := json.Marshal(data)
	if err != nil || id == "" || !bytes.Contains(b, []byte(`"`+id+`"`)) {
		p.fault(fmt.Sprintf("the event %q has the data %.200s: %v", id, b, err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got[id]++
}

func (p *party) fault(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.faults) < 10 {
		p.faults = append(p.faults, text)
	}
}

func (p *party) different() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got)
}

func (p *party) wanted(all []harness.Event) map[string]bool {
	ids := map[string]bool{}
	for _, e := range all {
		if p.wants(e) {
			ids[e.ID] = true
		}
	}
	return ids
}

// check asserts that the party has all that it asked for and nothing else.
func (p *party) check(t *testing.T, all []harness.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	want, repetitions := p.wanted(all), 0
	for id := range want {
		if p.got[id] == 0 {
			t.Errorf("%s is missing", id)
		}
	}
	for id, n := range p.got {
		if !want[id] {
			t.Errorf("%s came, which it did not ask for", id)
		}
		repetitions += n - 1
	}
	t.Logf("%d events, %d repetitions, %d starts", len(p.got), repetitions, p.starts)
	for _, text := range p.faults {
		t.Error(text)
	}
	if len(want) == 0 {
		t.Error("it asked for nothing")
	}
}

// send gives a script a command. One that has ended does not read it.
func (p *party) send(command object) {
	b, _ := json.Marshal(command)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.in.Write(append(b, '\n'))
}

// soon gives the command after a pause.
func (p *party) soon(command object) { p.later(func() { p.send(command) }) }

// later does something after a pause, unless the process has ended.
func (p *party) later(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := p.starts
	time.AfterFunc(250*time.Millisecond, func() {
		p.mu.Lock()
		same := p.starts == start
		p.mu.Unlock()
		if same {
			do()
		}
	})
}

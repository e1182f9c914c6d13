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

// party is a client in a process of its own, which is restarted whenever it ends. It must receive the events of its wish.
type party struct {
	name string
	wish
	// killable parties resume after a kill, because they or the test as their application kept a cursor.
	killable bool
	// patient parties wait while the server is down. Others end and are restarted.
	patient bool
	// readyLog is the log message by which the process shows that it receives events. Scripts call ready instead.
	readyLog string
	command  func(context.Context) *exec.Cmd
	onLine   func([]byte)          // is called with each line that the process writes
	onQuiet  func()                // is called when the process has written nothing for longer than the heartbeat
	inside   func(context.Context) // runs the party in the test's process instead

	readied chan struct{} // closed when the server has accepted the subscription
	once    sync.Once

	mu      sync.Mutex
	process *exec.Cmd
	in      io.Writer
	killed  bool
	starts  int
	cursor  string // if the test keeps it as the application
	got     map[string]int
	faults  []string
}

// follow runs the party until the test ends. It returns when the server has accepted its subscription.
func (p *party) follow(t *testing.T) {
	t.Helper()
	p.readied, p.got = make(chan struct{}), map[string]int{}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			p.runProcess(ctx)
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	select {
	case <-p.readied:
	case <-time.After(harness.Patience):
		t.Fatalf("%s does not subscribe: %v", p.name, p.faults)
	}
}

// longestQuiet is more than twice the heartbeat of the servers here.
const longestQuiet = 5 * time.Second

// runProcess starts the process and waits for its end.
func (p *party) runProcess(ctx context.Context) {
	if p.inside != nil {
		p.inside(ctx)
		return
	}
	cmd := p.command(ctx)
	log := &processLog{p: p}
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
		if p.onQuiet != nil {
			p.onQuiet()
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		quiet.Reset(longestQuiet)
		p.onLine(lines.Bytes())
	}
	quiet.Stop()
	err := cmd.Wait()
	p.mu.Lock()
	unexpected := !p.killed && ctx.Err() == nil
	p.mu.Unlock()
	if unexpected && p.patient {
		p.fault(fmt.Sprintf("the process ended: %v\n%s", err, log.text.String()))
	}
}

// processLog keeps the beginning of a process's log and looks for the party's readyLog.
type processLog struct {
	p    *party
	text strings.Builder
}

func (l *processLog) Write(b []byte) (int, error) {
	if l.text.Len() < 4<<10 {
		l.text.Write(b)
	}
	if l.p.readyLog != "" && bytes.Contains(b, []byte(l.p.readyLog)) {
		l.p.ready()
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

// ready records that the server has accepted the subscription.
func (p *party) ready() { p.once.Do(func() { close(p.readied) }) }

// receive records an event, whose data must repeat its id.
func (p *party) receive(id string, data any) {
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

// distinct returns the number of different events that arrived.
func (p *party) distinct() int {
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

// check asserts that the party received all events of its wish and no others.
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
			t.Errorf("%s arrived, but the party did not subscribe to it", id)
		}
		repetitions += n - 1
	}
	t.Logf("%d events, %d repetitions, %d starts", len(p.got), repetitions, p.starts)
	for _, text := range p.faults {
		t.Error(text)
	}
	if len(want) == 0 {
		t.Error("no published event matches the wish, want some")
	}
}

// send writes a command to a script. The command is lost if the script has ended.
func (p *party) send(command object) {
	b, _ := json.Marshal(command)
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = p.in.Write(append(b, '\n'))
}

// sendLater sends a command after a pause.
func (p *party) sendLater(command object) { p.later(func() { p.send(command) }) }

// later calls do after a pause, unless the process has ended.
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

//go:build unix

// Package agents kills programs that do something for each event, and their server, and looks whether it was done once.
package agents

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// kills is how often either side is killed.
const kills = 20

// pace is the time between two events, spread.
const pace = 20 * time.Millisecond

// agent is a program that is killed and started again.
type agent struct {
	t       *testing.T
	name    string
	args    []string
	env     []string
	output  *os.File
	process *exec.Cmd
}

func (a *agent) start() {
	a.t.Helper()
	a.process = exec.Command(a.name, a.args...)
	a.process.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, a.env...)
	a.process.Stdout, a.process.Stderr = a.output, a.output
	expect.OK(a.t, a.process.Start())
}

func (a *agent) kill() {
	_ = a.process.Process.Kill()
	_ = a.process.Wait()
}

// story kills the agent and its server at random while events are published, and then compares the effects.
func story(t *testing.T, a *agent, s *harness.Server, begun func() bool, effects func() map[string]int) {
	t.Helper()
	var err error
	a.output, err = os.Create(filepath.Join(t.TempDir(), "output"))
	expect.OK(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			b, _ := os.ReadFile(a.output.Name())
			t.Logf("the agent wrote\n%s", b[max(0, len(b)-8000):])
		}
	})
	a.start()
	t.Cleanup(func() { a.kill() })
	harness.Eventually(t, harness.Patience, "the agent begins", begun)

	var mu sync.Mutex
	var published []string
	stop := make(chan struct{})
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for n := 1; ; n++ {
			id := fmt.Sprintf("e%05d", n)
			for {
				select {
				case <-stop:
					return
				case <-time.After(pace/2 + rand.N(pace)):
				}
				_, err := s.TryPublish(t.Context(), "alice", harness.Event{ID: id, URI: "event://ci/build-finished", Data: map[string]any{"build": n, "status": "passed"}})
				if err == nil {
					break
				}
			}
			mu.Lock()
			published = append(published, id)
			mu.Unlock()
		}
	})
	done := func() int { return len(effects()) }
	for n := range kills {
		had := done()
		harness.Eventually(t, 2*harness.Patience, fmt.Sprintf("effects after %d kills", n), func() bool { return done() > had+4 })
		if n%2 == 0 {
			a.kill()
			a.start()
		} else {
			s.Kill()
			s.Start()
		}
	}
	close(stop)
	publishing.Wait()
	// The event after the last published one may have an effect too, and before the others, so their number says nothing.
	missing := func() int {
		counts, missing := effects(), 0
		for _, id := range published {
			if counts[id] == 0 {
				missing++
			}
		}
		return missing
	}
	harness.Within(t, 3*harness.Patience, func() bool { return missing() == 0 })
	counts := effects()
	lost, repeated := missing(), 0
	for _, count := range counts {
		if count > 1 {
			repeated++
		}
	}
	t.Logf("%d events, %d kills, %d lost, %d repeated", len(published), kills, lost, repeated)
	if lost > 0 || repeated > 0 || len(counts) > len(published)+1 { // one may be published without an answer
		t.Errorf("%d of %d events are lost, %d have their effect twice; %d effects", lost, len(published), repeated, len(counts))
	}
}

// fast starts a server with short retries.
func fast(t *testing.T) *harness.Server {
	t.Helper()
	return harness.StartServer(t, harness.ServerOptions{Fast: true, Args: []string{
		"--events-retry-schedule", "0s,1s,2s,4s,8s,16s,30s",
	}})
}

// some reports whether a file is there and not empty.
func some(pattern string) bool {
	files, _ := filepath.Glob(pattern)
	for _, f := range files {
		if info, err := os.Stat(f); err == nil && info.Size() > 0 {
			return true
		}
	}
	return false
}

func TestTheExampleAgent(t *testing.T) {
	for _, mode := range []string{"push", "poll", "webhook"} {
		t.Run("RCH-02 EVX-19 by "+mode+" kills of either side lose and repeat no effect", func(t *testing.T) {
			t.Parallel()
			s := fast(t)
			dir := t.TempDir()
			a := &agent{
				t: t, name: harness.Binary(t, "./examples/agent", false),
				args: []string{"-server", s.MCP, "-event", "ci.build_finished", "-mode", mode, "-dir", dir},
				env:  []string{"AGENT_KEY=" + s.Keys["alice"]},
			}
			if mode == "webhook" {
				a.args = append(a.args, "-listen", harness.FreeAddr(t))
			}
			story(t, a, s, func() bool { return some(filepath.Join(dir, "cursors", "*.cursor")) }, func() map[string]int {
				text := expect.Value(os.ReadFile(filepath.Join(dir, "effects")))(t)
				counts := map[string]int{}
				for line := range bytes.Lines(text) {
					var e struct{ Key string }
					if bytes.HasSuffix(line, []byte("\n")) && json.Unmarshal(line, &e) == nil {
						id, _, _ := strings.Cut(e.Key, " ") // the rest is the URI
						counts[id]++
					}
				}
				return counts
			})
		})
	}
}

// onEvent is a script such as an operator could write. For each event it adds a line with the event's id to a file, once. A
// run that outlives its program may overlap with the next program's run for the same event, so the script takes a lock.
const onEvent = `
until mkdir "$EFFECTS.lock" 2> /dev/null; do sleep 0.02; done
trap 'rmdir "$EFFECTS.lock"' EXIT
grep -qsx "$EVENT_ID" "$EFFECTS" || echo "$EVENT_ID" >> "$EFFECTS"
`

func TestACommandForEachEvent(t *testing.T) {
	for _, mode := range []string{"", "poll"} {
		t.Run("RCH-03 by "+map[string]string{"": "the best mode", "poll": "poll"}[mode]+" kills of either side lose and repeat no effect", func(t *testing.T) {
			t.Parallel()
			s := fast(t)
			dir := t.TempDir()
			script, file := filepath.Join(dir, "on-event"), filepath.Join(dir, "effects")
			expect.OK(t, os.WriteFile(script, []byte("#!/bin/sh\n"+onEvent), 0o700))
			a := &agent{
				t: t, name: harness.Binary(t, "./cmd/mcpevents", false),
				args: []string{
					"listen", "--server", s.MCP, "--name", "ci.build_finished", "--exec", script, "--cursor-file", filepath.Join(dir, "cursor"),
					"--mode", mode, "--concurrency", "2", "--failed-file", filepath.Join(dir, "failed"),
				},
				env: []string{"MCPEVENTS_KEY=" + s.Keys["alice"], "EFFECTS=" + file},
			}
			story(t, a, s, func() bool { return some(filepath.Join(dir, "cursor")) }, func() map[string]int {
				text, _ := os.ReadFile(file)
				counts := map[string]int{}
				for line := range bytes.Lines(text) {
					counts[string(bytes.TrimSpace(line))]++
				}
				return counts
			})
			expect.True(t, "no command failed permanently", !some(filepath.Join(dir, "failed")))
		})
	}
}

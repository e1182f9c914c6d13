//go:build unix

package run_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/client/run"
	"github.com/mcp-events/mcpevents/test/expect"
)

var shipped = client.Event{
	Via: "poll", ID: "e1", Name: "order.shipped", Time: "2026-11-21T09:24:00Z", URI: "event://orders/1/shipped", Cursor: "c1",
	Data: json.RawMessage(`{"carrier":"$(touch hacked); ` + "`id`" + `"}`),
}

func command(line string) *run.Command {
	return &run.Command{Line: line, Log: slog.New(slog.DiscardHandler)}
}

func TestTheCommandGetsTheEvent(t *testing.T) {
	t.Setenv("MCPEVENTS_KEY", "secret-key")
	t.Setenv("OTHER", "stays")
	var out bytes.Buffer
	c := command(`printf '%s|%s|%s|%s|%s|%s|%s|' "$EVENT_ID" "$EVENT_NAME" "$EVENT_TIME" "$EVENT_URI" "$EVENT_CURSOR" "$MCPEVENTS_KEY" "$OTHER"; cat`)
	c.Stdout = &out
	expect.OK(t, c.Handle(t.Context(), shipped))
	members, input, _ := strings.Cut(out.String(), "|{")
	t.Run("RCH-03 its main members are in the environment, but not the server's key", func(t *testing.T) {
		expect.Equal(t, "the members", members, "e1|order.shipped|2026-11-21T09:24:00Z|event://orders/1/shipped|c1||stays")
	})
	t.Run("RCH-03 it is on standard input as JSON, unchanged", func(t *testing.T) {
		var got client.Event
		if err := json.Unmarshal([]byte("{"+input), &got); err != nil || got.ID != "e1" || string(got.Data) != string(shipped.Data) {
			t.Errorf("got %s: %v", input, err)
		}
	})
}

func TestInvalidVariablesAreEmpty(t *testing.T) {
	for name, id := range map[string]string{"RCH-03 a NUL": "a\x00b", "RCH-03 a very long id": strings.Repeat("x", 200_000)} {
		t.Run(name, func(t *testing.T) {
			odd := shipped
			odd.ID = id
			var out bytes.Buffer
			c := command(`printf '%s|%s|' "$EVENT_ID" "$EVENT_NAME"; cat`)
			c.Stdout = &out
			expect.OK(t, c.Handle(t.Context(), odd))
			input, found := strings.CutPrefix(out.String(), "|order.shipped|")
			var got client.Event
			if err := json.Unmarshal([]byte(input), &got); !found || err != nil || got.ID != id {
				t.Errorf("got %.80q: %v", out.String(), err)
			}
		})
	}
}

func TestFailedCommands(t *testing.T) {
	t.Run("RCH-03 without a file, a command that fails is always an error", func(t *testing.T) {
		c := command("exit 3")
		for n := range 20 {
			expect.Error(t, fmt.Sprintf("run %d", n+1), c.Handle(t.Context(), shipped))
		}
	})
	t.Run("RCH-03 after the last try the event is in the file, and is acknowledged", func(t *testing.T) {
		c := command("exit 3")
		c.Failed, c.Tries = filepath.Join(t.TempDir(), "failed.jsonl"), 3
		for _, id := range []string{"e1", "e2"} {
			e := shipped
			e.ID = id
			for n := range 2 {
				expect.Error(t, fmt.Sprintf("run %d", n+1), c.Handle(t.Context(), e))
			}
			expect.OK(t, c.Handle(t.Context(), e))
		}
		b := expect.Value(os.ReadFile(c.Failed))(t)
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		var last struct {
			Event client.Event
			Error string
			Tries int
		}
		if len(lines) != 2 || json.Unmarshal([]byte(lines[1]), &last) != nil || last.Event.ID != "e2" || last.Tries != 3 || last.Error != "exit status 3" {
			t.Errorf("the file holds %s, want two lines, the last with e2, 3 tries and exit status 3", b)
		}
	})
	t.Run("RCH-03 given two URIs with events of the same id, when both fail, then each has its own tries", func(t *testing.T) {
		c := command("exit 3")
		c.Failed, c.Tries = filepath.Join(t.TempDir(), "failed.jsonl"), 2
		other := shipped
		other.URI += "/other"
		expect.Error(t, "the first run for the first URI", c.Handle(t.Context(), shipped))
		expect.Error(t, "the first run for the second URI", c.Handle(t.Context(), other))
	})
	t.Run("RCH-03 an event is not acknowledged when the file cannot be written", func(t *testing.T) {
		c := command("exit 3")
		c.Failed, c.Tries = filepath.Join(t.TempDir(), "none", "failed.jsonl"), 1
		expect.Error(t, "the run", c.Handle(t.Context(), shipped))
	})
	t.Run("RCH-03 a success resets the number of tries", func(t *testing.T) {
		c := command(`test -e ` + filepath.Join(t.TempDir(), "x"))
		c.Failed, c.Tries = filepath.Join(t.TempDir(), "failed.jsonl"), 2
		_ = c.Handle(t.Context(), shipped)
		c.Line = "true"
		expect.OK(t, c.Handle(t.Context(), shipped))
		c.Line = "false"
		expect.Error(t, "the first failure after a success", c.Handle(t.Context(), shipped))
	})
}

func TestACommandThatDoesNotEnd(t *testing.T) {
	// alive reports whether a process still runs after five seconds. A killed process needs a moment to end.
	alive := func(t *testing.T, file string) bool {
		t.Helper()
		b := expect.Value(os.ReadFile(file))(t)
		pid := expect.Value(strconv.Atoi(strings.TrimSpace(string(b))))(t)
		for range 1000 {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			if syscall.Kill(pid, 0) != nil || err == nil && strings.Contains(string(stat), ") Z ") {
				return false
			}
			time.Sleep(5 * time.Millisecond) // it is another process
		}
		return true
	}
	t.Run("RCH-03 is killed after its timeout with all its processes, and has failed", func(t *testing.T) {
		pid := filepath.Join(t.TempDir(), "pid")
		c := command(`sleep 600 & echo $! > ` + pid + `; wait`)
		c.Timeout = 300 * time.Millisecond
		expect.Error(t, "the run", c.Handle(t.Context(), shipped), "longer than 300ms")
		expect.True(t, "the child has ended", !alive(t, pid))
	})
	t.Run("RCH-03 is killed after its timeout, although its child ignores SIGTERM and its shell exits with 0", func(t *testing.T) {
		run.SetGrace(t, 200*time.Millisecond)
		pid := filepath.Join(t.TempDir(), "pid")
		c := command(`trap 'exit 0' TERM; sh -c 'trap "" TERM; echo $$ > ` + pid + `; sleep 600 & wait; wait' & wait`)
		c.Timeout = 500 * time.Millisecond
		expect.Error(t, "the run", c.Handle(t.Context(), shipped), "longer than 500ms")
		expect.True(t, "the child has ended", !alive(t, pid))
	})
	t.Run("RCH-03 ends with the program, and has not failed", func(t *testing.T) {
		dir := t.TempDir()
		pid, failed := filepath.Join(dir, "pid"), filepath.Join(dir, "failed.jsonl")
		c := command(`echo $$ > ` + pid + `; exec sleep 600`)
		c.Failed, c.Tries = failed, 1
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- c.Handle(ctx, shipped) }()
		expect.Eventually(t, "the command starts", func() bool {
			b, _ := os.ReadFile(pid)
			return len(b) > 0
		})
		cancel()
		expect.Is(t, "the end", <-done, context.Canceled)
		expect.Error(t, "a look at the file of failed events", expect.ErrOf(os.Stat(failed)))
		expect.True(t, "the command has ended", !alive(t, pid))
	})
}

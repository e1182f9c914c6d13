// Package run runs a command for each event: [Command.Handle] is the Event of client.SubscribeOptions. So a program in
// any language, or a coding agent that takes a prompt, is woken by an event, without a public address.
//
// The event is JSON on the command's standard input, and its main members are in the environment; nothing of it is
// in the command line, which a shell reads. An exit status of 0 acknowledges the event. After any other it is run
// again, at growing intervals. A kill of this process can repeat a command: it is to do nothing twice for one
// EVENT_ID.
package run

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Command is what to run, and what to do when it fails.
type Command struct {
	// Line is given to sh -c.
	Line string
	// Timeout bounds a run; 0 is ten minutes. Then the command and the processes that it started get SIGTERM, and after
	// ten seconds SIGKILL.
	Timeout time.Duration
	// Failed is a file to which an event is appended, as a line of JSON, when its command has failed Tries times. The
	// event is acknowledged then. Empty tries for ever.
	Failed string
	// Tries is how often a command is run for an event before it has failed for good; 0 is five. It needs Failed.
	Tries int
	// Stdout and Stderr are the command's; nil discards them.
	Stdout, Stderr io.Writer
	Log            *slog.Logger

	mu       sync.Mutex // guards the file, and what failed how often
	failures map[string]int
}

const (
	defaultTimeout = 10 * time.Minute
	defaultTries   = 5
)

// grace is how long a command, and the processes that it started, may take to end after SIGTERM. Tests change it.
var grace = 10 * time.Second

// Handle runs the command for an event. Its error is to have the event handled again.
func (c *Command) Handle(ctx context.Context, e client.Event) error {
	input, err := json.Marshal(e)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the event")
	}
	began := time.Now()
	failure := c.run(ctx, e, input)
	if failure == nil {
		c.forget(e.ID)
		c.Log.Info("command done", "event", e.ID, "took", time.Since(began).Round(time.Millisecond))
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err() // it was ended, and has not failed
	}
	tries, last := c.count(e.ID)
	if !last {
		return fault.Wrap(fault.Unavailable, failure, "run %d of the command", tries)
	}
	if err := c.keep(e, failure, tries); err != nil {
		return err
	}
	c.Log.Error("command failed for good", "event", e.ID, "tries", tries, "file", c.Failed, "error", failure)
	c.forget(e.ID)
	return nil
}

// run runs the command once.
func (c *Command) run(ctx context.Context, e client.Event, input []byte) error {
	timeout := cmp.Or(c.Timeout, defaultTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", c.Line)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(input, '\n')), c.Stdout, c.Stderr
	cmd.Env = append(inherited(), environment(e)...)
	cmd.WaitDelay = grace
	end := inGroup(cmd)
	err := cmd.Run()
	if left := end(err); left != nil {
		c.Log.Warn("command's processes not ended", "event", e.ID, "error", left)
	}
	switch {
	case succeeded(err):
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fault.New(fault.Unavailable, "the command took longer than %s", timeout)
	}
	return err
}

// succeeded reports whether a command has ended with 0 by itself. [exec.ErrWaitDelay] means that it has, and that a
// process that it started still holds its output.
func succeeded(err error) bool { return err == nil || errors.Is(err, exec.ErrWaitDelay) }

// keyVariable is how this program got the key of the server. What a command does about an event is not to have it: an
// event's text may come from anyone, and an agent may do what it says.
const keyVariable = "MCPEVENTS_KEY="

func inherited() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, keyVariable) })
}

// environment is what a command finds out without reading JSON.
func environment(e client.Event) []string {
	vars := []string{
		"EVENT_ID=" + e.ID, "EVENT_NAME=" + e.Name, "EVENT_TIME=" + e.Time, "EVENT_URI=" + e.URI,
		"EVENT_SUBSCRIPTION=" + e.Subscription, "EVENT_CURSOR=" + e.Cursor,
	}
	for i, v := range vars {
		if len(v) > maxVariable || strings.ContainsRune(v, 0) {
			vars[i], _, _ = strings.Cut(v, "=")
			vars[i] += "="
		}
	}
	return vars
}

// maxVariable bounds a variable. With a longer one, or one with a NUL, no command can start (Linux takes 128 KiB), and
// one event would block all that follow.
const maxVariable = 64 << 10

// count notes a failure, and reports whether it was the last that is borne.
func (c *Command) count(id string) (failures int, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == nil {
		c.failures = map[string]int{} // one for each event that is being handled
	}
	c.failures[id]++
	return c.failures[id], c.Failed != "" && c.failures[id] >= cmp.Or(c.Tries, defaultTries)
}

func (c *Command) forget(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, id)
}

// keep appends an event to the file of what failed, and returns when a kill no longer loses it.
func (c *Command) keep(e client.Event, failure error, tries int) error {
	line, err := json.Marshal(struct {
		Event client.Event `json:"event"`
		Error string       `json:"error"`
		Tries int          `json:"tries"`
		At    time.Time    `json:"at"`
	}{e, failure.Error(), tries, time.Now().UTC()})
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the event")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.OpenFile(c.Failed, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "keep the event that failed")
	}
	_, err = fmt.Fprintf(f, "%s\n", line)
	return fault.Wrap(fault.Unavailable, errors.Join(err, f.Sync(), f.Close()), "keep the event that failed")
}

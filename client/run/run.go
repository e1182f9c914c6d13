// Package run runs a command for each event. Use [Command.Handle] as the Event of client.SubscribeOptions. That way an event can start a
// program in any language, for example a coding agent with a prompt.
//
// The command gets the event as JSON on standard input, and the event's main members in environment variables. The command line contains
// no part of the event, because a shell interprets the line. Exit status 0 acknowledges the event. After any other status, the command
// runs again, with growing pauses.
//
// If this process is killed, a command may run again for the same event. So commands must be idempotent by EVENT_ID and EVENT_URI.
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

// Command is the command to run for each event. It also has the rules for failures of the command.
type Command struct {
	// Line is the command line. It is passed to sh -c.
	Line string
	// Timeout limits the duration of a run. 0 means ten minutes. When it is over, the command and the processes that it started get
	// SIGTERM, and ten seconds later SIGKILL.
	Timeout time.Duration
	// Failed is the name of a file for events that could not be handled. When the command has failed Tries times for an event, the event
	// is appended to the file as a line of JSON, and is acknowledged. If Failed is empty, the command runs until it succeeds.
	Failed string
	// Tries is the number of failed runs after which an event is appended to Failed. 0 means five. If Failed is empty, Tries has no
	// effect.
	Tries int
	// Stdout and Stderr receive the output of the command. If they are nil, the output is discarded.
	Stdout, Stderr io.Writer
	Log            *slog.Logger

	mu       sync.Mutex // guards failures and the file
	failures map[eventKey]int
}

const (
	defaultTimeout = 10 * time.Minute
	defaultTries   = 5
)

// grace limits how long a command, and the processes that it started, may take to end after SIGTERM.
var grace = 10 * time.Second

// Handle runs the command for an event. It returns an error if the event must be handled again.
func (c *Command) Handle(ctx context.Context, e client.Event) error {
	input, err := json.Marshal(e)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "encode the event")
	}
	began := time.Now()
	failure := c.run(ctx, e, input)
	if failure == nil {
		c.forget(e)
		c.Log.Info("command done", "event", e.ID, "took", time.Since(began).Round(time.Millisecond))
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err() // the command was killed because ctx has ended, which is not a failure of the command
	}
	tries, last := c.countFailure(e)
	if !last {
		return fault.Wrap(fault.Unavailable, failure, "run %d of the command", tries)
	}
	if err := c.keep(e, failure, tries); err != nil {
		return err
	}
	c.Log.Error("command failed, giving up", "event", e.ID, "tries", tries, "file", c.Failed, "error", failure)
	c.forget(e)
	return nil
}

func (c *Command) run(ctx context.Context, e client.Event, input []byte) error {
	timeout := cmp.Or(c.Timeout, defaultTimeout)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-c", c.Line)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(append(input, '\n')), c.Stdout, c.Stderr
	cmd.Env = append(inheritedEnvironment(), eventEnvironment(e)...)
	cmd.WaitDelay = grace
	end := inGroup(cmd)
	err := cmd.Run()
	if left := end(err); left != nil {
		c.Log.Warn("command's processes not ended", "event", e.ID, "error", left)
	}
	switch {
	case hasSucceeded(err):
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fault.New(fault.Unavailable, "the command took longer than %s", timeout)
	}
	return err
}

// hasSucceeded reports whether a command has exited with status 0. [exec.ErrWaitDelay] also counts as success. It means that the command
// has exited with status 0, but a process that it started still has its output open.
func hasSucceeded(err error) bool { return err == nil || errors.Is(err, exec.ErrWaitDelay) }

// keyVariable is the beginning of the environment variable with the server's API key. The command must not get the key, because anyone
// may have written the event's text, and an agent may follow instructions in it.
const keyVariable = "MCPEVENTS_KEY="

func inheritedEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, keyVariable) })
}

// eventEnvironment returns environment variables that describe an event, for commands that cannot read JSON.
func eventEnvironment(e client.Event) []string {
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

// maxVariable limits the length, in bytes, of an environment variable. A longer variable, or one with a NUL byte, is left empty. On
// Linux, a command cannot start if a variable has more than 128 KiB or contains a NUL byte, and the event would then block all later
// events.
const maxVariable = 64 << 10

// eventKey identifies an event. The id alone is not enough, because publishers may choose the same id for events of two URIs.
type eventKey struct{ id, uri string }

// countFailure counts a failed run of the command for an event, and returns the number of failures so far. The result last is true if the
// command must not run again for the event. If there is no file for failed events, last is always false.
func (c *Command) countFailure(e client.Event) (failures int, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == nil {
		c.failures = map[eventKey]int{} // the failed runs of each event that is being handled
	}
	key := eventKey{e.ID, e.URI}
	c.failures[key]++
	return c.failures[key], c.Failed != "" && c.failures[key] >= cmp.Or(c.Tries, defaultTries)
}

func (c *Command) forget(e client.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, eventKey{e.ID, e.URI})
}

// keep appends an event to the file of failed events, and syncs the file to disk.
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
		return fault.Wrap(fault.Unavailable, err, "write the failed event")
	}
	_, err = fmt.Fprintf(f, "%s\n", line)
	return fault.Wrap(fault.Unavailable, errors.Join(err, f.Sync(), f.Close()), "write the failed event")
}

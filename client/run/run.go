// Package run runs a command for each event: use [Command.Handle] as the Event of client.SubscribeOptions.
//
// The command gets the event as JSON on standard input, and its main members in the environment. The command line contains no part of
// the event, because a shell interprets the line. Exit status 0 acknowledges the event. If this process is killed, a command may run again
// for the same event, so it must be idempotent by EVENT_ID and EVENT_URI.
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

type Command struct {
	// Line is passed to sh -c.
	Line string
	// Timeout limits a run, by default to ten minutes. Then the command and its processes get SIGTERM, and ten seconds later SIGKILL.
	Timeout time.Duration
	// Failed is a file to which an event is appended, and thereby acknowledged, when the command has failed Tries times for it. If Failed is
	// empty, the command runs until it succeeds.
	Failed string
	// Tries is 5 by default.
	Tries int
	// Stdout and Stderr receive the output of the command; nil discards it.
	Stdout, Stderr io.Writer
	Log            *slog.Logger

	mu       sync.Mutex // guards failures and the file
	failures map[eventKey]int
}

const (
	defaultTimeout = 10 * time.Minute
	defaultTries   = 5
)

// grace limits how long a command and its processes may take to end after SIGTERM.
var grace = 10 * time.Second

// Handle returns an error if the event must be handled again.
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
		return ctx.Err() // the command was ended from here, which is not a failure of the command
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

// hasSucceeded also accepts an [exec.ErrWaitDelay]: the command has exited with 0, but a process that it started still has its output open.
func hasSucceeded(err error) bool { return err == nil || errors.Is(err, exec.ErrWaitDelay) }

// keyVariable is the variable with the server's key. The command must not get the key, because anyone may have written the event's text, and
// an agent may follow instructions in it.
const keyVariable = "MCPEVENTS_KEY="

func inheritedEnvironment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, keyVariable) })
}

// eventEnvironment is for commands that do not read JSON.
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

// maxVariable limits the length of a variable. With a longer one, no command could start (Linux allows 128 KiB), and the event would block all
// later ones.
const maxVariable = 64 << 10

// The id alone does not identify an event, because publishers may choose the same id for events of two URIs.
type eventKey struct{ id, uri string }

// countFailure returns the number of failures so far, and whether this was the last try.
func (c *Command) countFailure(e client.Event) (failures int, last bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failures == nil {
		c.failures = map[eventKey]int{} // one for each event that is being handled
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

// keep appends an event to the file of failed events.
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

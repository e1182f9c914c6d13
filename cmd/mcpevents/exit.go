package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// The exit codes.
const (
	exitDone        = 0
	exitFailure     = 1 // a fault of this program; its text is worth reporting
	exitUsage       = 2 // flags or arguments that are none
	exitRefused     = 3 // input that is refused; it will be again
	exitDenied      = 4 // a caller who is unknown or may not do this
	exitUnavailable = 5 // a server that does not answer, a limit that is reached
	// exitInterrupted is for a command that SIGINT or SIGTERM ended before it was done. Shells use the same code.
	exitInterrupted = 130
)

// exits is the one table from kinds of faults to exit codes.
var exits = map[fault.Kind]int{
	fault.Internal:        exitFailure,
	fault.Invalid:         exitRefused,
	fault.NotFound:        exitRefused,
	fault.Conflict:        exitRefused,
	fault.TooLarge:        exitRefused,
	fault.Unprocessable:   exitRefused,
	fault.Unsupported:     exitRefused,
	fault.Forbidden:       exitDenied,
	fault.Unauthenticated: exitDenied,
	fault.Exhausted:       exitUnavailable,
	fault.Unavailable:     exitUnavailable,
}

// plainer says what kong finds wrong in plainer words.
var plainer = []struct {
	found *regexp.Regexp
	say   string
}{
	{regexp.MustCompile(`^expected "(<.*)"$`), "missing argument: $1"},
	{regexp.MustCompile(`expected \w+ value but got "EOL".*$`), "a value is missing"},
	{regexp.MustCompile(`expected \w+ value but got (".*?").*$`), "a value is missing; if it is $1, put = before it"},
	{regexp.MustCompile(`expected a valid \d+ bit u?int but got (".*")$`), "$1 is not a whole number, or too large"},
	{regexp.MustCompile(`expected a float but got (".*?").*$`), "$1 is not a number"},
	{regexp.MustCompile(`expected duration but got (".*?"): time: .*$`), "$1 is not a duration (such as 90s, 15m or 1h30m)"},
	{regexp.MustCompile(`parsing time (".*?")(?: as .*|: .*)$`), "$1 is not a time (RFC 3339, such as 2026-11-22T12:00:00Z)"},
}

// usage prints what is wrong with the arguments of a command, and whose help says more.
func usage(w io.Writer, err error) int {
	command, group, text := "mcpevents", false, err.Error()
	if parse, ok := errors.AsType[*kong.ParseError](err); ok {
		for _, p := range parse.Context.Path {
			if n := p.Node(); n != nil {
				command, group = n.FullPath(), len(n.Children) > 0
			}
		}
	}
	if flag, ok := strings.CutPrefix(text, "unknown flag --"); ok {
		flag, _, _ = strings.Cut(flag, ",") // after it, kong may suggest another flag
		if removed := config.Removed(flag); removed != nil {
			text = fault.Public(removed)
		}
	}
	if found, ok := strings.CutPrefix(text, "unexpected argument "); ok && group {
		name, hint, _ := strings.Cut(found, ", ")
		text = strings.TrimSuffix(name+" is not a command, "+hint, ", ")
	}
	for _, p := range plainer {
		text = p.found.ReplaceAllString(text, p.say)
	}
	fmt.Fprintf(w, "mcpevents: %s (see %s --help)\n", text, command)
	return exitUsage
}

// report prints an error and its data, and returns the exit code. Commands that run until they are interrupted, such as
// serve and listen, return no error then. For any other command an interrupt means that it is not done.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	if errors.Is(err, context.Canceled) {
		cause := strings.TrimSuffix(": "+err.Error(), ": "+context.Canceled.Error())
		fmt.Fprintf(w, "mcpevents: interrupted%s\n", cause)
		return exitInterrupted
	}
	fmt.Fprintf(w, "mcpevents: %v\n", err)
	if data := fault.DataOf(err); data != nil {
		fault.PrintData(w, data, err.Error())
	}
	return exits[fault.KindOf(err)]
}

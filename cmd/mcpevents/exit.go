package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"unicode"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

const (
	exitDone        = 0
	exitFailure     = 1 // an internal error, which is worth reporting
	exitUsage       = 2 // unknown or contradictory flags or arguments
	exitRefused     = 3 // the input was refused, and will be refused again
	exitDenied      = 4 // the caller is unknown or may not do this
	exitUnavailable = 5 // the server does not answer, a limit is reached, or the output cannot be written
	// exitInterrupted means that SIGINT or SIGTERM ended the command before it was done. Shells use the same code.
	exitInterrupted = 130
)

var exitCodes = map[fault.Kind]int{
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

// plainMessages has messages that are easy to understand. They replace messages of the command-line parser (kong). The field found
// matches the parser's message, and the field say is the replacement.
var plainMessages = []struct {
	found *regexp.Regexp
	say   string
}{
	{regexp.MustCompile(`^expected "(<.*)"$`), "missing argument: $1"},
	{regexp.MustCompile(`^expected one of (".*)$`), "give a command: $1"},
	{regexp.MustCompile(`expected \w+ value but got "EOL".*$`), "a value is missing"},
	{regexp.MustCompile(`expected \w+ value but got (".*?").*$`), "a value is missing; if it is $1, put = before it"},
	{regexp.MustCompile(`expected a valid \d+ bit u?int but got (".*")$`), "$1 is not a whole number, or is too large"},
	{regexp.MustCompile(`expected a float but got (".*?").*$`), "$1 is not a number"},
	{regexp.MustCompile(`expected duration but got (".*?"): time: .*$`), "$1 is not a duration (such as 90s, 15m or 1h30m)"},
	{regexp.MustCompile(`parsing time (".*?")(?: as .*|: .*)$`), "$1 is not a time (RFC 3339, such as 2026-11-22T12:00:00Z)"},
}

// usage prints an error in the command-line arguments, and returns the exit code.
func usage(w io.Writer, err error) int {
	if isOutputError(err) { // --help could not print
		return report(w, err)
	}
	command, group, text := "mcpevents", false, err.Error()
	if parse, ok := errors.AsType[*kong.ParseError](err); ok {
		for _, p := range parse.Context.Path {
			if n := p.Node(); n != nil {
				command, group = n.FullPath(), len(n.Children) > 0
			}
		}
	}
	if flag, ok := strings.CutPrefix(text, "unknown flag --"); ok {
		flag, _, _ = strings.Cut(flag, ",") // after a comma, kong may suggest another flag
		if removed := config.CheckNotRemoved(flag); removed != nil {
			text = fault.Public(removed)
		}
	}
	if found, ok := strings.CutPrefix(text, "unexpected argument "); ok && group {
		name, hint, _ := strings.Cut(found, ", ")
		text = strings.TrimSuffix(name+" is not a command, "+hint, ", ")
	}
	for _, p := range plainMessages {
		text = p.found.ReplaceAllString(text, p.say)
	}
	fmt.Fprintf(w, "mcpevents: %s (see %s --help)\n", text, command)
	return exitUsage
}

// remedy returns advice for the user that is appended to the message of an error. It returns an empty text if there is no advice.
func remedy(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return ": stop the program that uses it, or choose another address"
	case fault.Is(err, fault.Unauthenticated) && !strings.Contains(err.Error(), "key"):
		return ": set --key or MCPEVENTS_KEY"
	}
	return ""
}

// report prints an error and returns the exit code for it. If the user interrupts a command, the error is context.Canceled. Commands that
// run until they are interrupted, such as serve, return no error then.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitDone
	}
	if errors.Is(err, context.Canceled) {
		cause := strings.TrimSuffix(": "+err.Error(), ": "+context.Canceled.Error())
		fmt.Fprintf(w, "mcpevents: interrupted%s\n", cause)
		return exitInterrupted
	}
	var text strings.Builder
	fmt.Fprintf(&text, "mcpevents: %v%s\n", err, remedy(err))
	if data := fault.DataOf(err); data != nil {
		fault.PrintData(&text, data, err.Error())
	}
	_, _ = io.WriteString(w, escapeControls(text.String()))
	if isOutputError(err) {
		return exitUnavailable
	}
	return exitCodes[fault.KindOf(err)]
}

// escapeControls escapes the control characters in an error message, except tabs and line breaks. Text from a server could otherwise
// change the terminal's title, for example, or hide a part of the message.
func escapeControls(text string) string {
	var b strings.Builder
	for _, r := range text {
		if r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// isOutputError reports whether a command could not write to standard output, for example because the disk is full.
func isOutputError(err error) bool {
	path, ok := errors.AsType[*fs.PathError](err)
	return ok && path.Op == "write" && path.Path == os.Stdout.Name()
}

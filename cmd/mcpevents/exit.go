package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// The exit codes.
const (
	exitDone        = 0
	exitFailure     = 1 // a fault of this program; its text is worth reporting
	exitUsage       = 2 // flags or arguments that are none
	exitRefused     = 3 // input that is refused; it will be again
	exitDenied      = 4 // a caller who is unknown or may not do this
	exitUnavailable = 5 // a server that does not answer, a limit that is reached
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

func usage(w io.Writer, err error) int {
	fmt.Fprintf(w, "mcpevents: %v\nRun \"mcpevents --help\", or \"mcpevents COMMAND --help\".\n", err)
	return exitUsage
}

// report prints an error and its data, and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil || errors.Is(err, context.Canceled) {
		return exitDone
	}
	fmt.Fprintf(w, "mcpevents: %v\n", err)
	if data := fault.DataOf(err); data != nil {
		printData(w, data, err.Error())
	}
	return exits[fault.KindOf(err)]
}

// printData prints the data of an error as people read it: schema faults one a
// line, everything else as JSON. The error's text is shown already, and often is the only fault.
func printData(w io.Writer, data any, shown string) {
	b, err := json.Marshal(data)
	if err != nil {
		return
	}
	var faults []struct {
		Pointer, Message *string
		Line             *int
	}
	if json.Unmarshal(b, &faults) != nil || len(faults) == 0 {
		if text := string(b); text != "null" && text != "{}" && text != "[]" {
			fmt.Fprintf(w, "  %s\n", text)
		}
		return
	}
	if faults[0].Line != nil {
		return // of a file, whose faults are the message itself
	}
	for _, f := range faults {
		if f.Pointer == nil || f.Message == nil {
			fmt.Fprintf(w, "  %s\n", b)
			return
		}
	}
	for _, f := range faults {
		at := *f.Pointer
		if at == "" {
			at = "(the whole)"
		}
		line := fmt.Sprintf("%s: %s", at, strings.TrimSpace(*f.Message))
		if len(faults) == 1 && strings.Contains(shown, line) {
			return
		}
		fmt.Fprintf(w, "  %s\n", line)
	}
}

package functions_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
)

// called has the calls to AWS that the functions made in the stacks of this package's tests.
var called struct {
	sync.Mutex
	calls map[runner.Call]bool
}

// noteCalls adds a stack's calls when the test ends.
func noteCalls(t *testing.T, stack *runner.Stack) {
	t.Cleanup(func() {
		called.Lock()
		defer called.Unlock()
		if called.calls == nil {
			called.calls = map[runner.Call]bool{}
		}
		for _, c := range stack.Calls() {
			if strings.HasPrefix(c.Resource, "arn:") {
				c.Resource = ""
			}
			called.calls[c] = true
		}
	})
}

// compareCalls compares the calls with tools/permissions/calls.tsv, which lists the calls that the code does not show
// (AWS-10). It expects all of them only if all tests ran.
func compareCalls() (differences []string) {
	text, err := os.ReadFile("../tools/permissions/calls.tsv")
	if err != nil {
		return []string{err.Error()}
	}
	listed := map[runner.Call]bool{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(f) == 4 {
			listed[runner.Call{Function: f[0], Statement: f[1], Action: f[2], Resource: f[3]}] = true
		}
	}
	if flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.list").Value.String() == "" {
		for c := range listed {
			one := c // of several keys; the store reads a single key with another operation
			one.Action = strings.Replace(c.Action, "BatchGetItem", "GetItem", 1)
			if !called.calls[c] && !called.calls[one] {
				differences = append(differences, fmt.Sprintf("no test made the call %+v", c))
			}
		}
	}
	for c := range called.calls {
		shown := strings.HasPrefix(c.Action, "dynamodb:") || strings.HasPrefix(c.Action, "sqs:")
		if !shown && !listed[c] {
			differences = append(differences, fmt.Sprintf("the call %+v is missing", c))
		}
	}
	return differences
}

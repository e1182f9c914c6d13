package runner

import (
	"cmp"
	"slices"
	"strings"
)

// Call is a kind of request to AWS that a function sent, with the policy statement that allows it.
type Call struct {
	Function  string // logical id
	Statement string // Sid
	Action    string // e.g. dynamodb:PutItem
	Resource  string // logical id of a table, queue or function; otherwise an ARN
}

// Calls returns the permissions that the functions have used so far. It is empty with [Options.Direct].
func (s *Stack) Calls() []Call {
	s.gate.mu.RLock()
	defer s.gate.mu.RUnlock()
	calls := make([]Call, 0, len(s.gate.calls))
	for c := range s.gate.calls {
		calls = append(calls, c)
	}
	slices.SortFunc(calls, func(a, b Call) int {
		return cmp.Or(cmp.Compare(a.Function, b.Function), cmp.Compare(a.Statement, b.Statement),
			cmp.Compare(a.Action, b.Action), cmp.Compare(a.Resource, b.Resource))
	})
	return calls
}

// logical returns the logical id of the stack's resource with an ARN.
func (s *Stack) logical(arn string) string {
	name := arn[strings.LastIndexAny(arn, ":/")+1:]
	if id, ok := strings.CutPrefix(name, s.opts.Name+"-"); ok {
		id, _, _ = strings.Cut(strings.TrimSuffix(id, ".fifo"), "-") // a second name for a logical id ends with a number
		return id
	}
	return arn
}

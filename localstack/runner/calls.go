package runner

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
)

// Call is a kind of request to AWS that a function sent, and the statement of its policies that
// allows it.
type Call struct {
	Function  string `json:"function"`  // logical id
	Statement string `json:"statement"` // Sid
	Action    string `json:"action"`    // such as dynamodb:PutItem
	Resource  string `json:"resource"`  // logical id of a table, queue or function; else an ARN
}

// Calls are the permissions that the functions used so far. It is empty with [Options.Direct].
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

// record adds the calls to the file of the options.
func (s *Stack) record() error {
	calls := s.Calls()
	if s.opts.Calls == "" || len(calls) == 0 {
		return nil
	}
	var lines strings.Builder
	for _, c := range calls {
		b, err := json.Marshal(c)
		if err != nil {
			return err
		}
		lines.Write(append(b, '\n'))
	}
	f, err := os.OpenFile(s.opts.Calls, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(lines.String()); err != nil { // at once: other test binaries add theirs
		_ = f.Close()
		return err
	}
	return f.Close()
}

// logical is the logical id of the resource with an ARN that the stack named.
func (s *Stack) logical(arn string) string {
	name := arn[strings.LastIndexAny(arn, ":/")+1:]
	if id, ok := strings.CutPrefix(name, s.opts.Name+"-"); ok {
		id, _, _ = strings.Cut(strings.TrimSuffix(id, ".fifo"), "-") // the second name of a logical id has a number
		return id
	}
	return arn
}

package runner

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
	"strings"
)

// Call is a kind of request to AWS that a function sent, with the policy statement that allows it.
type Call struct {
	Function  string `json:"function"`  // logical id
	Statement string `json:"statement"` // Sid
	Action    string `json:"action"`    // e.g. dynamodb:PutItem
	Resource  string `json:"resource"`  // logical id of a table, queue or function; otherwise an ARN
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

// record appends the calls to the file in the options.
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
	if _, err := f.WriteString(lines.String()); err != nil { // in one write, because other test binaries append to the file too
		_ = f.Close()
		return err
	}
	return f.Close()
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

package ready_test

import (
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// other returns an argument that an event with the given value does not match.
func other(value any) any {
	switch v := value.(type) {
	case bool:
		return !v
	case map[string]any: // a range
		return map[string]any{"$gt": 1_000_000_000}
	case []any:
		return []any{"another", "and-another"}
	}
	return "another"
}

// follower polls for events with fixed arguments.
type follower struct {
	client    *client.Client
	name      string
	arguments map[string]any
	cursor    any
}

func follow(t *testing.T, base, name string, arguments map[string]any) *follower {
	t.Helper()
	c, err := client.Connect(t.Context(), base, client.Options{Agent: "test/1", Revision: string(spec.V20260728)})
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{client: c, name: name, arguments: arguments}
	f.poll(t)
	return f
}

// poll returns the ids of the events since the previous poll.
func (f *follower) poll(t *testing.T) (ids []string) {
	t.Helper()
	var page struct {
		Events []struct{ EventID string }
		Cursor string
	}
	params := map[string]any{"name": f.name, "arguments": f.arguments, "cursor": f.cursor}
	if err := f.client.Call(t.Context(), spec.MethodEventsPoll, params, &page); err != nil {
		t.Fatal(err)
	}
	f.cursor = page.Cursor
	for _, e := range page.Events {
		ids = append(ids, e.EventID)
	}
	return ids
}

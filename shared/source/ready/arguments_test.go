package ready_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/source/ready"
)

// TestArguments subscribes to each sample as an agent might, and then with one argument after another changed into
// what the event does not have.
func TestArguments(t *testing.T) {
	for _, p := range ready.Providers() {
		for _, s := range samples(t, p.Name) {
			t.Run("SRC-06 "+p.Name+" "+s.File+" comes to who asks for it", func(t *testing.T) {
				t.Parallel()
				base := serve(t, p)
				asks := follow(t, base, s.Want.Name, s.Arguments)
				others := map[string]*follower{}
				for name, value := range s.Arguments {
					changed := maps.Clone(s.Arguments)
					changed[name] = other(value)
					others[name] = follow(t, base, s.Want.Name, changed)
				}
				mark(t, base, s)
				var got []string
				for end := time.Now().Add(patience); len(got) == 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					got = asks.poll(t)
				}
				if !slices.Equal(got, []string{"mark"}) {
					t.Errorf("got %v with %v", got, s.Arguments)
				}
				for name, o := range others {
					if got := o.poll(t); len(got) > 0 {
						t.Errorf("got %v though %s is not %v", got, name, o.arguments[name])
					}
				}
			})
		}
	}
}

// other is an argument for what has not the value.
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

// follower polls for events.
type follower struct {
	client    *client.Client
	name      string
	arguments map[string]any
	cursor    any
}

func follow(t *testing.T, base, name string, arguments map[string]any) *follower {
	t.Helper()
	c, err := client.New(client.Server{URL: base, Agent: "test/1"}, mcpspec.V20260728)
	if err != nil {
		t.Fatal(err)
	}
	f := &follower{client: c, name: name, arguments: arguments}
	f.poll(t)
	return f
}

// poll gives the ids of the events since the poll before.
func (f *follower) poll(t *testing.T) (ids []string) {
	t.Helper()
	var page struct {
		Events []struct{ EventID string }
		Cursor string
	}
	params := map[string]any{"name": f.name, "arguments": f.arguments, "cursor": f.cursor}
	if err := f.client.Call(t.Context(), mcpspec.MethodEventsPoll, params, &page); err != nil {
		t.Fatal(err)
	}
	f.cursor = page.Cursor
	for _, e := range page.Events {
		ids = append(ids, e.EventID)
	}
	return ids
}

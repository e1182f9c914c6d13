//go:build unix

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

const orders = `
events:
  - name: order.placed
    uriTemplate: event://orders/{shop}/placed
    filters: {total: /total, at: /at, note: /note}
    payloadSchema:
      type: object
      properties: {total: {type: integer}, at: {type: string, format: date-time}, note: {type: string}}
`

// TestRanges uses ranges in arguments wherever arguments select events: RCH-09.
func TestRanges(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "orders.yaml")
	expect.OK(t, os.WriteFile(file, []byte(orders), 0o600))
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--workspace-catalog", "shops=" + file}})
	ranges(t, &s.Target)
}

func ranges(t *testing.T, s *harness.Target) {
	c := s.Stateless("shopper")
	hooks := harness.NewReceiver(t)
	for name, arguments := range map[string]object{
		"numbers": {"total": object{"$gte": 100, "$lt": 500}},
		"times":   {"at": object{"$gte": "2026-11-23T00:00:00Z", "$lt": "2026-11-24T00:00:00Z"}},
	} {
		t.Run("RCH-09 "+name+" in webhooks, streams, polls and replays", func(t *testing.T) {
			arguments["shop"] = name
			poller := &follower{client: c, name: "order.placed", arguments: arguments}
			begin := poller.poll(t, nil).Cursor
			hook, again := hooks.Endpoint(name), hooks.Endpoint(name+"-again")
			subscribe(t, c, hook, "order.placed", arguments)
			stream := c.Stream(t, 1, "events/stream", object{"name": "order.placed", "arguments": arguments})
			for i, o := range []object{
				{"total": 99, "at": "2026-11-22T23:59:59Z"},
				{"total": 100, "at": "2026-11-23T01:00:00+01:00"},
				{"note": "neither"},
				{"total": 500, "at": "2026-11-24T00:00:00Z"},
				{"total": 499, "at": "2026-11-23T23:59:59.9Z"},
			} {
				expect.OK(t, expect.ErrOf(s.TryPublish(t.Context(), "shopper", harness.Event{ID: fmt.Sprint(name, "_", i), URI: "event://orders/" + name + "/placed", Data: o})))
			}
			want := []string{name + "_1", name + "_4"}
			hook.Wait(t, 2)
			again.SetSecret(harness.NewSecret())
			replay := subscription("order.placed", arguments, again.URL(), again.Secret())
			replay["cursor"] = begin
			c.Call(t, "events/subscribe", replay, nil)
			again.Wait(t, 2)
			for mode, got := range map[string][]string{
				"webhooks": slices.Sorted(maps.Keys(hook.IDs())), "replays": slices.Sorted(maps.Keys(again.IDs())),
				"streams": eventIDs(different(occurrences(t, stream, 2))), "polls": eventIDs(different(poller.wait(t, 2))),
			} {
				expect.List(t, mode, got, want)
			}
		})
	}
	t.Run("RCH-09 inputSchema shows where ranges are allowed, and they are accepted only there", func(t *testing.T) {
		var list struct {
			Events []struct {
				Name        string
				InputSchema struct {
					Properties map[string]struct{ AnyOf []struct{ Properties object } }
				}
			}
		}
		c.Call(t, "events/list", nil, &list)
		for _, e := range list.Events {
			for _, argument := range []string{"total", "at", "note"} {
				shown := false
				for _, alternative := range e.InputSchema.Properties[argument].AnyOf {
					shown = shown || alternative.Properties["$gte"] != nil
				}
				expect.Equal(t, "a range is shown for "+argument, shown, argument != "note")
			}
		}
		for _, arguments := range []object{{"note": object{"$gte": "a"}}, {"total": object{"$gte": "100"}}, {"total": object{}}, {"total": object{"$gte": 500, "$lt": 100}}, {"at": object{"$gte": "today"}}} {
			c.Refused(t, -32602, "events/poll", object{"name": "order.placed", "arguments": arguments})
		}
	})
}

package main

import (
	"os"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestDerive(t *testing.T) {
	c := expect.Value(load("../.."))(t)
	needs := c.needs()
	for id, all := range needs {
		for _, n := range all {
			t.Logf("%s %s %s %q  %s", id, n.action, n.resource, n.prefix, n.at)
		}
	}
	functions := expect.Value(read(template))(t)
	t.Run("AWS-10 the template grants each operation that the code of a function makes", func(t *testing.T) {
		for _, id := range sorted(needs) {
			for _, n := range missing(id, functions[id], needs[id]) {
				t.Errorf("no statement of %s allows %s on %s for partitions %q, which %s needs", id, n.action, n.resource, n.prefix+"*", n.at)
			}
		}
	})
	text := expect.Value(os.ReadFile("calls.tsv"))(t)
	calls := expect.Value(recorded(string(text)))(t)
	t.Run("AWS-10 the code or a recorded call uses each permission that the template grants", func(t *testing.T) {
		for _, p := range unused(functions, calls, needs) {
			t.Errorf("%s %s grants %s on %s, which no code and no recorded call uses", p.function, p.statement, p.action, p.resource)
		}
	})
	t.Run("AWS-10 the template grants each recorded call, which the code does not show", func(t *testing.T) {
		for call := range calls {
			if !slices.ContainsFunc(unused(functions, nil, needs), func(p permission) bool { return p.asCalled() == call }) {
				t.Errorf("%+v is not granted, or the code shows it: remove it from calls.tsv", call)
			}
		}
	})
	t.Run("AWS-10 a permission that the code needs is missed, whether or not a test uses it", func(t *testing.T) {
		for _, want := range []struct {
			function string
			need     need
		}{
			{"RegisterFunction", need{"dynamodb:PutItem", "LogTable", "i#", "(*shared/events/log.Log).Interested"}},
			{"StreamFunction", need{"dynamodb:UpdateItem", "SubscriptionsTable", "shapes#", "shared/events/subscription.interestedUntil"}},
			{"DispatchFunction", need{"dynamodb:BatchWriteItem", "DeliveriesTable", "due#", "(*shared/events/delivery.deliveries).writeAll"}},
			{"RetryFunction", need{"dynamodb:DeleteItem", "SettingsTable", "announce", "shared/storage/settings.Announced"}},
			{"FanoutFunction", need{"sqs:SendMessage", "DeadQueue", "", "(*shared/events/delivery.Fanout).bury"}},
		} {
			if !slices.ContainsFunc(needs[want.function], func(n need) bool {
				return n.action == want.need.action && n.resource == want.need.resource && n.prefix == want.need.prefix
			}) {
				t.Errorf("%s: the code is not found to need %+v", want.function, want.need)
			}
			var left []statement
			for _, st := range functions[want.function] {
				if !want.need.allowed([]statement{st}) {
					left = append(left, st)
				}
			}
			if len(missing(want.function, left, needs[want.function])) == 0 {
				t.Errorf("%s: %s on %s is not reported as missing", want.function, want.need.action, want.need.resource)
			}
		}
	})
	t.Run("AWS-10 what is said to be unreachable is in the code", func(t *testing.T) {
		for _, u := range unreachable {
			if !slices.ContainsFunc(needs[u.function], u.covers) {
				t.Errorf("the code of %s no longer has %s on %s: remove it from the list", u.function, u.at, u.resource)
			}
		}
	})
}

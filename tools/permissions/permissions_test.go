package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

const template = "../../template.yaml"

func TestPermissions(t *testing.T) {
	t.Run("AWS-10 the page is what the template says", func(t *testing.T) {
		expect.OK(t, run(template, "../../docs/internals/permissions.md", true))
	})
	t.Run("AWS-10 a page of another template is reported", func(t *testing.T) {
		page := filepath.Join(t.TempDir(), "permissions.md")
		expect.OK(t, os.WriteFile(page, []byte("# Permissions\n"), 0o600))
		expect.Error(t, "the error", run(template, page, true), "make permissions")
	})
	t.Run("AWS-10 a permission that no call uses and no code needs is reported", func(t *testing.T) {
		functions := expect.Value(read(template))(t)
		used := expect.Value(recorded("KeysFunction\tWriteWrappedKeyset\tdynamodb:PutItem\tKeysTable\nKeysFunction\tWrapKeyset\tkms:Encrypt\t\n"))(t)
		told := map[permission]bool{}
		needs := map[string][]need{"RegisterFunction": {{action: "dynamodb:PutItem", resource: "LogTable", prefix: "i#"}}}
		for _, p := range unused(functions, used, needs) {
			told[p] = true
		}
		for p, want := range map[permission]bool{
			{"KeysFunction", "WriteWrappedKeyset", "dynamodb:PutItem", "KeysTable"}:     false,
			{"KeysFunction", "WriteWrappedKeyset", "dynamodb:GetItem", "KeysTable"}:     true,
			{"KeysFunction", "WrapKeyset", "kms:Encrypt", "SealingKey"}:                 false,
			{"KeysFunction", "WrapKeyset", "kms:Decrypt", "SealingKey"}:                 true,
			{"PublishFunction", "ReceiveFromInbox", "sqs:DeleteMessage", "InboxQueue"}:  false, // Lambda's
			{"PublishFunction", "SendEvents", "sqs:SendMessage", "EventsQueue"}:         true,
			{"FanoutFunction", "AppendToLog", "dynamodb:BatchWriteItem", "LogTable"}:    true,
			{"DispatchFunction", "SendPagesAndRetries", "sqs:SendMessage", "SlowQueue"}: true,
			{"RegisterFunction", "RecordInterest", "dynamodb:PutItem", "LogTable"}:      false, // after hours, and no test waits for that
			{"RegisterFunction", "NotifyStreams", "dynamodb:PutItem", "LogTable"}:       true,
		} {
			expect.Equal(t, fmt.Sprintf("what %+v is told", p), told[p], want)
		}
	})
}

func TestSenders(t *testing.T) {
	t.Run("SRC-01 who may send to a queue is on the page", func(t *testing.T) {
		got := string(renderSenders(expect.Value(readSenders(template))(t)))
		for _, want := range []string{
			"| `HasRule` | events.amazonaws.com | sqs:SendMessage | InboxQueue | aws:SourceArn `SourceRule` |",
			"| `HasBuckets` | s3.amazonaws.com | sqs:SendMessage | InboxQueue | aws:SourceArn `SourceBucketArns`; aws:SourceAccount `AWS::AccountId` |",
		} {
			expect.Contains(t, "the page", got, want)
		}
	})
}

func TestDerive(t *testing.T) {
	needs := expect.Value(load("../.."))(t).needs()
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

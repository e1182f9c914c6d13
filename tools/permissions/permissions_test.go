package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

const template = "../../template.yaml"

func TestPermissions(t *testing.T) {
	t.Run("AWS-10 the page is what the template says", func(t *testing.T) {
		if err := run(template, "../../docs/internals/permissions.md", true); err != nil {
			t.Error(err)
		}
	})
	t.Run("AWS-10 a page of another template is reported", func(t *testing.T) {
		page := filepath.Join(t.TempDir(), "permissions.md")
		expect.OK(t, os.WriteFile(page, []byte("# Permissions\n"), 0o600))
		if err := run(template, page, true); err == nil || !strings.Contains(err.Error(), "make permissions") {
			t.Errorf("got %v", err)
		}
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
		senders := expect.Value(readSenders(template))(t)
		got := string(renderSenders(senders))
		for _, want := range []string{
			"| `HasRule` | events.amazonaws.com | sqs:SendMessage | InboxQueue | aws:SourceArn `SourceRule` |",
			"| `HasBuckets` | s3.amazonaws.com | sqs:SendMessage | InboxQueue | aws:SourceArn `SourceBucketArns`; aws:SourceAccount `AWS::AccountId` |",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%s is not in\n%s", want, got)
			}
		}
	})
}

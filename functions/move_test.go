package functions_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/app/apply"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/tools/docs/page"
)

// polled is the result of events/poll.
type polled struct {
	Events    []struct{ EventID string }
	Cursor    string
	Truncated bool
}

func poll(t *testing.T, base, cursor string) (answer polled) {
	t.Helper()
	value, _ := json.Marshal(cursor)
	if cursor == "" {
		value = []byte("null")
	}
	raw := rpc(t, base, "events/poll", `"name":"ci.build_finished","cursor":`+string(value))
	expect.OK(t, json.Unmarshal(raw, &answer))
	return answer
}

// operator is a shell that runs the blocks of docs/how-to/restore-on-aws.md for a move, with the word move.
type operator struct {
	blocks  []string
	prelude string
}

// newOperator starts the AWS command line. AWS Backup is our simulation.
func newOperator(t *testing.T, stack *runner.Stack, name string) *operator {
	t.Helper()
	p := expect.Value(page.Read("../docs/how-to/restore-on-aws.md"))(t)
	o := &operator{}
	for _, b := range p.Blocks {
		if b.Is("move") {
			o.blocks = append(o.blocks, strings.ReplaceAll(b.Text, "STACK=mcp-events", "STACK="+name))
		}
	}
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	backups := httptest.NewServer(runner.BackupAPI(runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack}))
	t.Cleanup(backups.Close)
	cmd := exec.CommandContext(t.Context(), python(t), "testdata/aws.py", "backup="+backups.URL, "dynamodb="+ends.DynamoDB,
		"kms="+ends.MiniStack, "sts="+ends.MiniStack, "cloudformation="+stack.Environment("KeysFunction")["AWS_ENDPOINT_URL_CLOUDFORMATION"])
	cmd.Stderr = lines{t}
	out := expect.Value(cmd.StdoutPipe())(t)
	expect.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	port := expect.Value(bufio.NewReader(out).ReadString('\n'))(t)
	o.prelude = `aws() {
	local out
	out=$(printf '%s\0' "$@" | curl -sS --noproxy '*' --fail-with-body --data-binary @- http://127.0.0.1:` + strings.TrimSpace(port) + `) || { echo "$out" >&2; return 1; }
	echo "$out"
}
sleep() { :; }
`
	return o
}

// run runs the next n blocks and returns their output. The first block has the variables, which are set again for each.
func (o *operator) run(t *testing.T, n int) string {
	t.Helper()
	out, err := o.try(t, n)
	expect.OK(t, err, out)
	o.blocks = append(o.blocks[:1:1], o.blocks[1+n:]...)
	return strings.TrimSpace(out)
}

func (o *operator) try(t *testing.T, n int) (string, error) {
	cmd := exec.CommandContext(t.Context(), "bash", "-eu", "-o", "pipefail")
	cmd.Stdin = strings.NewReader(o.prelude + strings.Join(o.blocks[:1+n], "\n"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestMoveToAnotherRegion follows "Move to another Region or account" in docs/how-to/restore-on-aws.md. The DynamoDB
// emulator shares tables between Regions. The emulators of KMS, Parameter Store and AWS Backup separate Regions.
func TestMoveToAnotherRegion(t *testing.T) {
	t.Parallel()
	const region, parameter, token = "eu-west-1", "/mcp-events/Move/backend", "Bearer s3cret"
	asked := make(chan string, 100)
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case asked <- r.Header.Get("Authorization"):
		default:
		}
		w.WriteHeader(http.StatusNotFound)
	}))
	defer backend.Close()

	old := deploy(t, nil)
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	c := expect.Value(config.Parse([]byte("backends:\n  - {name: b, url: \"" + backend.URL + "/mcp\", headers: {Authorization: \"ssm:" + parameter + "\"}}\n")))(t)
	expect.OK(t, expect.ErrOf((&apply.Target{DB: database(t, old)}).Apply(t.Context(), apply.Files{Config: c})))
	target, hooks := endpoint(t, nil)
	uri, secret := register(t, old, target)
	eventsTarget, eventsHooks := endpoint(t, echo)
	eventsSecret, _ := webhook.NewSecret()
	subscription := `"name":"ci.build_finished","delivery":{"mode":"webhook","url":"` + eventsTarget + `","secret":"` + eventsSecret + `"}`
	rpc(t, old.URL(), "events/subscribe", subscription)
	expect.Receive(t, "the challenge", eventsHooks)
	cursor := poll(t, old.URL(), "").Cursor
	kept := publish(t, old, 1)
	expect.Receive(t, "the webhook of the registration", hooks)
	expect.Receive(t, "the webhook of the subscription", eventsHooks)
	sealer := expect.Value(cursors.Sealer(t.Context(), database(t, old)))(t)
	const outage = 10 * time.Minute
	lost := time.Now().Add(-outage).UnixMicro()
	before := sealer.Seal(auth.DefaultWorkspace, eventlog.Cursor{At: lost, Given: lost})

	// Prepare for the loss of the Region: replicate the key, and copy backups of the tables. They lack the last event.
	prefix := strings.TrimSuffix(old.Outputs()["SettingsTable"], "SettingsTable")
	op := newOperator(t, old, strings.TrimSuffix(prefix, "-"))
	printed := strings.Fields(op.run(t, 1))
	parameters := map[string]string{"Auth": "none", "AllowInsecureTargets": "true", "SealingKeyArn": strings.Trim(printed[len(printed)-1], `"`)}
	if out, err := (&operator{prelude: op.prelude, blocks: []string{op.blocks[0], op.blocks[2]}}).try(t, 1); err == nil || !strings.Contains(out, "ResourceNotFoundException") {
		t.Errorf("tables were restored without a copy in the Region: %s", out)
	}
	op.run(t, 1)
	// The loss interrupts a newer copy.
	const copyAgain = `POINT=$(aws backup list-recovery-points-by-backup-vault --backup-vault-name "$STACK" --query "RecoveryPoints[?contains(ResourceArn, 'LogTable')].RecoveryPointArn | [0]" --output json | tr -d '"')
aws backup start-copy-job --source-backup-vault-name "$STACK" --recovery-point-arn "$POINT" --iam-role-arn "$ROLE" --destination-backup-vault-arn "arn:aws:backup:$OTHER:$ACCOUNT:backup-vault:$STACK"`
	if out, err := (&operator{prelude: op.prelude, blocks: []string{op.blocks[0], copyAgain}}).try(t, 1); err != nil {
		t.Fatalf("copy a backup again: %v: %s", err, out)
	}
	publish(t, old, 2)
	expect.Receive(t, "the webhook of the registration", hooks)
	expect.Receive(t, "the webhook of the subscription", eventsHooks)
	host := newName(t, "moved.example.com")
	update(t, old, frontOf("moved.example.com"))
	host.point(old)
	named := poll(t, host.URL, "").Cursor
	old.Close()
	db := dynamodb.NewFromConfig(awslocal.Config(ends.DynamoDB))
	for n, arn := range strings.Fields(op.run(t, 1)) {
		id := strings.Fields("Subscriptions Log Deliveries Sessions Settings Keys")[n] + "Table"
		parameters[id+"Arn"] = arn
		setProperties(t, db, arn[strings.LastIndex(arn, "/")+1:])
	}
	d, _ := readDeployment(t)
	for name, arn := range parameters {
		if strings.HasSuffix(name, "Arn") && !matches(d.Parameters[name].AllowedPattern, arn) {
			t.Errorf("the template refuses %s=%s", name, arn)
		}
	}
	// Copy the secrets and deploy.
	expect.OK(t, awslocal.PutParameterIn(t.Context(), region, ends.MiniStack, parameter, token))
	moved := deployCopy(t, ends, prefix+"moved", region, parameters)

	t.Run("AWS-12 the stack adopts the tables, and does not create its own", func(t *testing.T) {
		for _, table := range store.Tables() {
			id := prefix + "moved-" + strings.ToUpper(string(table[:1])) + string(table[1:]) + "Table"
			if _, err := db.DescribeTable(t.Context(), &dynamodb.DescribeTableInput{TableName: &id}); err == nil {
				t.Errorf("the stack created the table %s", id)
			}
		}
	})
	t.Run("AWS-22 a cursor from before the move continues", func(t *testing.T) {
		got := poll(t, moved.URL(), cursor)
		if got.Truncated || len(got.Events) != 1 || got.Events[0].EventID != kept {
			t.Errorf("got %+v, want the event %s and no gap", got, kept)
		}
	})
	t.Run("AWS-12 AWS-22 existing subscriptions get webhooks with their old signature keys", func(t *testing.T) {
		id := publish(t, moved, 3)
		for _, subscriber := range []struct {
			hooks  <-chan received
			secret string
		}{{hooks, secret}, {eventsHooks, eventsSecret}} {
			hook := expect.Receive(t, "the webhook", subscriber.hooks)
			expect.Equal(t, "the webhook-id", hook.header.Get("Webhook-Id"), id)
			expect.OK(t, webhook.Verify(hook.header, hook.body, subscriber.secret))
		}
	})
	t.Run("AWS-22 a backend gets its secret from the new Region", func(t *testing.T) {
		for len(asked) > 0 {
			<-asked
		}
		rpc(t, moved.URL(), "tools/list", "")
		expect.Equal(t, "the credentials that the backend gets", expect.Receive(t, "a request to the backend", asked), token)
	})
	t.Run("AWS-22 subscriptions are refreshed and ended", func(t *testing.T) {
		rpc(t, moved.URL(), "events/subscribe", subscription)
		rpc(t, moved.URL(), "events/unsubscribe", subscription)
		deregister(t, moved, uri)
	})
	t.Run("AWS-22 with a short retention, a cursor from before the loss has a gap", func(t *testing.T) {
		expect.OK(t, moved.Update(t.Context(), map[string]string{"Retention": "5m"}))
		expect.True(t, "the poll reports the gap of a lost event", poll(t, moved.URL(), before).Truncated)
	})
	t.Run("AWS-22 after a change of DNS, clients continue at the same host name", func(t *testing.T) {
		update(t, moved, frontOf("moved.example.com"))
		body, header := request("events/poll", `"name":"ci.build_finished","cursor":"`+named+`"`)
		expect.Equal(t, "the status while the name points to the lost Region", post(t, host.URL+"/mcp", body, header, nil).StatusCode, http.StatusBadGateway)
		host.point(moved)
		if resp := post(t, host.URL+"/events", `{"uri":"event://ci/build-finished","data":`+fmt.Sprintf(build, 4)+`}`, nil, nil); resp.StatusCode != http.StatusAccepted {
			t.Fatalf("publish: got %d", resp.StatusCode)
		}
		eventually(t, "the two events since the move arrive without a gap", func() bool {
			got := poll(t, host.URL, named)
			return !got.Truncated && len(got.Events) == 2
		})
	})
	for _, denied := range moved.Denied() {
		t.Errorf("a permission is missing: %s", denied)
	}
}

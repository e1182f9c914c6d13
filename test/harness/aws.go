//go:build unix

package harness

import (
	"bytes"
	"compress/flate"
	"context"
	crand "crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/awscount"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

// AWSOptions choose how the functions run on local AWS. The zero value is the
// deployment template with keys for [Callers] that sends webhooks anywhere.
type AWSOptions struct {
	// Env is put over the environment of every function.
	Env map[string]string
	// Visibility replaces the visibility timeout of all queues, for tests in which
	// work is lost; 0 leaves the template's.
	Visibility time.Duration
	// Managed runs the MCP endpoint as on Lambda Managed Instances: several processes that each serve several requests
	// concurrently. [RaceVariable] decides whether they are built with the race detector.
	Managed runner.Managed
	// Fast builds them without.
	Fast bool
	// Config is further text for the configuration that goes with the catalog.
	Config string
	// Catalog is the text of a catalog file; empty is the repository's.
	Catalog string
	// Callers replace [Callers].
	Callers []Caller
	// Issuer makes the functions accept the issuer's tokens for Audience instead of keys. Tokens has the callers' tokens, by name.
	Issuer, Audience string
	Tokens           map[string]string
	// StreamTime bounds an invocation of the MCP endpoint; 0 is as the template says.
	StreamTime time.Duration
	// DispatchTime bounds an invocation of dispatch; 0 is as the template says.
	DispatchTime time.Duration
	// Defaults runs as many workers as the template's default parameters allow, instead of ten each.
	Defaults bool
}

// AWS is the functions of template.yaml on local AWS: real binaries as processes,
// on emulators of DynamoDB, SQS and KMS.
type AWS struct {
	Target
	name    string
	catalog string // YAML of the default workspace's catalog; empty means the repository's catalog.yaml
	keys    string // the section of the configuration
	stack   *runner.Stack
	out     *expect.Buffer
}

// Quick is the environment in which what takes minutes takes seconds, and a quota is no obstacle.
var Quick = map[string]string{
	"MCPEVENTS_RETRY_SCHEDULE":        "0s,1s,1s,1s,1s,1s",
	"MCPEVENTS_EVENTS_RETRY_SCHEDULE": "0s,1s,1s",
	"MCPEVENTS_WEBHOOK_TIMEOUT":       "4s",
	"MCPEVENTS_MIN_TTL":               "1s",
	"MCPEVENTS_QUOTA":                 "10000",
}

// emulators are shared by all tests of the process.
var emulators struct {
	mu      sync.Mutex
	running *awslocal.Running
}

func endpoints(tb testing.TB) awslocal.Endpoints {
	tb.Helper()
	emulators.mu.Lock()
	defer emulators.mu.Unlock()
	if emulators.running == nil {
		running, err := awslocal.StartAll(tb.Context(), os.Stderr)
		expect.OK(tb, err)
		emulators.running = running
	}
	return emulators.running.Endpoints
}

// StartAWS starts the emulators, unless they run already, and a deployment of its
// own on them, which ends with the test.
func StartAWS(tb testing.TB, o AWSOptions) *AWS {
	tb.Helper()
	ends := endpoints(tb)
	a := &AWS{out: new(expect.Buffer), name: "test-" + strings.ToLower(crand.Text()[:8])}
	began := time.Now()
	parameters := map[string]string{"Auth": "keys", "AllowInsecureTargets": "true"}
	if o.Issuer != "" {
		parameters["Auth"], parameters["JwtIssuer"], parameters["JwtAudience"] = "jwt", o.Issuer, o.Audience
	}
	if !o.Defaults { // as for an account that has long been used
		parameters["InboxConcurrency"], parameters["FanoutConcurrency"], parameters["DispatchConcurrency"] = "2", "10", "10"
		parameters["StreamConcurrency"] = "1000"
	}
	stack, err := runner.Start(tb.Context(), runner.Options{
		Template:   filepath.Join(Root(tb), "template.yaml"),
		Name:       a.name,
		Parameters: parameters,
		Env:        o.Env,
		Region:     awslocal.Region,
		Endpoints:  runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: ends.SQS, KMS: ends.MiniStack, SSM: ends.MiniStack},
		Binaries:   binaries(tb, o),
		Managed:    map[string]runner.Managed{stream: o.Managed},
		Visibility: o.Visibility,
		Timeouts:   map[string]time.Duration{stream: o.StreamTime, "DispatchFunction": o.DispatchTime},
		Speed:      30, // retries that are due are looked for every two seconds
		Progress:   a.out,
		Output:     a.out,
	})
	if err != nil {
		tb.Fatalf("start local AWS: %v\n%s", err, a.out.Tail(8<<10))
	}
	a.stack = stack
	tb.Cleanup(func() {
		stack.Close()
		for _, denied := range stack.Denied() {
			tb.Errorf("the template's policies do not let the functions do what they need: %s", denied)
		}
		keepOutput(tb, "the functions", a.out)
		for id, s := range stack.Stats() {
			tb.Logf("%s: %d invocations, %d errors, %d timeouts, %d starts", id, s.Invocations, s.Errors, s.Timeouts, s.ColdStarts)
		}
	})
	a.Name, a.MCP, a.Events, a.Admin = "local AWS", stack.URL()+"/mcp", stack.URL()+"/events", stack.URL()+"/admin/v1/"
	callers := o.Callers
	if callers == nil {
		callers = Callers()
	}
	somebody := callers[0].Principal
	a.keys, a.Keys = keysConfig(callers)
	if o.Issuer != "" {
		a.keys, a.Keys, somebody = "", o.Tokens, slices.Min(slices.Collect(maps.Keys(o.Tokens)))
	}
	a.catalog = o.Catalog
	a.ApplyConfig(tb, o.Config)
	Eventually(tb, Patience, "the functions use the applied catalog", func() bool {
		list, err := a.Stateless(somebody).Try(tb.Context(), "resources/templates/list", nil)
		return err == nil && list.Error == nil && strings.Contains(string(list.Body), "event://")
	})
	tb.Logf("local AWS is up after %v", time.Since(began))
	return a
}

// Enqueue sends a message, with attributes, to the queue of the template that has the logical id.
func (a *AWS) Enqueue(tb testing.TB, id, body string, attributes map[string]string) {
	tb.Helper()
	url := a.stack.QueueURL(id)
	in := &sqs.SendMessageInput{QueueUrl: &url, MessageBody: &body, MessageAttributes: map[string]sqstypes.MessageAttributeValue{}}
	for name, value := range attributes {
		in.MessageAttributes[name] = sqstypes.MessageAttributeValue{DataType: aws.String("String"), StringValue: &value}
	}
	if strings.HasSuffix(url, ".fifo") {
		group := crand.Text()
		in.MessageGroupId, in.MessageDeduplicationId = &group, &group
	}
	expect.OK(tb, expect.ErrOf(sqs.NewFromConfig(awslocal.Config(endpoints(tb).SQS)).SendMessage(tb.Context(), in)))
}

// QueueDepths returns how many messages the queues on an event's way hold, and describes them for each queue: visible, in
// flight and delayed.
func (a *AWS) QueueDepths(ctx context.Context, tb testing.TB) (queued int, depths []string) {
	client := sqs.NewFromConfig(awslocal.Config(endpoints(tb).SQS))
	for _, id := range []string{"InboxQueue", "EventsQueue", "DeliveriesQueue", "SlowQueue", "DeadQueue", "EventsDeadQueue"} {
		url := a.stack.QueueURL(id)
		out, err := client.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
			QueueUrl: &url, AttributeNames: []sqstypes.QueueAttributeName{sqstypes.QueueAttributeNameAll},
		})
		if err != nil {
			depths = append(depths, fmt.Sprintf("%s: %v", id, err))
			continue
		}
		var counts [3]int
		for i, attribute := range []sqstypes.QueueAttributeName{
			sqstypes.QueueAttributeNameApproximateNumberOfMessages, sqstypes.QueueAttributeNameApproximateNumberOfMessagesNotVisible,
			sqstypes.QueueAttributeNameApproximateNumberOfMessagesDelayed,
		} {
			counts[i], _ = strconv.Atoi(out.Attributes[string(attribute)]) // SQS sends numbers
		}
		if !strings.HasSuffix(id, "DeadQueue") {
			queued += counts[0] + counts[1] + counts[2]
		}
		depths = append(depths, fmt.Sprintf("%s: %d visible, %d in flight, %d delayed", id, counts[0], counts[1], counts[2]))
	}
	return queued, depths
}

// stream is the logical id of the function behind the MCP endpoint.
const stream = "StreamFunction"

// binaries returns the executables of [Functions], with another build of a function that serves several requests
// concurrently.
func binaries(tb testing.TB, o AWSOptions) map[string]string {
	tb.Helper()
	all := Functions(tb)
	if o.Managed.AtOnce > 1 && race() && !o.Fast {
		all["functions/stream"] = Binary(tb, "./functions/stream", true)
	}
	return all
}

// Kill kills a process of a function on the way of an event or of the MCP
// endpoint, one that works if there is one.
func (a *AWS) Kill() {
	ids := []string{"PublishFunction", "FanoutFunction", "DispatchFunction", stream}
	a.KillOf(ids[rand.IntN(len(ids))])
}

// KillOf kills a process of the function.
func (a *AWS) KillOf(function string) { a.stack.Kill(function) }

// KillAny kills a process of any function, preferably one that serves an invocation.
func (a *AWS) KillAny() { a.stack.Kill() }

// Retire sends SIGTERM to all processes of a function, as Lambda does before it
// takes an instance away.
func (a *AWS) Retire(function string) { a.stack.Retire(function) }

// Requests returns the number of requests to AWS so far, by function. The name "mappings" stands for the requests of the
// event source mappings, which AWS bills too.
func (a *AWS) Requests() map[string]awscount.Counts { return a.stack.Requests() }

// Invocations counts the calls of a function so far.
func (a *AWS) Invocations(function string) int { return a.stack.Stats()[function].Invocations }

// Starts counts the processes of a function so far.
func (a *AWS) Starts(function string) int { return a.stack.Stats()[function].ColdStarts }

// Stopped counts the invocations of a function that Lambda's loop detection refused.
func (a *AWS) Stopped(function string) int { return a.stack.Stats()[function].Recursive }

// LongestChain returns the largest number of invocations of a function in one chain, as Lambda's loop detection counts them.
func (a *AWS) LongestChain(function string) int { return a.stack.Stats()[function].LongestChain }

// Stats counts what the function of the MCP endpoint did so far.
func (a *AWS) Stats() (invocations, failures, throttles, starts int) {
	s := a.stack.Stats()[stream]
	return s.Invocations, s.Errors, s.Throttles, s.ColdStarts
}

// AtWork returns the number of processes of the MCP endpoint that are serving a request.
func (a *AWS) AtWork() int { return a.stack.AtWork(stream) }

// Sessions returns the keys of the sessions table's unexpired items whose partition begins with prefix.
func (a *AWS) Sessions(ctx context.Context, tb testing.TB, prefix string) (keys []store.Key, err error) {
	tb.Helper()
	db := dynamodb.NewFromConfig(awslocal.Config(endpoints(tb).DynamoDB))
	scan := dynamodb.NewScanPaginator(db, &dynamodb.ScanInput{
		TableName: aws.String(a.name + "-SessionsTable"), ConsistentRead: aws.Bool(true),
		FilterExpression: aws.String("begins_with(pk, :prefix) AND (attribute_not_exists(exp) OR exp > :now)"),
		ExpressionAttributeValues: map[string]types.AttributeValue{
			":prefix": &types.AttributeValueMemberS{Value: prefix},
			":now":    &types.AttributeValueMemberN{Value: strconv.FormatInt(time.Now().Unix(), 10)},
		},
	})
	for scan.HasMorePages() {
		page, err := scan.NextPage(ctx)
		if err != nil {
			return nil, err
		}
		for _, item := range page.Items {
			key := store.Key{Table: store.Sessions}
			for name, to := range map[string]*string{"pk": &key.Partition, "sk": &key.Sort} {
				if v, ok := item[name].(*types.AttributeValueMemberS); ok {
					*to = v.Value
				}
			}
			keys = append(keys, key)
		}
	}
	return keys, nil
}

// Last returns the end of the functions' output, about most bytes.
func (a *AWS) Last(most int) string { return a.out.Tail(most) }

// Output returns the functions' output so far.
func (a *AWS) Output() string { return a.out.String() }

// Items returns all items of all tables as text.
func (a *AWS) Items(tb testing.TB) (items []string) {
	tb.Helper()
	db := dynamodb.NewFromConfig(awslocal.Config(endpoints(tb).DynamoDB))
	tables := dynamodb.NewListTablesPaginator(db, &dynamodb.ListTablesInput{})
	for tables.HasMorePages() {
		page, err := tables.NextPage(tb.Context())
		expect.OK(tb, err)
		for _, table := range page.TableNames {
			if !strings.HasPrefix(table, a.name) {
				continue
			}
			scan := dynamodb.NewScanPaginator(db, &dynamodb.ScanInput{TableName: &table})
			for scan.HasMorePages() {
				page, err := scan.NextPage(tb.Context())
				expect.OK(tb, err)
				for _, item := range page.Items {
					var b strings.Builder
					for name, value := range item {
						switch v := value.(type) {
						case *types.AttributeValueMemberB:
							if name == "z" { // compressed
								plain, err := io.ReadAll(flate.NewReader(bytes.NewReader(v.Value)))
								expect.OK(tb, err)
								v.Value = plain
							}
							fmt.Fprintf(&b, "%s=%s %s\n", name, v.Value, base64.StdEncoding.EncodeToString(v.Value))
						case *types.AttributeValueMemberS:
							fmt.Fprintf(&b, "%s=%s\n", name, v.Value)
						case *types.AttributeValueMemberN:
							fmt.Fprintf(&b, "%s=%s\n", name, v.Value)
						}
					}
					items = append(items, b.String())
				}
			}
		}
	}
	return items
}

package runner_test

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/localstack/internal/testfn"
	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

// onEachSQS runs a test with every SQS emulator that people use.
func onEachSQS(t *testing.T, f func(t *testing.T, o runner.Options, c *sqs.Client)) {
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	for name, endpoint := range map[string]string{"ElasticMQ": ends.SQS, "MiniStack": ends.MiniStack} {
		t.Run(name, func(t *testing.T) {
			f(t, runner.Options{Endpoints: runner.Endpoints{DynamoDB: ends.DynamoDB, SQS: endpoint}}, sqs.NewFromConfig(awslocal.Config(endpoint)))
		})
	}
}

func TestAFailedMessageHoldsItsGroupAndNoOther(t *testing.T) {
	onEachSQS(t, func(t *testing.T, base runner.Options, c *sqs.Client) {
		got := &seen{fail: map[string]int{"a-3": 1}}
		o := options(t, named(sink{"OrderedFunction": got.handle}))
		o.Endpoints, o.Visibility = base.Endpoints, 2*time.Second
		stack := start(t, o)
		var want []string
		for n := range 8 {
			for _, group := range []string{"a", "b", "c"} {
				send(t, c, stack.QueueURL("Ordered"), fmt.Sprintf("%s-%d", group, n))
			}
			want = append(want, fmt.Sprintf("a-%d", n))
		}
		// On a busy machine a batch may take longer than its visibility timeout and be redelivered, so only the first
		// delivery counts.
		expect.Eventually(t, "all messages are handled", func() bool { return len(firsts(got.all())) == 25 })
		want = slices.Insert(want, 3, "a-3 failed")
		expect.List(t, "group a", firsts(got.of("a")), want)
		for _, group := range []string{"b", "c"} {
			if !slices.IsSorted(firsts(got.of(group))) {
				t.Errorf("group %s: got %v", group, got.of(group))
			}
		}
		// The other groups must have been finished before the failed message was redelivered.
		all := firsts(got.all())
		again := slices.Index(all, "a-3")
		for _, group := range []string{"b-7", "c-7"} {
			if at := slices.Index(all, group); at > again {
				t.Errorf("%s waited for group a: %v", group, all)
			}
		}
	})
}

// firsts removes repetitions.
func firsts(bodies []string) (out []string) {
	for _, body := range bodies {
		if !slices.Contains(out, body) {
			out = append(out, body)
		}
	}
	return out
}

func TestAFailedMessageComesAgainAndThenGoesToTheDeadLetterQueue(t *testing.T) {
	onEachSQS(t, func(t *testing.T, base runner.Options, c *sqs.Client) {
		got := &seen{fail: map[string]int{"once": 1, "always": 100}}
		o := options(t, named(sink{"PlainFunction": got.handle}))
		o.Endpoints, o.Visibility = base.Endpoints, 2*time.Second
		stack := start(t, o)
		send(t, c, stack.QueueURL("Plain"), "once", "always", "never")
		count := func(body string) (n int) {
			for _, b := range got.all() {
				if b == body {
					n++
				}
			}
			return n
		}
		expect.Eventually(t, "the messages are handled", func() bool { return count("once") > 0 && count("never") > 0 })
		var dead string
		expect.Eventually(t, "the poison message is in the dead letter queue", func() bool {
			url := stack.QueueURL("Dead")
			out := expect.Value(c.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &url}))(t)
			if len(out.Messages) > 0 {
				dead = *out.Messages[0].Body
			}
			return dead != ""
		})
		if dead != "always" || count("always failed") != 2 || count("once failed") != 1 {
			t.Errorf("got %q dead after %v", dead, got.all())
		}
	})
}

func TestWorkOfAKilledProcessIsDoneAgain(t *testing.T) {
	gate := testfn.NewGate(t)
	got := &seen{}
	o := options(t, named(sink{"PlainFunction": func(event []byte) (string, error) {
		resp, err := http.Get(gate.URL)
		if err != nil {
			return "", err
		}
		resp.Body.Close()
		return got.handle(event)
	}}))
	o.Visibility = 2 * time.Second
	stack := start(t, o)
	c := sqs.NewFromConfig(awslocal.Config(o.Endpoints.SQS))
	send(t, c, stack.QueueURL("Plain"), "precious")
	gate.Arrived(t)
	expect.MustEqual(t, "the killed process", stack.Kill("PlainFunction"), "PlainFunction")
	expect.Eventually(t, "the crash is seen", func() bool { return stack.Stats()["PlainFunction"].Crashes > 0 })
	gate.Arrived(t) // it is redelivered to a new process
	gate.Open()
	expect.Eventually(t, "the message is handled", func() bool { return slices.Contains(got.all(), "precious") })
}

func TestManyMessagesSurviveRandomKills(t *testing.T) {
	got := &seen{}
	o := options(t, named(sink{"OrderedFunction": got.handle}))
	o.Visibility, o.Kills = 2*time.Second, 4
	stack := start(t, o)
	c := sqs.NewFromConfig(awslocal.Config(o.Endpoints.SQS))
	want := map[string]bool{}
	for n := range 60 {
		body := fmt.Sprintf("%c-%02d", 'a'+n%3, n)
		want[body] = true
		send(t, c, stack.QueueURL("Ordered"), body)
		time.Sleep(40 * time.Millisecond) // long enough in total for several kills
	}
	expect.Eventually(t, "every message is handled", func() bool {
		left := len(want)
		have := got.all()
		for body := range want {
			if slices.Contains(have, body) {
				left--
			}
		}
		return left == 0
	})
	for _, group := range []string{"a", "b", "c"} {
		// Every message is delivered at least once, and none before the first delivery of an earlier one.
		highest := ""
		first := []string{}
		for _, body := range got.of(group) {
			if body > highest {
				highest = body
				first = append(first, body)
			}
		}
		expect.Equal(t, "the first deliveries of group "+group, len(first), 20)
	}
	kills := 0
	for _, s := range stack.Stats() {
		kills += s.Kills
	}
	if kills == 0 {
		t.Error("no process was killed")
	}
}

func TestAStreamReachesTheClientAsItIsWritten(t *testing.T) {
	gate := testfn.NewGate(t)
	o := options(t, named())
	o.Routes = map[string]string{"/mcp": "StreamFunction", "/events": "BufferedFunction"}
	stack := start(t, o)
	// In a request, the test's function finds its instructions in the body.
	resp := expect.Value(http.Post(stack.URL()+"/mcp", "application/json", strings.NewReader(string(testfn.Call{Do: "stream", Gate: gate.URL, Count: 3}.JSON()))))(t)
	defer resp.Body.Close()
	expect.Equal(t, "the content type", resp.Header.Get("Content-Type"), "text/event-stream")
	expect.Equal(t, "the line before the function continues", expect.Value(bufio.NewReader(resp.Body).ReadString('\n'))(t), "data: 0\n")
	gate.Open()
	other := expect.Value(http.Get(stack.URL() + "/other"))(t)
	defer other.Body.Close()
	expect.Equal(t, "the status of a path without a route", other.StatusCode, http.StatusNotFound)
}

func TestCloseEndsAStreamAndAllProcesses(t *testing.T) {
	gate := testfn.NewGate(t)
	o := options(t, named())
	o.Grace = 200 * time.Millisecond
	stack := expect.Value(runner.Start(t.Context(), o))(t)
	resp, err := http.Post(stack.URL()+"/mcp", "application/json", strings.NewReader(string(testfn.Call{Do: "stream", Gate: gate.URL, Count: 3}.JSON())))
	if err != nil {
		stack.Close()
		t.Fatal(err)
	}
	defer resp.Body.Close()
	gate.Arrived(t)
	began := time.Now()
	stack.Close()
	expect.AtMost(t, "the time that Close took", time.Since(began), 10*time.Second)
	expect.Error(t, "a request to the front", expect.ErrOf(http.Get(stack.URL())))
	stack.Close() // a second call has no effect
}

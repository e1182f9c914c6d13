package functions_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/app/apply"
	"github.com/mcp-events/mcpevents/shared/app/config"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/backend"
	"github.com/mcp-events/mcpevents/test/expect"
)

const watched = "test://watched-resource"

// relayTime bounds an invocation of relay.
const relayTime = 12 * time.Second

// configureStack writes a configuration to a stack's settings, as mcpevents catalog apply does.
func configureStack(t *testing.T, stack *runner.Stack, text string) {
	t.Helper()
	c := expect.Value(config.Parse([]byte(text)))(t)
	expect.OK(t, expect.ErrOf((&apply.Target{DB: database(t, stack)}).Apply(t.Context(), apply.Files{Config: c})))
}

// secret creates a parameter in Parameter Store.
func secret(t *testing.T, name, value string) {
	t.Helper()
	ends := awslocal.Start(t, awslocal.DynamoDB, awslocal.SQS, awslocal.MiniStack)
	expect.OK(t, awslocal.PutParameter(t.Context(), ends.MiniStack, name, value))
}

// relayed shows that an operator can configure backends while the functions run, that relay brings their
// notifications to a stream, and that notifications survive the handover between relay's invocations and the death of
// one.
//
// GWN-01, GWN-03, GWN-04, GWN-06, GWN-19
func relayed(t *testing.T, stack *runner.Stack) {
	handler := expect.Value(backend.New(backend.Stateless))(t)
	server := httptest.NewServer(handler)
	defer server.Close()
	defer server.CloseClientConnections()
	configure := func(text string) { configureStack(t, stack, text) }
	listed := func(name string) bool {
		body, header := request("tools/list", "")
		var answer struct {
			Result struct{ Tools []struct{ Name string } }
		}
		post(t, stack.URL()+"/mcp", body, header, &answer)
		for _, tool := range answer.Result.Tools {
			if tool.Name == name {
				return true
			}
		}
		return false
	}
	changed := func(query string) {
		t.Helper()
		post(t, server.URL+"/changed?"+query, "", nil, nil)
	}
	seen := func() (s backend.State) {
		t.Helper()
		resp := expect.Value(http.Get(server.URL + "/state"))(t)
		defer resp.Body.Close()
		expect.OK(t, json.NewDecoder(resp.Body).Decode(&s))
		return s
	}

	const (
		tools, prompts = "notifications/tools/list_changed", "notifications/prompts/list_changed"
		update         = "notifications/resources/updated"
	)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	early := listen(ctx, t, stack.URL(), `"notifications":{"toolsListChanged":true}`)
	expect.Receive(t, "the acknowledgement", early)
	// announced waits until every instance uses the configuration and has announced it.
	announced := func() {
		t.Helper()
		db := database(t, stack)
		expect.OK(t, settings.Announce(t.Context(), db, 0, stream.AnnounceStored(&eventlog.Log{DB: db})))
		expect.Contains(t, "the notification of an older stream", expect.Receive(t, "what changed", early), tools)
	}

	secret(t, "/mcp-events/Test/b", "Bearer s3cret")
	// Only the backend whose secret is missing fails.
	configure(fmt.Sprintf("backends:\n  - {name: b, url: %q, prefix: b_, headers: {Authorization: \"ssm:/mcp-events/Test/b\"}}\n  - {name: x, url: %q, headers: {Authorization: \"env:NOT_SET\"}}\n",
		server.URL+"/mcp", server.URL+"/mcp"))
	eventually(t, "its tools are listed", func() bool { return listed("b_test_simple_text") })
	expect.Equal(t, "the header that the backend gets", seen().Headers.Get("Authorization"), "Bearer s3cret")
	announced()
	time.Sleep(2 * eventlog.MaxSkew) // a stream that is opened earlier may still be notified
	listening := listen(ctx, t, stack.URL(), `"notifications":{"toolsListChanged":true,"promptsListChanged":true,"resourceSubscriptions":["`+watched+`"]}`)
	if got := expect.Receive(t, "the acknowledgement", listening); !strings.Contains(got, watched) {
		t.Fatalf("got %s", got)
	}
	subscribed := func() bool { return seen().Subscribed[watched] > 0 }
	// notified waits for one notification of each method, in any order, and counts all that arrive until then.
	count := map[string]int{}
	notified := func(methods ...string) {
		t.Helper()
		for left := methods; len(left) > 0; {
			got := expect.Receive(t, strings.Join(left, " and "), listening)
			for _, m := range []string{tools, prompts, update} {
				if strings.Contains(got, m) {
					count[m]++
					left = slices.DeleteFunc(slices.Clone(left), func(method string) bool { return method == m })
				}
			}
		}
	}
	eventually(t, "relay has subscribed", subscribed)
	changed("list=tools")
	notified(tools)
	changed("uri=" + watched)
	notified(update)

	listens := func() int { return seen().Requests["subscriptions/listen"] }
	before := listens()
	eventually(t, "another invocation has taken over", func() bool { return listens() > before })
	eventually(t, "one listens", func() bool { return seen().Listens == 1 && subscribed() })
	changed("uri=" + watched)
	notified(update)
	changed("list=tools")
	notified(tools)
	// An additional update confirms the subscription. If the next invocation is late, it notifies once of everything
	// that may have changed.
	if count[tools] < 2 || count[tools] > 3 || count[prompts] > 1 || count[update] > 4 {
		t.Errorf("over a planned handover the stream was notified of %v, want two or three changes of tools, at most one of prompts, and two to four updates", count)
	}

	eventually(t, "no client listens", func() bool {
		stack.Kill("RelayFunction")
		return seen().Listens == 0
	})
	changed("list=prompts")
	changed("uri=" + watched)
	notified(update, prompts) // changes that may have happened without a listener

	configure("backends: []\n")
	eventually(t, "its tools are gone", func() bool { return !listed("b_test_simple_text") })
	for len(early) > 0 { // the backend's changes
		<-early
	}
	announced()
	eventually(t, "no client listens to it", func() bool { return seen().Listens == 0 })
	eventually(t, "relay ends immediately again", func() bool {
		start := time.Now()
		_, err := stack.Invoke(t.Context(), "RelayFunction", []byte(`{}`))
		return err == nil && time.Since(start) < relayTime/2
	})
}

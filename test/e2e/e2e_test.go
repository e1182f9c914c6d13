//go:build unix

// Package e2e tests the system from outside, over HTTP: its main job in every mode, bad input, and the requirements
// one by one. The names of the tests contain the numbers of the requirements that they show.
package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// object is a JSON object in a test.
type object = map[string]any

// sameJSON reports whether two texts encode the same JSON value.
func sameJSON(tb testing.TB, a, b []byte) bool {
	tb.Helper()
	var x, y any
	expect.OK(tb, json.Unmarshal(a, &x), a)
	expect.OK(tb, json.Unmarshal(b, &y), b)
	return reflect.DeepEqual(x, y)
}

func marshal(tb testing.TB, v any) []byte {
	tb.Helper()
	return expect.Value(json.Marshal(v))(tb)
}

func decode[T any](tb testing.TB, b []byte) T {
	tb.Helper()
	var v T
	expect.OK(tb, json.Unmarshal(b, &v), b)
	return v
}

// sampleCatalog returns the repository's catalog.
func sampleCatalog(tb testing.TB) string {
	tb.Helper()
	return string(expect.Value(os.ReadFile(filepath.Join(harness.Root(tb), "catalog.yaml")))(tb))
}

// registered is the result of resources/subscriptions/register.
type registered struct {
	Subscription struct {
		URI           string   `json:"uri"`
		EventURIs     []string `json:"eventUris"`
		TargetURI     string   `json:"targetUri"`
		WebhookSecret struct {
			Type, Key, Value string
		} `json:"webhookSecret"`
	} `json:"subscription"`
}

// register creates a SEP-1803 subscription and tells the endpoint its secret.
func register(tb testing.TB, c *harness.Client, e *harness.Endpoint, uris ...string) registered {
	tb.Helper()
	var r registered
	c.Call(tb, "resources/subscriptions/register", object{"uris": uris, "targetUri": e.URL()}, &r)
	e.SetSecret(r.Subscription.WebhookSecret.Key)
	return r
}

func deregister(tb testing.TB, c *harness.Client, uri string) {
	tb.Helper()
	c.Call(tb, "resources/subscriptions/deregister", object{"uri": uri}, nil)
}

// subscribed is the result of events/subscribe.
type subscribed struct {
	ID            string  `json:"id"`
	RefreshBefore *string `json:"refreshBefore"`
	Cursor        *string `json:"cursor"`
	Truncated     bool    `json:"truncated"`
}

// subscription returns the params of events/subscribe.
func subscription(name string, arguments object, url, secret string) object {
	if arguments == nil {
		arguments = object{}
	}
	return object{
		"name": name, "arguments": arguments,
		"delivery": object{"mode": "webhook", "url": url, "secret": secret},
	}
}

// subscribe creates a webhook subscription of the MCP Events extension with a new secret.
func subscribe(tb testing.TB, c *harness.Client, e *harness.Endpoint, name string, arguments object) subscribed {
	tb.Helper()
	if e.Secret() == "" {
		e.SetSecret(harness.NewSecret())
	}
	var r subscribed
	c.Call(tb, "events/subscribe", subscription(name, arguments, e.URL(), e.Secret()), &r)
	if r.ID == "" {
		tb.Fatalf("events/subscribe %s: no id", name)
	}
	return r
}

// build returns a valid event of the type ci.build_finished.
func build(id string, number int) harness.Event {
	return harness.Event{ID: id, URI: "event://ci/build-finished", Data: object{"build": number, "status": "passed"}}
}

// pullRequest returns a valid event of the type github.pull_request.
func pullRequest(id, owner, repo string, number int) harness.Event {
	return harness.Event{ID: id, URI: "event://github/" + owner + "/" + repo + "/pull_request", Data: object{
		"action": "opened", "number": number,
		"pull_request": object{"title": "Change " + id, "author": "octocat"},
	}}
}

// incident returns a valid event of the type incident.created.
func incident(id, service string) harness.Event {
	return harness.Event{
		ID: id, URI: "event://incidents/" + service + "/created", Data: object{"id": id, "title": "It is down", "severity": "info"},
	}
}

// message returns a valid event of the type message.created.
func message(id, channel string) harness.Event { return messageIn("acme", id, channel) }

// messageIn returns a message in another chat workspace.
func messageIn(workspace, id, channel string) harness.Event {
	return harness.Event{ID: id, URI: "event://chat/" + workspace + "/" + channel + "/message", Data: object{"id": id, "user": "u1", "text": "Hello"}}
}

// push returns a valid event of the type github.push.
func push(id, owner, repo string) harness.Event {
	return harness.Event{
		ID: id, URI: "event://github/" + owner + "/" + repo + "/push",
		Data: object{"ref": "refs/heads/main", "after": strings.Repeat("0123456789", 4), "pusher": id},
	}
}

func idsOf(updates []*harness.Update) (ids []string) {
	for _, u := range updates {
		ids = append(ids, u.EventID)
	}
	return ids
}

//go:build unix

package interop

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// driver makes a client do things, and reports the results.
type driver interface {
	do(t *testing.T, command object, result any)
	next(t *testing.T, name string) step
}

// recovery describes how a client recovers after its subscription stream has ended.
type recovery int

const (
	// itself: it opens the stream again, with Last-Event-ID.
	itself recovery = iota
	// byCursor: it is made to listen again from the cursor that came last.
	byCursor
	// resubscribed: the test makes it subscribe again, and it reads the events that it missed.
	resubscribed
)

// client is a client that others made.
type client struct {
	name, version string
	start         func(t *testing.T, w *harness.Wire, version string) driver
	recovery      recovery
	// quiet clients tell their application nothing when a stream ends.
	quiet bool
	// brittle clients give up their stream when it breaks for the second time, unless the
	// server closed it in between. (MAX_RECONNECTION_ATTEMPTS in the Python SDK)
	brittle bool
}

// clientsOf returns all clients with subscriptions. Revision 2026-07-28 does not define resuming, so its clients do not offer
// it, and the test uses their calls for arbitrary requests. Mastra's client lacks such a call and refuses to subscribe in the
// revisions with sessions. All clients drop members of params that the protocol does not define, so they declare our
// extension and find the payload in _meta.
func clientsOf(t *testing.T) []client {
	js, python := harness.Node(t), harness.NewPython(t)
	typescript := func(release string) func(*testing.T, *harness.Wire, string) driver {
		return func(t *testing.T, w *harness.Wire, version string) driver {
			return start(t, js.Command(t.Context(), "typescript.js", w.MCP, w.Keys["alice"], version, release))
		}
	}
	py := func(t *testing.T, w *harness.Wire, version string) driver {
		return start(t, python.Command(t.Context(), "client.py", w.MCP, w.Keys["alice"], version))
	}
	mastra := func(t *testing.T, w *harness.Wire, _ string) driver {
		return start(t, js.Command(t.Context(), "mastra.js", w.MCP, w.Keys["alice"]))
	}
	return []client{
		{name: "Go SDK", version: harness.V20250326, start: goSDK},
		{name: "Go SDK", version: harness.V20250618, start: goSDK},
		{name: "Go SDK", version: harness.V20251125, start: goSDK},
		{name: "Go SDK", version: harness.V20260728, start: goSDK, recovery: byCursor, quiet: true},
		{name: "TypeScript SDK 2", version: harness.V20250326, start: typescript("2")},
		{name: "TypeScript SDK 2", version: harness.V20250618, start: typescript("2")},
		{name: "TypeScript SDK 2", version: harness.V20251125, start: typescript("2")},
		{name: "TypeScript SDK 2", version: harness.V20260728, start: typescript("2"), recovery: byCursor},
		{name: "TypeScript SDK 1", version: harness.V20251125, start: typescript("1")},
		{name: "Python SDK", version: harness.V20251125, start: py, brittle: true},
		{name: "Python SDK", version: harness.V20260728, start: py, recovery: byCursor},
		{name: "Mastra", version: harness.V20260728, start: mastra, recovery: resubscribed, quiet: true},
	}
}

// TestClients shows subscriptions with the official SDKs of three languages, and with Mastra.
func TestClients(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := harness.StartServer(t, harness.ServerOptions{})
		subscribing(t, &s.Target, false, func() {
			s.Stop()
			s.Start()
		})
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		aws := harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick})
		subscribing(t, &aws.Target, true, func() { aws.Retire("StreamFunction") })
	})
}

// subscribing takes all clients together through the life of a subscription. restart ends all streams of the target as a
// shutdown does. An instance of a fleet has half a second for this, so on a busy machine a stream may break instead. A
// change of subscriptions at one instance reaches the instance with the stream a moment later.
func subscribing(t *testing.T, s *harness.Target, fleet bool, restart func()) {
	var users []*user
	for i, c := range clientsOf(t) {
		if fleet && c.version < harness.V20251125 {
			continue // earlier revisions are the same to a fleet
		}
		w := s.Wire(t)
		own := fmt.Sprintf("c%d-%d", time.Now().UnixNano(), i)
		users = append(users, &user{client: c, Wire: w, driver: c.start(t, w, c.version), target: s, fleet: fleet, own: own})
	}
	each := func(what string, do func(*user, *testing.T)) {
		t.Run(what, func(t *testing.T) {
			for _, u := range users {
				t.Run(u.name+" "+u.version, func(t *testing.T) {
					t.Parallel()
					do(u, t)
				})
			}
		})
	}
	each("SES-06 EVS-15 subscribes and receives", (*user).subscribes)
	each("SES-03 SES-06 goes on after its stream was cut", (*user).isCut)
	for _, u := range users {
		u.Hold()
	}
	restart()
	each("SES-03 SES-06 SUB-06 goes on after the server closed its stream", (*user).wasClosed)
	each("SES-06 SUB-05 unsubscribes and closes", (*user).leaves)
}

// user is a client at work on its own wire.
type user struct {
	client
	*harness.Wire
	driver
	target *harness.Target // without the wire
	fleet  bool
	own    string // a URI's variable
	// read are events that it has read. In a fleet a new stream begins a little before it was
	// opened, and may bring them too.
	read []string
}

// lags publishes events of both channels, from number n on, until one comes without the other, of a channel that
// the client has just unsubscribed from. It returns the number that comes next.
func (u *user) lags(t *testing.T, n int) int {
	t.Helper()
	harness.Eventually(t, harness.Patience, "the end of a subscription", func() bool {
		a, b := fmt.Sprint("a", n), fmt.Sprint("b", n)
		n++
		u.publish(t, a, b)
		ended := true
		for {
			id, _ := u.next(t, "updated").Meta[harness.Prefix+"eventId"].(string)
			u.read = append(u.read, strings.TrimSuffix(id, "-"+u.own)) // one of an earlier round may still come
			switch id {
			case a + "-" + u.own:
				ended = false
			case b + "-" + u.own:
				return ended
			}
		}
	})
	return n
}

// uri returns the URI of one of the user's two channels, "a" and "b".
func (u *user) uri(channel string) string {
	return "event://chat/" + u.own + "/" + channel + "/message"
}

// publish publishes events whose ids begin with their channel.
func (u *user) publish(t *testing.T, ids ...string) {
	t.Helper()
	for _, id := range ids {
		id = id + "-" + u.own
		u.Publish(t, harness.Event{ID: id, URI: u.uri(id[:1]), Data: object{"id": id, "user": "u1", "text": "Hello"}})
	}
}

// misses publishes events while the client has no stream, and waits until they can be read. It does not wait for a fleet,
// because some clients give up if their new stream does not open within seconds.
func (u *user) misses(t *testing.T, ids ...string) {
	t.Helper()
	u.publish(t, ids...)
	if u.fleet {
		return
	}
	other := u.target.Stateless("alice")
	for _, id := range ids {
		harness.Eventually(t, harness.Patience, id+" can be read", func() bool {
			a := other.Do(t, "resources/read", object{"uri": u.uri(id[:1])})
			return strings.Contains(string(a.Result), id+"-"+u.own)
		})
	}
}

// receives waits for the events with the ids, each once, and nothing else.
func (u *user) receives(t *testing.T, ids ...string) {
	t.Helper()
	var want, got []string
	for _, id := range ids {
		want = append(want, id+"-"+u.own)
	}
	for len(got) < len(want) {
		st := u.next(t, "updated")
		id, _ := st.Meta[harness.Prefix+"eventId"].(string)
		if u.fleet && slices.Contains(u.read, strings.TrimSuffix(id, "-"+u.own)) {
			continue
		}
		if id == "" || st.URI != u.uri(id[:1]) || st.Payload["id"] != id || st.Meta[harness.Prefix+"cursor"] == "" {
			t.Errorf("received %+v", st)
		}
		got = append(got, id)
	}
	u.read = append(u.read, ids...) // a new stream may repeat the last moment, where the log is polled
	slices.Sort(want)
	slices.Sort(got) // clients may report simultaneous updates in any order
	if !slices.Equal(got, want) {
		t.Fatalf("received %v, want %v", got, want)
	}
}

// subscribed waits until the streams of both subscriptions are open.
func (u *user) subscribed(t *testing.T) {
	t.Helper()
	n := 1 // of the session
	if u.recovery == byCursor {
		n = 2
	}
	if !harness.Within(t, harness.Patience, func() bool { return u.Streams() == n }) {
		t.Fatalf("%d streams are open, want %d", u.Streams(), n)
	}
}

func (u *user) subscribes(t *testing.T) {
	if _, ok := u.driver.(*script); ok {
		u.next(t, "connected")
	}
	var uris, templates []string
	u.do(t, object{"do": "resources"}, &uris)
	u.do(t, object{"do": "templates"}, &templates)
	expect.Has(t, "the URIs", uris, "event://ci/build-finished")
	expect.Has(t, "the templates", templates, "event://chat/{workspace}/{channel}/message")
	for _, channel := range []string{"a", "b"} {
		u.do(t, object{"do": "subscribe", "uri": u.uri(channel)}, nil)
	}
	u.subscribed(t)
	expect.Equal(t, "the revision", u.Version(), u.version)
	u.publish(t, "a1", "b1")
	u.receives(t, "a1", "b1")
	u.reads(t, "a1")
	if _, ok := u.driver.(*script); ok && u.recovery == byCursor {
		u.pollsAndStreams(t)
	}
}

// pollsAndStreams sends events/poll and events/stream, for which the SDKs have no methods.
func (u *user) pollsAndStreams(t *testing.T) {
	t.Helper()
	const name, channel = "message.created", "c" // which the subscriptions do not have
	params := object{"name": name, "arguments": object{"workspace": u.own, "channel": channel}}
	var polled page
	u.do(t, object{"do": "poll", "params": params}, &polled)
	u.do(t, object{"do": "stream", "params": params}, nil)
	u.next(t, "active")
	u.publish(t, channel)
	want := channel + "-" + u.own
	if got := u.next(t, "event").Params; got.EventID != want || got.Data["id"] != want {
		t.Errorf("the stream has %+v, want the event %s", got, want)
	}
	harness.Eventually(t, harness.Patience, "the event is polled", func() bool {
		params["cursor"] = polled.Cursor
		u.do(t, object{"do": "poll", "params": params}, &polled)
		return len(polled.Events) > 0
	})
	if got := polled.Events[0]; got.EventID != want || polled.Truncated {
		t.Errorf("the poll has %+v, want the event %s", polled, want)
	}
	u.do(t, object{"do": "cancel", "name": name}, nil)
}

// reads reads its channel until the latest event is the given one.
func (u *user) reads(t *testing.T, id string) {
	t.Helper()
	harness.Eventually(t, harness.Patience, id+" is read", func() bool {
		var contents struct{ Events []occurrence }
		u.do(t, object{"do": "read", "uri": u.uri(id[:1])}, &contents)
		return len(contents.Events) > 0 && contents.Events[0].EventID == id+"-"+u.own
	})
}

func (u *user) isCut(t *testing.T) {
	if u.fleet && u.brittle {
		return // the server's end of its stream may be another break
	}
	u.Hold()
	if u.Cut() == 0 {
		t.Fatal("there was no stream to cut")
	}
	u.misses(t, "a2", "b2")
	u.Release()
	if !u.quiet && u.recovery != itself {
		for range 2 {
			if cause := u.next(t, "ended").Cause; cause == "graceful" || cause == "local" {
				t.Errorf("a stream that was cut ended as %s", cause)
			}
		}
	}
	u.recovers(t, "2")
	if u.recovery == itself && len(u.Resumed()) == 0 {
		t.Error("it sent no Last-Event-ID")
	}
}

func (u *user) wasClosed(t *testing.T) {
	u.misses(t, "a3", "b3")
	harness.Eventually(t, harness.Patience, "the end of all streams", func() bool { return u.Streams() == 0 })
	u.Release()
	if !u.quiet && u.recovery != itself {
		for range 2 {
			if cause := u.next(t, "ended").Cause; cause != "graceful" && !u.fleet {
				t.Errorf("a stream that the server closed ended as %s", cause)
			}
		}
	}
	u.recovers(t, "3")
	if u.recovery == itself && len(u.Resumed()) == 0 {
		t.Error("it sent no Last-Event-ID")
	}
}

// recovers gets the n-th events of both channels, which came while there was no stream.
func (u *user) recovers(t *testing.T, n string) {
	t.Helper()
	switch u.recovery {
	case byCursor:
		for _, channel := range []string{"a", "b"} {
			u.do(t, object{"do": "resume", "uri": u.uri(channel)}, nil)
		}
	case resubscribed:
		// Until it has noticed the end of its stream it takes itself for subscribed.
		harness.Eventually(t, harness.Patience, "a new stream", func() bool {
			u.do(t, object{"do": "subscribe", "uri": u.uri("a")}, nil)
			return u.Streams() == 1
		})
		u.reads(t, "a"+n)
		u.reads(t, "b"+n)
		u.read = append(u.read, "a"+n, "b"+n)
		u.publish(t, "a"+n+"-after", "b"+n+"-after")
		n += "-after"
	}
	u.receives(t, "a"+n, "b"+n)
	u.subscribed(t)
}

func (u *user) leaves(t *testing.T) {
	u.do(t, object{"do": "unsubscribe", "uri": u.uri("a")}, nil)
	harness.Eventually(t, harness.Patience, "one stream", func() bool { return u.Streams() == 1 })
	n := 4
	if u.fleet && u.recovery == itself { // its stream is with another instance, which polls
		n = u.lags(t, n)
	}
	b := fmt.Sprint("b", n)
	u.publish(t, fmt.Sprint("a", n), b)
	u.receives(t, b)
	if u.version == harness.V20260728 {
		u.do(t, object{"do": "unsubscribe", "uri": u.uri("b")}, nil)
		harness.Eventually(t, harness.Patience, "no stream", func() bool { return u.Streams() == 0 })
	}
	u.do(t, object{"do": "close"}, nil)
	harness.Eventually(t, harness.Patience, "the end of all streams", func() bool { return u.Streams() == 0 })
	if u.version == harness.V20260728 {
		return
	}
	c := &harness.Client{URL: u.MCP, Key: u.Keys["alice"], Version: u.version, Session: u.Session()}
	expect.Equal(t, "the status after the session was closed", c.Do(t, "ping", nil).Status, http.StatusNotFound)
}

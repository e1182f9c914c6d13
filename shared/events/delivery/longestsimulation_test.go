//go:build !race

package delivery

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

// longestName is the longest name of an event type.
var longestName = strings.Repeat("n", 128)

const longestTemplate = "event://{a}/{b}/{c}/{d}/{e}/{f}"

// longestURI returns a URI of the longest size for [longestTemplate].
func longestURI() string {
	uri := "event://a/b/c/d/e/"
	return uri + strings.Repeat("f", event.MaxURI-len(uri))
}

// largest returns an array that fills the largest payload with copies of a part.
func largest(part string) string {
	return "[" + strings.TrimSuffix(strings.Repeat(part+",", (event.MaxPayload-1)/(len(part)+1)), ",") + "]"
}

// Whatever publish accepts can be stored, sent and read everywhere, over a store with the order of commits and over one
// without.
func TestTheLongestInputOfPublish(t *testing.T) {
	t.Parallel()
	for name, data := range map[string]string{
		"WHK-22 AWS-05 a payload of quotes":        largest(`""`),
		"WHK-22 AWS-05 a payload of noncharacters": largest(`"\ufffe"`),
		"WHK-22 AWS-05 a payload of wide letters":  largest(`"😀é漢"`),
		"WHK-22 AWS-05 a payload of a single text": `"` + strings.Repeat("x", event.MaxPayload-2) + `"`,
	} {
		for store, unordered := range map[string]bool{"ordered store": false, "unordered store": true} {
			t.Run(name+" in an "+store, func(t *testing.T) { longestInput(t, data, unordered) })
		}
	}
}

func longestInput(t *testing.T, data string, unordered bool) {
	r := newRig(t)
	r.unordered = unordered
	cat := expect.Value(catalog.Parse([]byte("events:\n  - name: " + longestName + "\n    uriTemplate: " + longestTemplate + "\n")))(t)
	r.catalogs = catalog.NewStatic(cat)
	clock := func() time.Time { return r.now }
	r.log = &eventlog.Log{DB: mortal{r.db, r}, Now: clock}
	r.services = r.service(mortal{r.db, r}, r.log)
	targets := []string{"https://hooks.example.com/concrete", "https://hooks.example.com/wildcard"}
	uri, id, other := longestURI(), strings.Repeat("i", 128), strings.Repeat("j", 128)
	webhooks := map[string]bool{r.registerAs(r.principal(), targets[0], uri).ID: true}
	all := r.subscribe(func(s *subscription.SubscribeRequest) {
		s.Name, s.URL = longestName, targets[1]
	})
	webhooks[all.ID] = true

	// A poll of the URI and of everything begins before the event.
	tails := stream.New(r.log, mortal{r.db, r}, r.sealer)
	defer tails.Close()
	patterns, _, err := match.Resolve(cat, uri)
	expect.OK(t, err)
	patterns = append(patterns, match.ForEntry(cat.ByName(longestName), nil))
	cursors := make([]string, len(patterns))
	poll := func(i int) *stream.Page {
		request := stream.PollRequest{Workspace: "default", Pattern: patterns[i], Cursor: cursors[i], Most: 10, Bytes: 1 << 20}
		return expect.Value(tails.Poll(t.Context(), request))(t)
	}
	for i := range patterns {
		cursors[i] = poll(i).Cursor
	}
	r.now = r.now.Add(10 * time.Second)

	service := &publish.Service{Catalog: r.catalogs, Queue: mortal{r.db, r}, Now: clock}
	expect.OK(t, expect.ErrOf(service.Accept(t.Context(), r.principal(), []publish.Input{{URI: uri, ID: other, Data: []byte(data)}})))
	r.work()
	expect.MustEqual(t, "the webhooks", posted(r)[other], len(webhooks))
	for i, p := range patterns {
		page := poll(i)
		if len(page.Events) != 1 || page.Events[0].ID != other || string(page.Events[0].Data) != data {
			t.Errorf("poll of %.40s: got %d events, want the one", p.Key, len(page.Events))
		}
	}

	// The event is replayed to one subscription.
	r.posts = nil
	r.now = r.now.Add(10 * time.Second)
	job := r.replay(r.replays(), r.record(all.ID).Subscription, deadletter.ReplaySelect{Events: true, Subscription: all.ID, Since: r.now.Add(-time.Minute)})
	r.work()
	if len(r.posts) != 1 || r.posts[0].ID != other || !strings.Contains(string(r.posts[0].Body), data) {
		t.Errorf("got %d webhooks of the replay of %d events, want the one", len(r.posts), job.Total)
	}
	r.posts = nil

	in := publish.Input{URI: uri, ID: id, Data: []byte(data), Trace: trace.Parse(
		"00-0123456789abcdef0123456789abcdef-0123456789abcdef-01", "k="+strings.Repeat(`"`, 250)+",l="+strings.Repeat(`"`, 250))}
	expect.OK(t, expect.ErrOf(service.Accept(t.Context(), r.principal(), []publish.Input{in})))

	// The whole workspace is paused while an event arrives. Afterwards all attempts fail until the deliveries are given
	// up.
	r.pause(switches.All, nil)
	r.handle()
	expect.MustLen(t, "the attempts while paused", r.posts, 0)
	r.resume(switches.All, nil)
	r.script = fails
	_, dispatch, _ := r.process()
	r.hand(queue.Deliveries, dispatch.HandlePages)
	expect.MustEqual(t, "the attempts after the pause, one for each webhook", len(r.posts), len(webhooks))
	r.run()
	letters := r.letters(deadletter.LetterQuery{}, len(webhooks))

	// The dead letters are retried.
	r.posts, r.script = nil, succeeds
	for _, l := range letters {
		expect.OK(t, did(r.operations().Retry(t.Context(), "default", l, r.record(l.Subscription).Subscription, 0)))
	}
	r.work()
	attempts := map[string]int{}
	for _, p := range r.posts {
		if !strings.Contains(string(p.Body), data) || p.ID != id {
			t.Errorf("got a webhook %.20s of %d bytes without the payload", p.ID, len(p.Body))
		}
		attempts[p.URL]++
	}
	expect.Map(t, "the attempts of the dead letters that were retried", attempts, map[string]int{targets[0]: 1, targets[1]: 1})

	// An event of the same size that became a dead letter of the events queue can be sent back.
	expect.OK(t, expect.ErrOf(service.Accept(t.Context(), r.principal(), []publish.Input{{URI: uri, ID: strings.Repeat("k", 128), Data: []byte(data)}})))
	m := r.queues[queue.Events][0]
	r.queues[queue.Events] = nil
	r.queues[queue.Dead] = []queue.Message{{ID: "m1", Outgoing: queue.NewDeadLetter(queue.Events, m, "a reason", nil, r.now), Sent: r.now}}
	r.hand(queue.Dead, r.operations().FileMessages)
	letters = r.letters(deadletter.LetterQuery{Queue: string(queue.Events)}, 1)
	expect.OK(t, did(r.operations().Retry(t.Context(), "default", letters[0], nil, 0)))
	inbox := &publish.Inbox{Service: service, Log: slog.New(slog.DiscardHandler)}
	r.hand(queue.Inbox, inbox.Handle)
	r.posts = nil
	r.work()
	if n := len(r.posts); n != len(webhooks) || len(r.queues[queue.Dead]) > 0 {
		t.Errorf("got %d webhooks of the event that was sent back and %d dead letters, want %d and none", n, len(r.queues[queue.Dead]), len(webhooks))
	}
}

//go:build unix

package e2e

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestGap tests endpoints that refuse events until their retries end. TestOnLocalAWS does the same on AWS.
func TestGap(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--events-retry-schedule", "0s,1s,1s"}})
	lostEvents(t, &s.Target)
}

func lostEvents(t *testing.T, s *harness.Target) {
	isNotice := func(d *harness.Delivery) bool { return strings.HasPrefix(d.ID(), "msg_") }
	c := s.Stateless("alice")
	hooks := harness.NewReceiver(t)
	refusing, plain := hooks.Endpoint("refusing"), hooks.Endpoint("plain")
	for _, e := range []*harness.Endpoint{refusing, plain} {
		e.Answer(func(_ int, d *harness.Delivery) harness.Reply {
			if isNotice(d) {
				return harness.Reply{}
			}
			return harness.Reply{Status: 500}
		})
	}
	arguments := object{"owner": "gap", "repo": "gap"}
	sub := subscribe(t, c, refusing, "github.pull_request", arguments)
	plain.SetSecret(harness.NewSecret())
	quiet := subscription("github.pull_request", arguments, plain.URL(), plain.Secret())
	quiet["_meta"] = object{"io.github.mcp-events/plain": true}
	c.Call(t, "events/subscribe", quiet, nil)
	s.Publish(t, pullRequest("lost_1", "gap", "gap", 1), pullRequest("lost_2", "gap", "gap", 2))

	var notice *harness.Delivery
	for _, d := range refusing.Wait(t, 3) { // the last attempt of the other event may arrive after it
		if isNotice(d) {
			notice = d
		}
	}
	t.Run("EVX-13 one signed message announces abandoned events", func(t *testing.T) {
		if err := notice.Verify(refusing.Secret()); err != nil {
			t.Errorf("not signed as deliveries are: %v", err)
		}
		if !strings.HasPrefix(notice.ID(), "msg_gap_") || len(notice.ID()) < len("msg_gap_")+16 {
			t.Errorf("webhook-id %q", notice.ID())
		}
		expect.Equal(t, "the subscription", notice.Header.Get("X-MCP-Subscription-Id"), sub.ID)
	})
	t.Run("EVX-13 EVX-07 a poll from its cursor returns the lost events", func(t *testing.T) {
		body := decode[map[string]string](t, notice.Body)
		if len(body) != 2 || body["type"] != "gap" {
			t.Fatalf("got %s", notice.Body)
		}
		var poll struct {
			Events    []struct{ EventID string }
			Truncated bool
		}
		c.Call(t, "events/poll", object{"name": "github.pull_request", "arguments": arguments, "cursor": body["cursor"]}, &poll)
		ids := map[string]bool{}
		for _, e := range poll.Events {
			ids[e.EventID] = true
		}
		if !ids["lost_1"] || !ids["lost_2"] {
			t.Errorf("the poll returned %v", poll)
		}
	})
	t.Run("EVX-13 there is one for all lost events, and none for a client that does not accept it", func(t *testing.T) {
		harness.Eventually(t, harness.Patience, "all attempts", func() bool { all, _ := plain.Count(); return all >= 6 })
		s.Publish(t, pullRequest("lost_3", "gap", "gap", 3)) // by now another message would have arrived
		plain.WaitAttempts(t, 9)
		for _, e := range []*harness.Endpoint{refusing, plain} {
			n := 0
			for id := range e.IDs() {
				if strings.HasPrefix(id, "msg_") {
					n++
				}
			}
			if want := map[*harness.Endpoint]int{refusing: 1}[e]; n != want {
				t.Errorf("%s got %d control messages, want %d", e.Name, n, want)
			}
		}
	})
}

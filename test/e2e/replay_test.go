//go:build unix

package e2e

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestReplayOnAWS (AWS-03): three subscriptions request the events that they missed, at the same slow endpoint. Each page task
// leads to further ones. At full size, these are more than the 16 invocations after which Lambda stops a loop. Invocations have
// a short timeout, so that the tasks follow each other quickly. If one times out on a busy machine, its tasks are repeated after Visibility.
func TestReplayOnAWS(t *testing.T) {
	t.Parallel()
	aws := harness.StartAWS(t, harness.AWSOptions{DispatchTime: 2500 * time.Millisecond, Visibility: 30 * time.Second})
	const uri = "event://deploy/production/missed/finished"
	args := object{"environment": "production", "service": "missed"}
	alice := aws.Stateless("alice")
	hook := harness.NewReceiver(t).Endpoint("slow")
	deployed := func(id string) harness.Event {
		return harness.Event{ID: id, URI: uri, Data: object{"version": id, "outcome": "succeeded"}}
	}
	subscribe(t, alice, hook, "deploy.finished", args)
	aws.Publish(t, deployed("first"))
	cursor := decode[occurrence](t, hook.Wait(t, 1)[0].Body).Cursor
	unsubscribe(t, alice, hook, "deploy.finished", args)

	events := harness.Size(250, 4_990) // for each subscription; a replay has at most 5,000
	var missed []string
	for len(missed) < events {
		var batch []harness.Event
		for range min(50, events-len(missed)) {
			id := fmt.Sprint("missed-", len(missed))
			missed, batch = append(missed, id), append(batch, deployed(id))
		}
		aws.Publish(t, batch...)
	}
	harness.Eventually(t, harness.Patience, "all events are in the log", func() bool {
		var r contents
		alice.Call(t, "resources/read", object{"uri": uri}, &r)
		return len(r.Contents) > 0 && strings.Contains(r.Contents[0].Text, `"`+missed[events-1]+`"`) // events of one URI are logged in order
	})

	hook.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{After: 400 * time.Millisecond} })
	params := subscription("deploy.finished", args, hook.URL(), hook.Secret())
	params["cursor"] = cursor
	began := time.Now()
	var subscriptions []string
	for _, principal := range []string{"alice", "bob", "auditor"} {
		var again subscribed
		aws.Stateless(principal).Call(t, "events/subscribe", params, &again)
		expect.True(t, "the replay is complete", !again.Truncated)
		subscriptions = append(subscriptions, again.ID)
	}
	lost := func() (lost []string) {
		got := map[string]bool{}
		for _, d := range hook.Deliveries() {
			got[d.Header.Get("X-MCP-Subscription-Id")+" "+d.ID()] = true
		}
		for _, sub := range subscriptions {
			for _, id := range missed {
				if !got[sub+" "+id] {
					lost = append(lost, sub+" "+id)
				}
			}
		}
		return lost
	}
	if !harness.Within(t, 4*time.Minute, func() bool { return len(lost()) == 0 }) {
		ids := lost()
		t.Errorf("%d of %d webhooks are missing: %q …", len(ids), len(subscriptions)*events, ids[:min(3, len(ids))])
	}
	all, _ := hook.Count()
	t.Logf("%d events replayed to each subscription in %v, %d requests, up to %d invocations in a chain", events, time.Since(began), all,
		aws.LongestChain("DispatchFunction"))
	if events > 250 {
		expect.AtLeast(t, "AWS-03 the invocations of dispatch in one chain", aws.LongestChain("DispatchFunction"), 17)
	}
	for _, f := range []string{"RegisterFunction", "DispatchFunction"} {
		expect.AtMost(t, "AWS-03 the stopped invocations of "+f, aws.Stopped(f), 0)
	}
}

// TestShortRetentionOnAWS keeps subscribers for longer than the retention of the log, which is a minute here and a day by
// default. During the test, processes that are frozen between events renew everything that a deployment renews only
// after hours: the interest in a pattern, subscriptions and cursors.
func TestShortRetentionOnAWS(t *testing.T) {
	t.Parallel()
	env := maps.Clone(harness.Quick)
	env["MCPEVENTS_LOG_RETENTION"] = "1m"
	env["MCPEVENTS_STREAM_MAX_AGE"] = "65s" // longer than the retention; the clients continue once
	aws := harness.StartAWS(t, harness.AWSOptions{Env: env})
	alice := aws.Stateless("alice")
	hook := harness.NewReceiver(t).Endpoint("refreshed")
	subscribe(t, alice, hook, "github.push", nil)
	polls := follow(t, &aws.Target, "github.push", object{})
	streams := map[string]*expect.Buffer{
		"events/stream": watch(t, &aws.Target, "following", "--name", "github.push", "--mode", "push"),
		"the stream of a session": watch(t, &aws.Target, "stream open", "--stream", "--revision", harness.V20251125,
			"--uri", "event://github/acme/app0/push", "--uri", "event://github/acme/app1/push", "--uri", "event://github/acme/app2"),
	}
	poll := func() {
		for more := true; more; {
			p := polls.poll(t, nil)
			if more = p.HasMore; p.Truncated {
				t.Error("EVX-07 a cursor that is used every few seconds has lost events")
			}
		}
	}
	var published []string
	const pause, rounds = 3 * time.Second, 30 // one and a half retentions
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for n := range rounds {
		id := fmt.Sprint("push-", n)
		published = append(published, id)
		aws.Publish(t, harness.Event{ID: id, URI: fmt.Sprintf("event://github/acme/app%d/push", n%3), Data: object{"ref": "refs/heads/main", "after": "0123456789abcdef0123456789abcdef01234567"}})
		if n%4 == 3 {
			subscribe(t, alice, hook, "github.push", nil)
		}
		if n%2 == 1 {
			poll()
		}
		<-ticker.C
	}
	missing := func(got func(id string) bool) []string {
		return slices.DeleteFunc(slices.Clone(published), got)
	}
	harness.Eventually(t, harness.Patience, "EVX-11 the webhook gets all events", func() bool {
		ids := hook.IDs()
		return len(missing(func(id string) bool { return ids[id] > 0 })) == 0
	})
	for name, out := range streams {
		harness.Eventually(t, harness.Patience, "EVX-26 "+name+" brings all events", func() bool {
			text := out.String()
			return len(missing(func(id string) bool { return strings.Contains(text, `"`+id+`"`) })) == 0
		})
	}
	harness.Eventually(t, harness.Patience, "EVX-07 the polls get all events", func() bool {
		poll()
		polled := map[string]bool{}
		for _, e := range polls.got {
			polled[e.EventID] = true
		}
		return len(missing(func(id string) bool { return polled[id] })) == 0
	})
}

// watch starts mcpevents listen, which continues from its last position whenever the server ends its stream. watch returns the
// output when the log has the text ready.
func watch(t *testing.T, s *harness.Target, ready string, args ...string) *expect.Buffer {
	t.Helper()
	out, log := new(expect.Buffer), new(expect.Buffer)
	cmd := exec.CommandContext(t.Context(), harness.Binary(t, "./cmd/mcpevents", false), append([]string{"listen", "--log-format", "text"}, args...)...)
	cmd.Env = append(os.Environ(), "MCPEVENTS_SERVER="+s.MCP, "MCPEVENTS_KEY="+s.Keys["alice"])
	cmd.Stdout, cmd.Stderr = out, log
	expect.OK(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // the end of the context has killed it
	log.Await(t, ready, 1)
	return out
}

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
		expect.OK(t, notice.Verify(refusing.Secret()), "the signature")
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
			expect.Equal(t, "the control messages of "+e.Name, n, map[*harness.Endpoint]int{refusing: 1}[e])
		}
	})
}

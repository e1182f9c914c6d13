//go:build unix

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestReplayOnAWS (AWS-03): a subscription requests the events that it missed, at a slow endpoint. Each page task
// leads to further ones, in more than the 16 invocations after which Lambda stops a loop. Invocations have a short
// timeout, so that the tasks follow each other quickly.
func TestReplayOnAWS(t *testing.T) {
	t.Parallel()
	aws := harness.StartAWS(t, harness.AWSOptions{DispatchTime: 4 * time.Second})
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

	events := harness.Size(250, 4_990) // a replay has at most 5,000 events
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

	hook.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{After: 100 * time.Millisecond} })
	params := subscription("deploy.finished", args, hook.URL(), hook.Secret())
	params["cursor"] = cursor
	began := time.Now()
	var again subscribed
	alice.Call(t, "events/subscribe", params, &again)
	if again.Truncated {
		t.Error("the replay is truncated")
	}
	lost := func() (ids []string) {
		got := hook.IDs()
		for _, id := range missed {
			if got[id] == 0 {
				ids = append(ids, id)
			}
		}
		return ids
	}
	if !harness.Within(t, time.Duration(harness.Size(4, 8))*time.Minute, func() bool { return len(lost()) == 0 }) {
		ids := lost()
		t.Errorf("%d of %d events are missing: %q …", len(ids), events, ids[:min(3, len(ids))])
	}
	all, different := hook.Count()
	t.Logf("%d events replayed in %v, %d repetitions", events, time.Since(began), all-different)
	for _, f := range []string{"RegisterFunction", "DispatchFunction"} {
		if n := aws.Stopped(f); n > 0 {
			t.Errorf("AWS-03 %d invocations of %s were stopped", n, f)
		}
	}
}

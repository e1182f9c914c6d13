//go:build unix

package e2e

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestBadInput checks that bad input is not queued, and that other events are not affected. The tests of shared/events/publish have all
// kinds of bad input.
func TestBadInput(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	all := harness.NewReceiver(t).Endpoint("all")
	alice := s.Stateless("alice")
	register(t, alice, all, "event://ci", "event://github", "event://incidents", "event://deploy")
	good := string(marshal(t, build("", 1)))

	t.Run("EVS-07 one bad event of an array refuses the array, and names the fault", func(t *testing.T) {
		a := s.PostEvents(t, "publisher", "application/json", `[`+good+`,{"uri":"event://ci/build-finished","data":{"build":"x","status":"passed"}}]`)
		expect.Equal(t, fmt.Sprintf("the status of the answer %.300s", a.Body), a.Status, http.StatusUnprocessableEntity)
		expect.Contains(t, "the response", string(a.Body), "/build")
	})
	t.Run("duplicate id", func(t *testing.T) {
		for range 3 {
			expect.Equal(t, "the accepted id", s.Publish(t, build("twice", 2))[0].ID, "twice")
		}
	})
	t.Run("no bad event was queued, and the good event arrived once", func(t *testing.T) {
		s.Publish(t, build("last", 3))
		all.Wait(t, 2)
		harness.Eventually(t, harness.Patience, "the last event", func() bool { return all.IDs()["last"] == 1 })
		if ids := all.IDs(); len(ids) != 2 || ids["twice"] != 1 {
			t.Errorf("delivered: %v, want twice and last, once each", ids)
		}
	})
}

// TestGuardAtDelivery registers a target while private addresses are allowed. When they no longer are, it must not
// receive anything, because the address is checked when it is dialed.
func TestGuardAtDelivery(t *testing.T) {
	t.Parallel()
	receiver := harness.NewReceiver(t)
	open := harness.NewServer(t, harness.ServerOptions{})
	open.Start()
	hook := receiver.Endpoint("private")
	r := register(t, open.Stateless("alice"), hook, "event://ci/build-finished")
	open.Publish(t, build("before", 1))
	hook.Wait(t, 1)
	open.Stop()

	guarded := harness.NewServer(t, harness.ServerOptions{Guarded: true, Data: open.Data, Callers: harness.SameKeys(open)})
	guarded.Start()
	guarded.Publish(t, build("after", 2))
	t.Run("SRF-01 the address is refused when it is dialed", func(t *testing.T) {
		status := waitStatus(t, guarded.Stateless("alice"), r.Subscription.URI, func(s subscriptionStatus) bool {
			return s.DeliveryStatus.LastError != nil
		})
		if got := *status.DeliveryStatus.LastError; got != "blocked" && got != "connection_refused" {
			t.Errorf("lastError %q, want blocked", got)
		}
		if n, _ := hook.Count(); n != 1 {
			t.Errorf("%d deliveries, want the one from before", n)
		}
	})
}

// TestEndpointsThatMisbehave checks that a misbehaving endpoint affects only its own deliveries.
func TestEndpointsThatMisbehave(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{
		Args: []string{"--retry-schedule", "0s,1s,2s"},
	})
	receiver := harness.NewReceiver(t)
	alice := s.Stateless("alice")
	flaky := receiver.Endpoint("flaky")
	flaky.Answer(func(n int, _ *harness.Delivery) harness.Reply {
		if n <= 2 {
			return harness.Reply{Status: 500, Body: "internal <secret> details"}
		}
		return harness.Reply{}
	})
	flakySub := register(t, alice, flaky, "event://ci/build-finished")
	elsewhere := receiver.Endpoint("elsewhere")
	redirecting := receiver.Endpoint("redirecting")
	redirecting.Answer(func(int, *harness.Delivery) harness.Reply {
		return harness.Reply{Status: http.StatusTemporaryRedirect, Header: map[string]string{"Location": elsewhere.URL()}}
	})
	redirectingSub := register(t, alice, redirecting, "event://ci/build-finished")
	closed := closedPort(t)
	var refused registered
	alice.Call(t, "resources/subscriptions/register", object{"uris": []string{"event://ci/build-finished"}, "targetUri": closed}, &refused)

	s.Publish(t, build("one", 1))

	t.Run("WHK-02 WHK-03 an endpoint that responds 500 twice and then 200 receives three attempts", func(t *testing.T) {
		attempts := flaky.WaitAttempts(t, 3)
		checkAttempts(t, flaky, attempts, "one")
		expect.AtLeast(t, "the time between the second and the third attempt", attempts[2].At.Sub(attempts[1].At), 1500*time.Millisecond)
		status := waitStatus(t, alice, flakySub.Subscription.URI, func(s subscriptionStatus) bool { return s.DeliveryStatus.LastDeliveryAt != nil })
		if status.State != "active" || status.DeliveryStatus.LastError != nil {
			t.Errorf("after its success: %+v", status)
		}
	})
	t.Run("WHK-07 a redirect is a failure and is not followed", func(t *testing.T) {
		redirecting.WaitAttempts(t, 3)
		waitStatus(t, alice, redirectingSub.Subscription.URI, func(s subscriptionStatus) bool { return s.DeliveryStatus.LastError != nil })
		if n, _ := elsewhere.Count(); n != 0 {
			t.Error("the redirect was followed")
		}
	})
	t.Run("SRF-05 the owner sees a category but no text from the endpoint", func(t *testing.T) {
		status := waitStatus(t, alice, refused.Subscription.URI, func(s subscriptionStatus) bool { return s.DeliveryStatus.LastError != nil })
		expect.Equal(t, "lastError", *status.DeliveryStatus.LastError, "connection_refused")
		expect.Lacks(t, "the log", s.Output(), "<secret>")
	})
}

// checkAttempts checks that all attempts have the same webhook-id, new timestamps, and valid signatures.
func checkAttempts(t *testing.T, e *harness.Endpoint, attempts []*harness.Delivery, id string) {
	t.Helper()
	stamps, signatures := map[string]bool{}, map[string]bool{}
	for i, d := range attempts {
		expect.Equal(t, fmt.Sprintf("the webhook-id of attempt %d", i+1), d.ID(), id)
		expect.OK(t, d.Verify(e.Secret()), "attempt", i+1)
		stamps[d.Header.Get("webhook-timestamp")] = true
		signatures[d.Header.Get("webhook-signature")] = true
	}
	expect.Equal(t, "the number of timestamps", len(stamps), len(attempts))
	expect.Equal(t, "the number of signatures", len(signatures), len(attempts))
}

// closedPort returns a URL whose port is closed.
func closedPort(t *testing.T) string {
	t.Helper()
	return "http://" + harness.FreeAddr(t) + "/"
}

// subscriptionStatus is the text of a subscription:// resource.
type subscriptionStatus struct {
	URI            string   `json:"uri"`
	EventURIs      []string `json:"eventUris"`
	TargetURI      string   `json:"targetUri"`
	State          string   `json:"state"`
	Reason         string   `json:"reason"`
	DeliveryStatus struct {
		Active         bool    `json:"active"`
		LastDeliveryAt *string `json:"lastDeliveryAt"`
		LastError      *string `json:"lastError"`
		FailedSince    *string `json:"failedSince"`
	} `json:"deliveryStatus"`
}

// contents is the result of resources/read.
type contents struct {
	Contents []struct {
		URI      string `json:"uri"`
		MimeType string `json:"mimeType"`
		Text     string `json:"text"`
	} `json:"contents"`
}

func readStatus(tb testing.TB, c *harness.Client, uri string) subscriptionStatus {
	tb.Helper()
	var r contents
	c.Call(tb, "resources/read", object{"uri": uri}, &r)
	if len(r.Contents) != 1 || r.Contents[0].MimeType != "application/json" || r.Contents[0].URI != uri {
		tb.Fatalf("read %s: %+v", uri, r)
	}
	return decode[subscriptionStatus](tb, []byte(r.Contents[0].Text))
}

// waitStatus waits until the subscription's status satisfies f.
func waitStatus(t *testing.T, c *harness.Client, uri string, f func(subscriptionStatus) bool) (s subscriptionStatus) {
	t.Helper()
	if !harness.Within(t, harness.Patience, func() bool { s = readStatus(t, c, uri); return f(s) }) {
		t.Fatalf("the status was not reached: %+v", s)
	}
	return s
}

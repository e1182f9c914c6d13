//go:build unix

package e2e

import (
	"testing"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestSameID tests two publishers that number their events from 1. The same id under different URIs means different
// events, and each subscriber receives only its own.
func TestSameID(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--retry-schedule", "0s,1s,1s"}})
	receiver := harness.NewReceiver(t)
	builds, incidents := receiver.Endpoint("builds"), receiver.Endpoint("incidents")
	for _, e := range []*harness.Endpoint{builds, incidents} {
		e.Answer(func(n int, _ *harness.Delivery) harness.Reply {
			if n == 1 {
				return harness.Reply{Status: 500}
			}
			return harness.Reply{}
		})
	}
	register(t, s.Stateless("alice"), builds, "event://ci/build-finished")
	register(t, s.Stateless("bob"), incidents, "event://incidents/search/created")
	stream := s.Stateless("alice").Listen(t, 1, object{"resourceSubscriptions": []string{"event://ci", "event://incidents"}}, nil)
	s.Publish(t, build("42", 1))
	builds.WaitAttempts(t, 1)
	s.Publish(t, incident("42", "search", "info"))
	for e, uri := range map[*harness.Endpoint]string{builds: "event://ci/build-finished", incidents: "event://incidents/search/created"} {
		for i, d := range e.WaitAttempts(t, 2) {
			if body := decode[struct{ URI string }](t, d.Body); body.URI != uri {
				t.Errorf("attempt %d at %s has an event of %s, want %s", i+1, e.Name, body.URI, uri)
			}
		}
	}
	if n := len(stream.Wait(t, 2)); n != 2 {
		t.Errorf("the stream has %d events, want 2", n)
	}
}

//go:build unix

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestRequirementsOnLocalAWS holds the functions to the requirements that the embedded server is
// held to, by the same tests. Each request may be served by another instance.
func TestRequirementsOnLocalAWS(t *testing.T) {
	aws := harness.SharedAWS(t)
	t.Run("resources", func(t *testing.T) { subscriptionResources(t, &aws.Target) })
	t.Run("read", func(t *testing.T) { reading(t, &aws.Target) })
	t.Run("in band", func(t *testing.T) { inBand(t, &aws.Target) })
	t.Run("listen", func(t *testing.T) { listening(t, &aws.Target) })
	t.Run("sessions", func(t *testing.T) { sessions(t, &aws.Target) })
	t.Run("register", func(t *testing.T) { registering(t, &aws.Target, time.Second) })
	t.Run("subscribe", func(t *testing.T) { subscribing(t, &aws.Target) })
	t.Run("verification", func(t *testing.T) { verifying(t, &aws.Target) })
	t.Run("admin", func(t *testing.T) {
		aws.ApplyCatalog(t, "operated", operatedCatalog(t))
		operating(t, &aws.Target, 5*time.Second, func() []string { return aws.Items(t) })
	})
	t.Run("commands", func(t *testing.T) { commanding(t, &aws.Target) })
	t.Run("dead letters", func(t *testing.T) {
		aws.ApplyCatalog(t, "beside", operatedCatalog(t))
		published := time.Now().Add(-time.Hour)
		for _, id := range stuck() {
			aws.Enqueue(t, "InboxQueue", poison, map[string]string{"team": "red"})
			aws.Enqueue(t, "EventsDeadQueue", stuckEvent(id, published), nil) // as SQS moves it
		}
		deadLettersOfQueues(t, &aws.Target, published, 2*time.Second)
	})
	t.Run("EVS-10 secrets are in no log and in no table in clear", func(t *testing.T) {
		hook := harness.NewReceiver(t).Endpoint("secret")
		register(t, aws.Modern("alice"), hook, "event://ci/build-finished")
		clients := harness.NewReceiver(t).Endpoint("clients")
		subscribe(t, aws.Modern("alice"), clients, "ci.build_finished", nil)
		aws.Publish(t, build("sealed", 1))
		hook.Wait(t, 1)
		clients.Wait(t, 1)
		items, err := json.Marshal(aws.Items(t))
		if err != nil || len(items) < 1000 {
			t.Fatalf("%d bytes of items: %v", len(items), err)
		}
		for what, text := range map[string]string{"the tables": string(items), "the log": aws.Output()} {
			for _, secret := range []string{hook.Secret(), clients.Secret(), aws.Keys["alice"]} {
				if strings.Contains(text, strings.TrimPrefix(secret, "whsec_")) {
					t.Errorf("a secret is in %s", what)
				}
			}
		}
	})
}

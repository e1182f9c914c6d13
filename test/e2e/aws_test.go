//go:build unix

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestRequirementsOnLocalAWS runs tests of the stand-alone server against the functions, each with its own
// deployment. Each request may be served by a different instance.
func TestRequirementsOnLocalAWS(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(*testing.T, *harness.AWS){
		"resources":    func(t *testing.T, aws *harness.AWS) { subscriptionResources(t, &aws.Target) },
		"read":         func(t *testing.T, aws *harness.AWS) { reading(t, &aws.Target) },
		"in band":      func(t *testing.T, aws *harness.AWS) { inBand(t, &aws.Target) },
		"listen":       func(t *testing.T, aws *harness.AWS) { listening(t, &aws.Target) },
		"sessions":     func(t *testing.T, aws *harness.AWS) { sessions(t, &aws.Target) },
		"register":     func(t *testing.T, aws *harness.AWS) { registering(t, &aws.Target, time.Second) },
		"subscribe":    func(t *testing.T, aws *harness.AWS) { subscribing(t, &aws.Target) },
		"verification": func(t *testing.T, aws *harness.AWS) { verifying(t, &aws.Target) },
		"admin": func(t *testing.T, aws *harness.AWS) {
			aws.ApplyCatalog(t, "operated", operatedCatalog(t))
			operating(t, &aws.Target, 5*time.Second, func() []string { return aws.Items(t) })
		},
		"commands": func(t *testing.T, aws *harness.AWS) {
			aws.ApplyCatalog(t, "operated", operatedCatalog(t))
			commanding(t, &aws.Target)
		},
		"dead letters": func(t *testing.T, aws *harness.AWS) {
			aws.ApplyCatalog(t, "beside", operatedCatalog(t))
			published := time.Now().Add(-time.Hour)
			for _, id := range stuck() {
				aws.Enqueue(t, "InboxQueue", poison, map[string]string{"team": "red"})
				aws.Enqueue(t, "EventsDeadQueue", stuckEvent(id, published), nil) // as SQS would move it
			}
			deadLettersOfQueues(t, &aws.Target, published, 2*time.Second)
		},
		"EVS-10 secrets are in no log and in no table in clear": secretsAreSealed,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hold(t, harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick}))
		})
	}
}

func secretsAreSealed(t *testing.T, aws *harness.AWS) {
	hook := harness.NewReceiver(t).Endpoint("secret")
	register(t, aws.Stateless("alice"), hook, "event://ci/build-finished")
	clients := harness.NewReceiver(t).Endpoint("clients")
	subscribe(t, aws.Stateless("alice"), clients, "ci.build_finished", nil)
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
}

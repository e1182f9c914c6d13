//go:build unix

package e2e

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestOnLocalAWS runs tests of the stand-alone server against one deployment of the functions, where a feature
// depends on the store, the queues, or the instance that serves a request. Protocol cases are the same code in both modes.
// The tests share the deployment, so each uses its own URIs or its own workspace.
func TestOnLocalAWS(t *testing.T) {
	t.Parallel()
	env := maps.Clone(harness.Quick)
	env["MCPEVENTS_EVENT_TOOLS"], env["MCPEVENTS_REGISTRATION_RATE"] = "true", "0"
	aws := harness.StartAWS(t, harness.AWSOptions{Env: env})
	for workspace, catalog := range map[string]string{
		"operated": operatedCatalog(t), "beside": operatedCatalog(t), "elsewhere": elsewhere, "shops": orders, "outside": granted,
	} {
		aws.ApplyCatalog(t, workspace, catalog)
	}
	aws.AnnounceCatalog(t, "tenants", owned) // wait until all functions use the catalogs
	target := &aws.Target
	for _, tt := range []struct {
		name string
		hold func(*testing.T)
	}{ // the longest ones are first, so that they do not end long after the others
		{"admin and commands", func(t *testing.T) {
			operating(t, target, 5*time.Second, func() []string { return aws.Items(t) })
			commanding(t, target)
		}},
		{"follow", func(t *testing.T) { following(t, target) }},
		{"subscribe", func(t *testing.T) { subscribing(t, target) }},
		{"subscription resources", func(t *testing.T) { subscriptionResources(t, target) }},
		{"register", func(t *testing.T) { registering(t, target, time.Second) }},
		{"gap", func(t *testing.T) { lostEvents(t, target) }},
		{"ranges", func(t *testing.T) { ranges(t, target) }},
		{"dialect", func(t *testing.T) { dialect(t, target) }},
		{"event tools", func(t *testing.T) { withTools(t, target) }},
		{"tenants", func(t *testing.T) { tenants(t, target, tenantKeys(target)) }},
		{"check", func(t *testing.T) { checked(t, target) }},
		{"live catalog", func(t *testing.T) {
			aws.AnnounceCatalog(t, "live", before)
			time.Sleep(3 * time.Second) // with different clocks, a stream may begin two seconds early
			liveCatalog(t, target, func(t *testing.T) { aws.AnnounceCatalog(t, "live", after) })
		}},
		{"ending", func(t *testing.T) {
			aws.AnnounceCatalog(t, "ending", granted)
			ending(t, target, func(t *testing.T) { aws.AnnounceCatalog(t, "ending", takenAway) })
		}},
		{"dead letters", func(t *testing.T) {
			published := time.Now().Add(-time.Hour)
			for _, id := range stuck() {
				aws.Enqueue(t, "InboxQueue", poison, map[string]string{"team": "red"})
				aws.Enqueue(t, "EventsDeadQueue", stuckEvent(id, published), nil) // as SQS would move it
			}
			deadLettersOfQueues(t, target, published, 2*time.Second)
		}},
		{"EVS-10 secrets are in no log and in no table in clear", func(t *testing.T) { secretsAreSealed(t, aws) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.hold(t)
		})
	}
}

func secretsAreSealed(t *testing.T, aws *harness.AWS) {
	hook := harness.NewReceiver(t).Endpoint("secret")
	register(t, aws.Stateless("alice"), hook, "event://storage/sealed/object-created")
	clients := harness.NewReceiver(t).Endpoint("clients")
	subscribe(t, aws.Stateless("alice"), clients, "storage.object_created", object{"bucket": "sealed"})
	aws.Publish(t, harness.Event{ID: "sealed", URI: "event://storage/sealed/object-created", Data: object{"key": "k", "size": 1}})
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

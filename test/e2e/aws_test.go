//go:build unix

package e2e

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	sender "github.com/mcp-events/mcpevents/test/provider"
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
		"operated": sampleCatalog(t), "beside": sampleCatalog(t), "elsewhere": elsewhere, "shops": orders, "outside": granted,
	} {
		aws.ApplyCatalog(t, workspace, catalog)
	}
	aws.AnnounceCatalog(t, "tenants", owned) // wait until all functions use the catalogs
	target := &aws.Target
	listens := openPolledListens(t, aws)
	t.Run("SUB-11 while there is traffic, the p99 of the time to an open listen is at most 400 ms", listens.whileBusy)
	t.Run("together", func(t *testing.T) { together(t, aws, target) })
	t.Run("SUB-11 the first event after a quiet minute takes at most 1.2 s", listens.afterAQuietMinute)
}

func together(t *testing.T, aws *harness.AWS, target *harness.Target) {
	for _, tt := range []struct {
		name string
		hold func(*testing.T)
	}{ // the longest ones are first, so that they do not end long after the others
		{"admin", func(t *testing.T) { operating(t, target, 5*time.Second, func() []string { return aws.Items(t) }) }},
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
			expect.Lacks(t, what, text, strings.TrimPrefix(secret, "whsec_"))
		}
	}
}

// TestSourcesOnLocalAWS tests sources on AWS, where requests arrive through a Function URL, and any process may handle each
// of them. TestServicesSendToTheInbox of package functions tests the messages of AWS services.
func TestSourcesOnLocalAWS(t *testing.T) {
	t.Parallel()
	const secret = "/mcp-events/e2e/github" // the name of its parameter
	aws := harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick})
	scheme := sender.Schemes()[0] // GitHub's
	scheme.Secret = rand.Text()
	aws.PutSecret(t, secret, scheme.Secret)
	aws.ApplyConfig(t, strings.Replace(githubSource, "env:E2E_GITHUB", "ssm:"+secret, 1))
	harness.Eventually(t, harness.Patience, "the functions have the sources", func() bool {
		return deliver(t, &aws.Target, scheme, "ping", []byte(`{}`)).Status == http.StatusAccepted
	})
	sourcing(t, &aws.Target, scheme)
	hook := harness.NewReceiver(t).Endpoint("agent")
	subscribe(t, aws.Stateless("alice"), hook, "github.pull_request", object{"repo": "aws"})
	t.Run("SRC-05 compressed bodies and forms pass the Function URL unchanged", func(t *testing.T) {
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		_, _ = z.Write(pullBody("opened", "aws", 4))
		expect.OK(t, z.Close())
		for id, r := range map[string]struct{ body, name, value string }{
			"gzip": {zipped.String(), "Content-Encoding", "gzip"},
			"form": {"payload=" + url.QueryEscape(string(pullBody("opened", "aws", 5))), "Content-Type", "application/x-www-form-urlencoded"},
		} {
			accepts(t, id, func() *harness.HTTPAnswer {
				header := scheme.Headers(id, []byte(r.body), time.Now())
				header.Set(r.name, r.value)
				return post(t, &aws.Target, header, []byte(r.body))
			})
		}
		hook.Wait(t, 2)
	})
	t.Run("SRC-03 operators see the outcomes of requests", func(t *testing.T) {
		o := operate(t, &aws.Target)
		for _, kind := range []string{"accepted", "unmatched", "unverified"} {
			var l struct {
				Items []struct{ Kind, Reason string }
			}
			o.callAs("monitor", "GET", "sources/github/outcomes?kind="+kind, "", http.StatusOK, &l)
			if len(l.Items) == 0 || l.Items[0].Kind != kind || strings.Contains(l.Items[0].Reason, scheme.Secret) {
				t.Errorf("outcomes of %s: %+v", kind, l.Items)
			}
		}
	})
}

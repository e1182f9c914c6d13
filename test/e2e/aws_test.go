//go:build unix

package e2e

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
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
	scheme := schemeOf("github")
	scheme.Secret = rand.Text()
	aws.PutSecret(t, secret, scheme.Secret)
	config := strings.Replace(githubSource, "env:E2E_GITHUB", "ssm:"+secret, 1)
	aws.ApplyConfig(t, config)
	harness.Eventually(t, harness.Patience, "the functions have the sources", func() bool {
		return deliver(t, &aws.Target, scheme, "github", "ping", []byte(`{}`)).Status == http.StatusAccepted
	})
	sourcing(t, &aws.Target, scheme)
	hook := harness.NewReceiver(t).Endpoint("agent")
	subscribe(t, aws.Stateless("alice"), hook, "github.pull_request", object{"repo": "aws"})
	t.Run("SRC-05 compressed bodies and forms pass the Function URL unchanged", func(t *testing.T) {
		for id, r := range map[string]struct{ body, name, value string }{
			"gzip": {zipped(string(pullBody("opened", "aws", 4))), "Content-Encoding", "gzip"},
			"form": {"payload=" + url.QueryEscape(string(pullBody("opened", "aws", 5))), "Content-Type", "application/x-www-form-urlencoded"},
		} {
			accepts(t, id, func() *harness.HTTPAnswer {
				return post(t, strings.TrimSuffix(aws.Events, "/events")+"/sources/github", scheme.Headers(id, []byte(r.body), time.Now()), []byte(r.body), with1(r.name, r.value))
			})
		}
		hook.Wait(t, 2)
	})
	t.Run("SRC-04 OPS-04 an unfit document becomes a dead letter, and an event after its mapping was fixed", func(t *testing.T) {
		mendMapping(t, aws, scheme, config, hook)
	})
	t.Run("SRC-03 operators see the outcomes of requests", func(t *testing.T) {
		o := operate(t, &aws.Target)
		for _, kind := range []string{"accepted", "unmatched", "unverified", "unfit"} {
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

// mendMapping first configures a mapping that no document fits, and then one that fits.
func mendMapping(t *testing.T, aws *harness.AWS, scheme sender.Scheme, config string, hook *harness.Endpoint) {
	o := operate(t, &aws.Target)
	type letter struct{ ID, Queue, Reason string }
	list := func() []letter {
		var l struct{ Items []letter }
		o.callAs("monitor", "GET", "dead-letters?queue=inbox", "", http.StatusOK, &l)
		return l.Items
	}
	aws.ApplyConfig(t, strings.Replace(config, "title: /body/pull_request/title", "title: /body/number", 1))
	n, answered := 100, []string{}
	next := func() *harness.HTTPAnswer {
		n++
		id := fmt.Sprint("unfit-", n)
		a := deliver(t, &aws.Target, scheme, "github", id, pullBody("opened", "aws", n))
		if a.Status == http.StatusAccepted || a.Status == http.StatusUnprocessableEntity {
			answered = append(answered, id)
		} // otherwise the function is throttled, as a provider would repeat the request
		return a
	}
	harness.Eventually(t, harness.Patience, "the mapping does not fit", func() bool {
		a := next()
		if a.Status == http.StatusUnprocessableEntity && !strings.Contains(string(a.Body), `"pointer":"/data/pull_request/title"`) {
			t.Errorf("got %s", a.Body)
		}
		return a.Status == http.StatusUnprocessableEntity
	})
	var dead []letter
	harness.Eventually(t, harness.Patience, "the request is in the list", func() bool { dead = list(); return len(dead) > 0 })
	if !strings.HasPrefix(dead[0].Reason, "source github: ") {
		t.Errorf("got %+v", dead)
	}
	aws.ApplyConfig(t, config)
	harness.Eventually(t, harness.Patience, "the mapping fits again", func() bool { return next().Status == http.StatusAccepted })
	harness.Eventually(t, harness.Patience, "each request is an event", func() bool {
		for _, l := range list() { // a process may still use the old mapping
			o.callAs("monitor", "POST", "dead-letters/"+l.ID+"/retry", "", http.StatusAccepted, nil)
		}
		arrived := hook.IDs()
		return !slices.ContainsFunc(answered, func(id string) bool { return arrived[id] == 0 })
	})
	expect.Len(t, "the dead letters that are left", list(), 0)
}

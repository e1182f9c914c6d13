package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

const (
	buildType  = "    uri: event://ci/build-finished\n"
	restricted = buildType + "    access: {scopes: [builds]}\n"
	payload    = "payloadSchema: {type: object, properties: {ok: {}}}"
	required   = "payloadSchema: {type: object, required: [ok], properties: {ok: {}}}"
	optional   = "payloadSchema: {type: object, properties: {ok: {}, more: {}}}"
	pushOnly   = buildType + "    delivery: [push]\n"
)

func (r *rig) audit() {
	r.t.Helper()
	for range 2 { // the second settles
		expect.OK(r.t, expect.ErrOf(r.terminator(mortal{r.db, r}, r.services).Recheck(r.t.Context())))
		r.now = r.now.Add(30 * time.Second) // too soon for the retry of lost messages
	}
}

// notices returns the attempts by id, and the bodies, of the messages that say that a subscription has ended.
func (r *rig) notices() (ids map[string]int, bodies []string) {
	ids = map[string]int{}
	for _, p := range r.posts {
		if strings.HasPrefix(p.ID, "msg_terminated_") {
			ids[p.ID]++
			bodies = append(bodies, string(p.Body))
		}
	}
	return ids, bodies
}

// roster is a directory of one principal.
type roster struct{ keys []auth.Principal }

func (r *roster) Principals(_ context.Context, workspace, id string, _ refresh.Freshness) ([]auth.Principal, error) {
	if workspace == "default" && id == "alice" {
		return r.keys, nil
	}
	return nil, nil
}

// TestASubscriptionThatMayNotGoOnEnds: AUT-04, EVX-17, EVX-13.
func TestASubscriptionThatMayNotGoOnEnds(t *testing.T) {
	for name, c := range map[string]struct {
		change   []string
		revoke   bool
		publish  bool // else an audit finds it
		reason   string
		survives bool
	}{
		"AUT-04 a rule that its principal does not meet, found at delivery":       {change: []string{buildType, restricted}, publish: true, reason: "access was revoked"},
		"AUT-04 a rule that its principal does not meet, found without any event": {change: []string{buildType, restricted}, reason: "access was revoked"},
		"AUT-04 the principal's last key is gone":                                 {revoke: true, publish: true, reason: "access was revoked"},
		"EVX-17 the event type is gone":                                           {change: []string{"ci.build_finished", "ci.renamed"}, reason: "the event type ci.build_finished was removed"},
		"EVX-17 the event type changed incompatibly, found at delivery":           {change: []string{payload, required}, publish: true, reason: "ci.build_finished changed incompatibly"},
		"EVX-17 the event type changed incompatibly, found without any event":     {change: []string{payload, required}, reason: "ci.build_finished changed incompatibly"},
		"EVX-17 the event type is not delivered by webhook any more":              {change: []string{buildType, pushOnly}, reason: "ci.build_finished is not delivered by webhook"},
		"EVX-17 an addition ends nothing, seen at delivery":                       {change: []string{payload, optional}, publish: true, survives: true},
		"EVX-17 an addition ends nothing, seen by an audit":                       {change: []string{"webhookType: ci.build", "webhookType: ci.build\n    title: Builds\n    filters: {status: /status}"}, survives: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			keys := &roster{[]auth.Principal{r.principal()}}
			if c.revoke {
				r.directory = keys
			}
			plain, events := r.register("event://ci/build-finished"), r.subscribe()
			r.change(c.change...)
			if c.revoke {
				keys.keys = nil
			}
			if c.publish {
				r.publish("evt_1")
			} else {
				r.audit()
			}
			r.run()
			if c.survives {
				ids, _ := r.notices()
				if want := map[bool]int{true: 2}[c.publish]; !r.served(plain.ID) || !r.served(events.ID) || len(ids) != 0 || posted(r)["evt_1"] != want {
					t.Errorf("posts %v; want the event at both, and no end", posted(r))
				}
				return
			}
			expect.Equal(t, "the posts of evt_1", posted(r)["evt_1"], 0)
			ids, bodies := r.notices()
			if len(r.posts) != 1 || len(ids) != 1 {
				t.Fatalf("posts %v, want one message", posted(r))
			}
			var body struct {
				Type  string
				Error string
			}
			if err := json.Unmarshal([]byte(bodies[0]), &body); err != nil || body.Type != "terminated" || body.Error != c.reason {
				t.Errorf("sent %s, want %q", bodies[0], c.reason)
			}
			p := r.posts[0]
			if p.SubscriptionID != events.ID || p.URL != "https://hooks.example.com/a" || len(p.Keys) != 1 || string(p.Keys[0]) != "whsec_a" {
				t.Errorf("sent to %s for %s with the keys %q, want the endpoint, %s and one key", p.URL, p.SubscriptionID, p.Keys, events.ID)
			}
			if view, err := r.services.Read(t.Context(), r.principal(), subscription.URI(plain.ID)); err != nil || view.State != subscription.Disabled || view.Reason != c.reason {
				t.Errorf("the subscription of SEP-1803 is %+v, %v", view, err)
			}
			expect.Fault(t, "the subscription of MCP Events", expect.ErrOf(r.services.Read(t.Context(), r.principal(), subscription.URI(events.ID))), fault.NotFound)
		})
	}

	t.Run("AUT-04 a principal goes on by another of its keys", func(t *testing.T) {
		r := newRig(t)
		r.change(buildType, restricted)
		rich := r.principal()
		rich.Scopes = append([]string{"builds"}, rich.Scopes...)
		keys := &roster{[]auth.Principal{rich}}
		r.directory = keys
		r.registerAs(rich, "https://hooks.example.com/a", "event://ci/build-finished")
		keys.keys = []auth.Principal{r.principal(), rich}
		r.run("one")
		keys.keys = []auth.Principal{r.principal()}
		r.run("two")
		if n := posted(r); n["one"] != 1 || n["two"] != 0 {
			t.Errorf("got posts %v, want one of event one and none of event two", n)
		}
	})

	t.Run("EVX-17 what is due again is not sent after the end", func(t *testing.T) {
		r, sub := registered(t)
		r.script = fails
		r.work("evt_1")
		before := len(r.posts)
		r.change(buildType, restricted)
		r.run()
		if n := posted(r)["evt_1"]; n != before || r.served(sub.ID) || r.deliveryState(sub.ID, "evt_1") != state.Dead {
			t.Errorf("sent %d times, served %v, the delivery is %s, want a dead letter that its owner sees", n, r.served(sub.ID), r.deliveryState(sub.ID, "evt_1"))
		}
	})

	t.Run("EVX-13 an endpoint that fails is notified as often as of an event", func(t *testing.T) {
		r, id := subscriber(t)
		r.audit()
		r.script = fails
		r.change(payload, required)
		r.audit()
		r.run()
		ids, _ := r.notices()
		if len(ids) != 1 || len(r.posts) != len(retry.EventsSchedule) || r.served(id) {
			t.Errorf("posts %v, want %d of one message", posted(r), len(retry.EventsSchedule))
		}
	})

	t.Run("EVX-13 who has subscribed again is not notified of the old end", func(t *testing.T) {
		r, _ := subscriber(t)
		r.audit()
		r.script = fails
		r.change(payload, required)
		r.audit()
		r.work()
		r.script = succeeds
		id := r.subscribe().ID
		before := len(r.posts)
		r.run()
		if len(r.posts) != before || before == 0 || !r.served(id) {
			t.Errorf("got %d posts after it subscribed again, served %v, want 0 and true", len(r.posts)-before, r.served(id))
		}
	})

	t.Run("EVX-13 a client can do without the message, and so can the operator for it", func(t *testing.T) {
		for _, by := range []string{"client", "operator"} {
			r := newRig(t)
			made := r.subscribe(func(s *subscription.SubscribeRequest) { s.Plain = by == "client" })
			r.change(payload, required)
			e := r.terminator(mortal{r.db, r}, r.services)
			if by == "operator" {
				e.Plain = []string{"https://other.example.com/", "https://hooks.example.com/"}
			}
			expect.OK(t, did(e.Terminate(t.Context(), "default", "alice", made.ID)))
			r.run()
			if len(r.posts) != 0 || r.served(made.ID) {
				t.Errorf("by the %s: got posts %v, served %v, want none and false", by, posted(r), r.served(made.ID))
			}
		}
	})
}

// TestAParentIsNarrowed: AUT-04, EVX-17. A parent that was registered before a restricted
// type appeared below it gets no events of that type.
func TestAParentIsNarrowed(t *testing.T) {
	r := newRig(t)
	sub := r.register("event://ci")
	deploy := buildType + "  - name: ci.deployed\n    uriTemplate: event://ci/{team}/deployed\n    access: {claims: {team: team}}\n"
	r.change(buildType, deploy)
	r.audit()
	publish := func(prefix string) {
		r.publishTo("event://ci/build-finished", "ci.build_finished", prefix+"build", `{"ok":true}`)
		r.publishTo("event://ci/search/deployed", "ci.deployed", prefix+"search", `{"ok":true}`)
		r.publishTo("event://ci/ads/deployed", "ci.deployed", prefix+"ads", `{"ok":true}`)
	}
	publish("1")
	r.run()
	if n := posted(r); n["1build"] != 1 || len(n) != 1 {
		t.Errorf("without the claim: got posts %v, want one of 1build only", n)
	}
	// Retries are narrowed, too.
	r.change(buildType, strings.Replace(deploy, "    access: {claims: {team: team}}\n", "", 1))
	r.script, r.posts = fails, nil
	r.publishTo("event://ci/ads/deployed", "ci.deployed", "2ads", `{"ok":true}`)
	r.work()
	before := posted(r)["2ads"]
	r.change(buildType, deploy)
	r.run()
	if n := posted(r)["2ads"]; n != before || n == 0 {
		t.Errorf("an event was sent %d times, want the %d of before its restriction", n, before)
	}
	// With the claim, the principal receives the events that the claim allows.
	member := r.principal()
	member.Claims = map[string][]string{"team": {"search"}}
	r.directory = &roster{[]auth.Principal{member}}
	r.script, r.posts = succeeds, nil
	publish("3")
	r.run()
	if n := posted(r); n["3build"] != 1 || n["3search"] != 1 || len(n) != 2 {
		t.Errorf("with the claim: got posts %v, want one each of 3build and 3search", n)
	}
	// When it has no event types below it any more, it ends.
	r.directory = nil
	r.change(buildType, restricted, "event://ci/build-finished", "event://other/build-finished")
	r.audit()
	expect.True(t, "a parent without event types is not served any more", !r.served(sub.ID))
}

// WHK-18, EVX-17: given a subscription to a parent, when the type of an event below it is removed before the event was delivered,
// then the event becomes a dead letter, because no access rule is left for it.
func TestAnEventWhoseTypeWasRemoved(t *testing.T) {
	for name, attempted := range map[string]bool{"before its first attempt": false, "before a retry": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.script = fails
			sub := r.register("event://ci")
			fanout, d, _ := r.process()
			r.publish("evt_1")
			r.hand(queue.Events, fanout.Handle)
			if attempted {
				r.hand(queue.Deliveries, d.HandlePages)
			}
			r.change("ci.build_finished", "ci.renamed")
			r.run()
			expect.Equal(t, "the event of the dead letter", r.letterOf(sub).Event, "evt_1")
			expect.Equal(t, "the posts of the event", posted(r)["evt_1"], map[bool]int{true: 1}[attempted])
		})
	}
}

// aged is a catalog of which a process holds an old version until it asks for the latest.
type aged struct{ cached, latest *catalog.Static }

func (a *aged) Catalog(ctx context.Context, w string) (*catalog.Catalog, error) {
	return a.cached.Catalog(ctx, w)
}

func (a *aged) Latest(ctx context.Context, w string) (*catalog.Catalog, error) {
	cat, err := a.latest.Catalog(ctx, w)
	a.cached.Replace(cat)
	return cat, err
}

// TestAnOldCatalogEndsNothing: EVX-17. What speaks against a subscription is looked at
// again by the latest catalog.
func TestAnOldCatalogEndsNothing(t *testing.T) {
	for name, newer := range map[string]string{
		"its type is newer than the cached catalog":                   strings.Replace(testCatalog, "ci.build_finished", "ci.renamed", 1),
		"its type has less in the cached catalog":                     strings.Replace(testCatalog, buildType, pushOnly, 1),
		"its rule was another in the cached catalog":                  strings.Replace(testCatalog, buildType, restricted, 1),
		"its schema was another, not compatible with that of the new": strings.Replace(testCatalog, payload, optional, 1),
	} {
		t.Run("EVX-17 "+name, func(t *testing.T) {
			old := expect.Value(catalog.Parse([]byte(newer)))(t)
			r := newRig(t)
			one, all := r.register("event://ci/build-finished"), r.register("event://ci")
			fanout, d, _ := r.process()
			a := &aged{catalog.NewStatic(old), r.catalogs.(*catalog.Static)}
			d.Terminator.Review.Catalog = a
			r.publish("evt_1")
			r.hand(queue.Events, fanout.Handle)
			for range 3 {
				r.hand(queue.Deliveries, d.HandlePages)
			}
			if !r.served(one.ID) || !r.served(all.ID) {
				t.Error("a subscription ended, want both served")
			}
			want := 2
			if strings.Contains(newer, "delivery: [push]") || strings.Contains(newer, "scopes: [builds]") {
				want = 1 // a restriction that has gone may hold for seconds below a parent
			}
			expect.AtLeast(t, "the posts", posted(r)["evt_1"], want)
		})
	}
}

// Given an event type that was renamed and has subscribers, when a process with the old catalog handles its next event, then
// the subscribers get it.
func TestAnEventOfARenamedType(t *testing.T) {
	for name, ids := range map[string][]string{"alone": {"evt_new"}, "behind one of the old name": {"evt_old", "evt_new"}, "before one of the old name": {"evt_new", "evt_old"}} {
		t.Run("WHK-18 "+name, func(t *testing.T) {
			r := newRig(t)
			r.script = succeeds
			old := expect.Value(r.catalogs.Catalog(t.Context(), "default"))(t)
			r.change("ci.build_finished", "ci.renamed")
			r.register("event://ci/build-finished")
			for _, id := range ids {
				r.publishTo("event://ci/build-finished", map[string]string{"evt_old": "ci.build_finished", "evt_new": "ci.renamed"}[id], id, `{"ok":true}`)
			}
			fanout, d, _ := r.process()
			fanout.Catalog = &aged{catalog.NewStatic(old), r.catalogs.(*catalog.Static)}
			r.hand(queue.Events, fanout.Handle)
			r.hand(queue.Deliveries, d.HandlePages)
			for _, id := range ids {
				expect.Equal(t, "the posts of "+id, posted(r)[id], 1)
			}
		})
	}
}

// TestTheEndSurvivesCrashes kills a process at every step of ending a subscription and
// telling it: EVX-13, EVX-17.
func TestTheEndSurvivesCrashes(t *testing.T) {
	for _, audited := range []bool{false, true} {
		atEachStep(t, 12, func(point int, late bool) bool {
			r := newRig(t)
			id, other := r.subscribe().ID, r.register("event://ci/build-finished").ID
			r.audit()
			r.script = failsFirst(1)
			r.change(buildType, restricted)
			r.budget, r.late = point, late
			if audited {
				for range 3 {
					e := r.terminator(mortal{r.db, r}, r.service(mortal{r.db, r}, r.log))
					_, err := e.Recheck(t.Context())
					if died := r.dead; err != nil && !died {
						t.Fatal(err)
					} else if died {
						r.dead, r.budget = false, 0
					}
					r.now = r.now.Add(30 * time.Second) // too soon for the retry of lost messages
				}
			} else {
				r.publish("evt_1")
			}
			r.run()
			survived := r.budget > 0
			r.dead, r.budget = false, 0
			ids, _ := r.notices()
			// Two attempts; the death, and a due entry that comes with its message, repeat one each.
			if len(ids) != 1 || len(r.posts) < 2 || len(r.posts) > 4 {
				t.Fatalf("death at step %d (late %v, audited %v): got posts %v, want 2 to 4 of one notice", point, late, audited, posted(r))
			}
			if r.served(id) || r.served(other) {
				t.Fatalf("death at step %d (late %v, audited %v): it is still served", point, late, audited)
			}
			return survived
		})
	}
}

// counting counts the subscriptions that an audit checks, and calls tired at a given number of them.
type counting struct {
	*subscription.Service
	ends, most int
	tired      func()
}

func (c *counting) Terminate(ctx context.Context, workspace, principal, id string,
	judge func(*subscription.Subscription) error, also func(*subscription.Subscription, error) []store.Op,
) (*subscription.Subscription, error) {
	if c.ends++; c.ends == c.most {
		c.tired()
	}
	return c.Service.Terminate(ctx, workspace, principal, id, judge, also)
}

// TestAnAuditThatIsCutOffGoesOn: AWS-16. An audit has its own position.
func TestAnAuditThatIsCutOffGoesOn(t *testing.T) {
	r := newRig(t)
	const all = 450 // the pages are of 200
	r.to(oneOrigin(all)...)
	r.audit()
	r.change(payload, optional) // other terms, which end nothing
	looked, rounds := 0, 0
	for done := false; !done; rounds++ {
		ctx, cancel := context.WithCancel(t.Context())
		services := &counting{Service: r.services.Service, most: 250, tired: cancel}
		e := r.terminator(mortal{r.db, r}, r.services)
		e.Subscriptions = services
		_, err := e.Recheck(ctx)
		cancel()
		looked += services.ends
		if done = err == nil; rounds > 4 {
			t.Fatalf("AWS-16: the audit is not done after %d rounds, it looked at %d", rounds, looked)
		}
	}
	if rounds != 3 || looked > all+2*50 {
		t.Errorf("%d rounds looked at %d of %d subscriptions, want 3 rounds and at most %d", rounds, looked, all, all+2*50)
	}
}

// TestAnUndecodableRecordDoesNotStopTheAudit: AWS-16.
func TestAnUndecodableRecordDoesNotStopTheAudit(t *testing.T) {
	r := newRig(t)
	var ids []string
	for range 5 {
		ids = append(ids, r.register("event://ci/build-finished").ID)
	}
	r.audit()
	for _, id := range ids[1:3] {
		key := store.Key{Table: store.Subscriptions, Partition: "o#default#alice", Sort: id}
		expect.OK(t, r.db.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte("{broken"), Version: 1}, store.Exists())))
	}
	r.change(buildType, restricted)
	r.audit()
	for _, id := range []string{ids[0], ids[3], ids[4]} {
		expect.True(t, "AWS-16: "+id+" is not served any more", !r.served(id))
	}
	e := r.terminator(mortal{r.db, r}, r.services)
	expect.Equal(t, "subscriptions that an audit ends after it settled", expect.Value(e.Recheck(t.Context()))(t), 0)
}

// slowCatalogs is a source that needs some time for each catalog, and counts the workspaces that had one.
type slowCatalogs struct {
	catalog.Source
	each time.Duration
	read map[string]int
}

func (s *slowCatalogs) Catalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	if err := periodic.Sleep(ctx, s.each); err != nil {
		return nil, err
	}
	s.read[workspace]++
	return s.Source.Catalog(ctx, workspace)
}

// AWS-16: each workspace has its turn, although one audit has time for about half of them. A run of the retry function lasts up to 50 s,
// in which it reads 12,500 catalogs if each takes 4 ms.
func TestAudits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		const all, each, budget = 20_000, 4 * time.Millisecond, 50 * time.Second
		var ops []store.Op
		for i := range all {
			key := store.Key{Table: store.Subscriptions, Partition: "w#", Sort: fmt.Sprint("w", i)}
			ops = append(ops, store.Put(store.Item{Key: key}))
		}
		expect.OK(t, r.db.WriteAll(t.Context(), ops...))
		e := r.terminator(mortal{r.db, r}, r.services)
		source := &slowCatalogs{r.catalogs, each, map[string]int{}}
		e.Review.Catalog = source
		for round, want := range []int{int(budget/each) - 1, all} {
			ctx, cancel := context.WithTimeout(t.Context(), budget)
			_, _ = e.Recheck(ctx)
			cancel()
			expect.AtLeast(t, fmt.Sprintf("the workspaces that were looked at after %d audits", round+1), len(source.read), want)
			if round == 0 { // otherwise the test shows nothing
				expect.AtMost(t, "the workspaces of one audit", len(source.read), all-1)
			}
		}
	})
}

// EVX-17: operators see which subscriptions a catalog would end before they use it, and that check ends none.
func TestWhatACatalogWouldEnd(t *testing.T) {
	for name, c := range map[string]struct {
		change []string
		revoke bool
		used   bool // already
		before bool // none is in use: the database is of a version before
		want   string
	}{
		"a member that is required":        {change: []string{payload, required}, want: "would end 2 live webhook subscriptions: 2 in workspace default because ci.build_finished changed incompatibly (the payload schema changes at /required (ok));"},
		"the same, which is in use":        {change: []string{payload, required}, used: true},
		"the same, after a version before": {change: []string{payload, required}, before: true, want: "would end 2 live webhook subscriptions"},
		"an event type that is gone":       {change: []string{"ci.build_finished", "ci.renamed"}, want: "2 in workspace default because the event type ci.build_finished was removed"},
		"no webhooks":                      {change: []string{buildType, pushOnly}, want: "because ci.build_finished is not delivered by webhook"},
		"a rule that is not met":           {change: []string{buildType, restricted}, want: "because access was revoked"},
		"an addition":                      {change: []string{payload, optional}},
		"nothing":                          {},
		"a key that is gone":               {change: []string{payload, optional}, before: true, revoke: true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			keys := &roster{[]auth.Principal{r.principal()}}
			r.directory = keys
			plain, events := r.register("event://ci/build-finished"), r.subscribe()
			if c.revoke {
				keys.keys = nil
			}
			cat := expect.Value(catalog.Parse([]byte(strings.NewReplacer(c.change...).Replace(testCatalog))))(t)
			if c.used {
				r.change(c.change...)
			}
			if c.before {
				r.catalogs = catalog.Workspaces{}
			}
			endings := expect.Value(r.terminator(mortal{r.db, r}, r.services).CountEndings(t.Context(), catalog.NewStatic(cat)))(t)
			got := ""
			if err := lifecycle.EndingsError(endings); err != nil {
				got = err.Error()
			}
			if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if !r.served(plain.ID) || !r.served(events.ID) {
				t.Error("asking has ended a subscription")
			}
		})
	}
}

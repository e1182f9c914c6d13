package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// replays records replays. They fail while err is set.
type replays struct {
	after   []int64
	resumed int
	err     error
}

func (r *replays) Reactivate(context.Context, *Subscription) error {
	r.resumed++
	return nil
}

func (r *replays) Replay(_ context.Context, _ *Subscription, after int64) (bool, error) {
	r.after = append(r.after, after)
	return false, r.err
}

func TestAReplayThatWasCutOffIsRepeated(t *testing.T) {
	f := newFixture(t, Options{})
	r := &replays{err: errors.New("the queue does not answer")}
	f.Replay = r
	from := f.clock.Add(-time.Hour).UnixMicro()
	request := SubscribeRequest{
		Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`), Cursor: f.Sealer.Seal("default", eventlog.Cursor{At: from}),
	}
	expect.Error(t, "a subscription whose replay fails", expect.ErrOf(f.trySubscribe(request)))
	r.err = nil
	for range 3 { // the client tries again, and refreshes later on
		f.subscribe(request)
	}
	if len(r.after) != 2 || r.after[1] != from {
		t.Errorf("replayed after %v, want a failure and a success from %d", r.after, from)
	}
}

// TestAReplayFromAQuietLogIsNoGap: EVX-07, the end of a log without events seems to be older than the log's retention.
func TestAReplayFromAQuietLogIsNoGap(t *testing.T) {
	for name, tc := range map[string]struct {
		quiet, later time.Duration // since the last event, and after the suspension
		empty, want  bool
	}{
		"an empty log":                   {empty: true},
		"an empty log, an hour later":    {empty: true, later: time.Hour},
		"a quiet log":                    {quiet: 48 * time.Hour, later: time.Hour},
		"a log with a recent event":      {later: time.Hour},
		"a suspension of the retention":  {quiet: time.Hour, later: 25 * time.Hour, want: true},
		"an empty log for the retention": {empty: true, later: 25 * time.Hour, want: true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{AllowNoExpiry: true})
			r := &replays{}
			f.Replay, f.Log.Now = r, f.Now
			if !tc.empty {
				expect.OK(t, f.Log.Notify(t.Context(), "default", "any", nil))
			}
			f.clock = time.Now().Add(tc.quiet)
			request := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`), TTL: TTL{Asked: true, Forever: true}}
			id := f.subscribe(request).ID
			check := func(when string, want bool) {
				t.Helper()
				r.after = nil
				expect.Equal(t, when+": truncated", f.subscribe(request).Truncated, want)
				expect.Equal(t, when+": replays", len(r.after), 1)
			}
			expect.OK(t, f.Suspend(t.Context(), "default", alice.ID, id, f.resumed()))
			f.clock = f.clock.Add(tc.later)
			r.err = errors.New("the queue does not answer")
			expect.True(t, "a refresh fails with its replay", expect.ErrOf(f.trySubscribe(request)) != nil)
			r.err = nil
			check("the refresh", tc.want)
			expect.OK(t, expect.ErrOf(f.Disable(t.Context(), "default", alice.ID, id, "x", f.resumed())))
			check("another subscription", false)
		})
	}
}

// TestARefreshAfterTheURITemplateChanged refreshes a subscription before the recheck ends it.
func TestARefreshAfterTheURITemplateChanged(t *testing.T) {
	for arguments, keys := range map[string]struct{ old, moved string }{
		`{"owner":"acme","repo":"app"}`: {"event://github/acme/app/push", "event://gh/acme/app/push"},
		`{"owner":"acme"}`:              {"event://github/acme/*/push", "event://gh/acme/*/push"},
	} {
		f := newFixture(t, Options{})
		r := &replays{}
		f.Replay = r
		watermark := f.clock.Add(-time.Minute).UnixMicro()
		request := SubscribeRequest{Arguments: json.RawMessage(arguments)}
		counts := func(key string) [2]int {
			t.Helper()
			return [2]int{HeaderCount(f.headers(key)[0]), len(f.subscribers(key))}
		}
		check := func(when string, old, moved int) {
			t.Helper()
			for key, want := range map[string]int{keys.old: old, keys.moved: moved} {
				expect.Equal(t, fmt.Sprintf("%s: the count of subscribers of %s, and their number", when, key), counts(key), [2]int{want, want})
			}
		}
		first := f.subscribe(SubscribeRequest{
			Arguments: request.Arguments, Cursor: f.Sealer.Seal("default", eventlog.Cursor{At: watermark}),
		})
		r.after = nil
		f.Service.Catalog.(*catalog.Static).Replace(parse(t, strings.ReplaceAll(patternCatalog, "event://github/", "event://gh/")))

		second := f.subscribe(request)
		check("EVX-08 after the refresh", 0, 1)
		if second.ID != first.ID || !second.Refreshed {
			t.Errorf("EVX-08 the refresh answered %+v, want a refresh of %s", second, first.ID)
		}
		expect.Equal(t, "EVX-11 replays after a change", len(r.after), 1)
		f.subscribe(request)
		check("EVX-08 after another refresh", 0, 1)
		expect.Equal(t, "EVX-11 replays after another refresh", len(r.after), 1)
		expect.OK(t, f.Unsubscribe(t.Context(), alice, "github.push", request.Arguments, "https://chat.example/cb"))
		check("EVX-08 after the unsubscribe", 0, 0)
		expect.OK(t, expect.ErrOf(f.Subscribe(t.Context(), bob, SubscribeRequest{Name: "github.push", Arguments: request.Arguments, URL: "https://b.example/", Secret: "whsec_b"})))
		check("EVX-08 after another principal subscribed", 0, 1)
	}
}

// TestACursorFromBeforeAPatternWasReadIsAGap: EVX-07, in the answer to a subscription.
func TestACursorFromBeforeAPatternWasReadIsAGap(t *testing.T) {
	f := newFixture(t, Options{})
	r := &replays{}
	f.Replay = r
	f.Log.Now = f.Now
	expect.OK(t, f.Log.Notify(t.Context(), "default", "any", nil)) // so that the log has an end
	sub := func(at time.Time) *SubscribeResult {
		t.Helper()
		return f.subscribe(SubscribeRequest{
			Arguments: json.RawMessage(`{"owner":"a"}`), Cursor: f.Sealer.Seal("default", eventlog.Cursor{At: at.UnixMicro()}),
		})
	}
	expect.True(t, "truncated, because the log has no events of the pattern", sub(f.clock.Add(-time.Hour)).Truncated)
	expect.OK(t, f.Unsubscribe(t.Context(), alice, "github.push", json.RawMessage(`{"owner":"a"}`), "https://chat.example/cb"))
	began := f.clock
	f.clock = f.clock.Add(time.Hour)
	expect.True(t, "no gap is announced where the log has everything", !sub(began).Truncated)
}

// A poll of a wildcard stops at a segment of a later release in one shard and continues in the others. Its cursor then has a separate
// position for that shard, and a webhook that continues from the cursor gets everything after that position.
func TestASubscriptionFromACursorThatIsFurtherInSomeShards(t *testing.T) {
	f := newFixture(t, Options{})
	r := &replays{}
	f.Replay = r
	f.Log.Now = f.Now
	expect.OK(t, expect.ErrOf(f.Log.RecordInterest(t.Context(), "default", "event://github/a/*/push", f.clock.Add(time.Hour))))
	polled := f.clock.Add(time.Minute).UnixMicro()
	behind := polled - time.Second.Microseconds()
	f.clock = f.clock.Add(time.Hour)
	shard := eventlog.PatternPartitions("default", "event://github/a/*/push")[5]
	f.subscribe(SubscribeRequest{
		Arguments: json.RawMessage(`{"owner":"a"}`),
		Cursor:    f.Sealer.Seal("default", eventlog.Cursor{At: polled, Places: []eventlog.Place{f.Sealer.PlaceOf(shard, behind)}}),
	})
	expect.List(t, "EVX-26: the starts of the replays", r.after, []int64{behind})
}

// TestACursorOlderThanTheClientWantsIsAGap: EVX-07, by maxAgeMs of a subscription.
func TestACursorOlderThanTheClientWantsIsAGap(t *testing.T) {
	f := newFixture(t, Options{})
	f.Replay = &replays{}
	f.Log.Now = f.Now
	began := f.clock
	f.clock = f.clock.Add(time.Hour)
	for maxAge, want := range map[time.Duration]bool{0: false, 2 * time.Hour: false, 30 * time.Minute: true} {
		got, err := f.trySubscribe(SubscribeRequest{
			Arguments: json.RawMessage(fmt.Sprintf(`{"owner":"a","repo":"r%d"}`, maxAge)), MaxAge: maxAge,
			Cursor: f.Sealer.Seal("default", eventlog.Cursor{At: began.UnixMicro()}),
		})
		if err != nil || got.Truncated != want {
			t.Errorf("a cursor of an hour ago, at most %v old: %+v, %v", maxAge, got, err)
		}
	}
}

func TestTheSweepComesBackForWhatEndsLaterInTheMinute(t *testing.T) {
	f := newFixture(t, Options{})
	f.Store.QuotaOf = quotaOf(1)
	f.clock = f.clock.Truncate(time.Minute).Add(30 * time.Second)
	got := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`), TTL: TTL{Asked: true, For: time.Minute}})
	swept := 0
	for _, at := range []time.Duration{-10 * time.Second, 50 * time.Second} {
		f.clock = got.RefreshBefore.Add(at)
		swept += expect.Value(f.Sweep(t.Context()))(t)
	}
	expect.Equal(t, "subscriptions that were swept", swept, 1)
	f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"c"}`)}) // ended subscriptions do not count toward the quota
}

// headers returns the stored headers of patterns, including expired ones.
func (f *fixture) headers(keys ...string) (stored []*store.Item) {
	f.t.Helper()
	for _, key := range keys {
		stored = append(stored, expect.Value(f.db.Get(f.t.Context(), HeaderKey("default", key)))(f.t)...)
	}
	return stored
}

func TestHeadersOfUnusedPatternsExpire(t *testing.T) {
	f := newFixture(t, Options{})
	f.clock = time.Now()
	const pattern = "event://github/acme/app/push"
	register := func() string {
		return URI(f.register(alice, RegisterRequest{URIs: []string{pattern}, Target: "https://a.example/hook"}).Subscription.ID)
	}
	end := func(uri string) {
		t.Helper()
		expect.OK(t, f.Deregister(t.Context(), alice, uri))
	}
	one, two := register(), register()
	end(one)
	if h := f.headers(pattern)[0]; HeaderCount(h) != 1 || h.Expires.Before(f.clock.AddDate(100, 0, 0)) {
		t.Fatalf("the header of a pattern with a subscriber is %+v", h)
	}
	end(two)
	h := f.headers(pattern)[0]
	if HeaderCount(h) != 0 || h == nil || h.Expires.IsZero() || h.Expires.After(f.clock.Add(time.Hour)) {
		t.Fatalf("the header of an empty pattern is %+v, want one that expires soon", h)
	}
	three := register() // before it expired
	if h := f.headers(pattern)[0]; HeaderCount(h) != 1 || h.Expires.Before(f.clock.AddDate(100, 0, 0)) {
		t.Errorf("the header that is used again is %+v", h)
	}
	f.clock = time.Now().Add(-time.Hour)
	end(three)
	if h := f.headers(pattern)[0]; h != nil {
		t.Errorf("got the header %+v after its expiry, want none", h)
	}
	f.clock = time.Now()
	register()
	expect.Equal(t, "the count of the header after another registration", HeaderCount(f.headers(pattern)[0]), 1)
}

// TestRegistrationsAreLimited: AUT-07.
func TestRegistrationsAreLimited(t *testing.T) {
	f := newFixture(t, Options{Rate: NewRate(quota.FixedLimit(2))})
	register := func(p auth.Principal) error {
		_, err := f.Register(t.Context(), p, RegisterRequest{URIs: []string{build}, Target: "https://a.example/hook"})
		return err
	}
	r := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`)}
	for range 10 { // refreshes count
		f.subscribe(r)
	}
	for range 10 {
		expect.OK(t, register(alice))
	}
	_, err := f.trySubscribe(r)
	for name, err := range map[string]error{"register": register(alice), "subscribe": err} {
		data, ok := fault.DataOf(err).(quota.RetryAfter)
		if !fault.Is(err, fault.Exhausted) || !ok || data.LimitName() != "registrationRate" || data.Max != 2 || data.Seconds != 1 || !strings.Contains(err.Error(), "2 registrations per second") {
			t.Errorf("AUT-07 %s: got %v, %+v", name, err, fault.DataOf(err))
		}
	}
	expect.OK(t, register(bob)) // another principal has its own rate
	// An end is never refused.
	expect.OK(t, f.Unsubscribe(t.Context(), alice, "github.push", r.Arguments, "https://chat.example/cb"))
	f.clock = f.clock.Add(time.Second)
	expect.OK(t, register(alice)) // a second later
}

// OPS-06: the switch of an ended subscription does not stay in the store. An operator's switch stays as long as the entry of the ended
// subscription, and pauses the subscription if it is made again.
func TestSweepSwitches(t *testing.T) {
	for name, tc := range map[string]struct {
		by              switches.Switch
		ends, makeAgain bool
		after           time.Duration
		removed         int
		paused          bool
	}{
		"OPS-06 a pause stays while its subscription exists":  {switches.Switch{Owner: "alice"}, false, false, 0, 0, true},
		"OPS-06 an owner's ends with the subscription":        {switches.Switch{Owner: "alice"}, true, false, 0, 1, false},
		"OPS-06 an owner's is not kept for a new one":         {switches.Switch{Owner: "alice"}, true, true, 0, 1, false},
		"OPS-06 an operator's waits for the subscription":     {switches.Switch{Owner: "alice", Operator: true}, true, false, EndedKept - 2*time.Hour, 0, false},
		"OPS-06 an operator's is kept for a new one":          {switches.Switch{Owner: "alice", Operator: true}, true, true, 0, 0, true},
		"OPS-06 an operator's does not wait for ever":         {switches.Switch{Owner: "alice", Operator: true}, true, false, EndedKept + time.Hour, 1, false},
		"OPS-06 an operator's of the previous version stays":  {switches.Switch{Operator: true}, true, false, EndedKept - 2*time.Hour, 0, false},
		"OPS-06 an operator's of the previous version goes":   {switches.Switch{Operator: true}, true, false, EndedKept + time.Hour, 1, false},
		"OPS-06 the previous version's of a live one remains": {switches.Switch{}, false, false, 0, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, Options{AllowNoExpiry: true})
			set := &switches.Set{DB: f.db, Now: func() time.Time { return f.clock }}
			f.Registrar.Switches, f.Sweeper.Switches = set, set
			request := SubscribeRequest{Arguments: json.RawMessage(`{"owner":"acme"}`), TTL: TTL{Asked: true, Forever: true}}
			id := f.subscribe(request).ID
			tc.by.Name = switches.SubscriptionSwitch(id)
			expect.OK(t, expect.ErrOf(f.SetPaused(t.Context(), "default", "alice", id, true, set.PauseOps("default", tc.by)...)))
			expect.OK(t, set.Pause(t.Context(), "default", switches.Switch{Name: switches.All, Operator: true}))
			if tc.ends {
				expect.OK(t, f.End(t.Context(), "default", "alice", id))
			}
			if tc.makeAgain {
				f.subscribe(request)
			}
			if tc.after > EndedKept { // the store has removed the entry of the ended subscription
				expect.OK(t, f.ForgetEnded(t.Context(), "default", "alice", id))
			}
			f.clock = f.clock.Add(tc.after).Truncate(time.Hour).Add(time.Minute)
			expect.Equal(t, "the switches removed between two hours", expect.Value(f.SweepSwitches(t.Context()))(t), 0)
			f.clock = f.clock.Add(-time.Minute)
			expect.Equal(t, "the number of removed switches", expect.Value(f.SweepSwitches(t.Context()))(t), tc.removed)
			sub := expect.Value(f.Service.Find(t.Context(), "default", id))(t)
			expect.Equal(t, "whether the subscription is paused", sub != nil && sub.Paused != 0, tc.paused)
			left, _, err := set.List(t.Context(), "default", "", 10)
			expect.OK(t, err)
			expect.Equal(t, "the switches that are left", len(left), 2-tc.removed)
		})
	}
}

// OPS-11: a note stays while an endpoint of its origin fails, and is removed afterwards.
func TestSweepNotes(t *testing.T) {
	f := newFixture(t, Options{AllowNoExpiry: true})
	set := &switches.Set{DB: f.db, Now: func() time.Time { return f.clock }}
	f.Sweeper.Switches = set
	f.clock = f.clock.Truncate(time.Hour)
	sub := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"acme"}`), TTL: TTL{Asked: true, Forever: true}})
	found := expect.Value(f.Service.Find(t.Context(), "default", sub.ID))(t)
	failing, healthy := OriginOf(found.Target.URL), "https://healthy.example"
	for _, origin := range []string{failing, healthy} {
		expect.OK(t, set.SetNote(t.Context(), "default", switches.Note{Origin: origin, Text: "asked them", By: "op"}))
	}
	left := func(status Status, want string) {
		t.Helper()
		expect.OK(t, f.db.Write(t.Context(), store.Put(status.Encode("default", sub.ID))))
		expect.Equal(t, "the number of removed notes", expect.Value(f.SweepSwitches(t.Context()))(t), 1)
		notes, _, err := set.ListNotes(t.Context(), "default", "", 10)
		expect.OK(t, err)
		got := ""
		for _, n := range notes {
			got += n.Origin
		}
		expect.Equal(t, "the origins with a note", got, want)
	}
	left(Status{FailedSince: f.clock}, failing)
	left(Status{LastDelivery: f.clock}, "")
}

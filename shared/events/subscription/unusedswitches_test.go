package subscription

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
			tc.by.Name = switches.Subscription(id)
			_, err := f.SetPaused(t.Context(), "default", "alice", id, true, set.PauseOps("default", tc.by)...)
			expect.OK(t, err)
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
			removed, err := f.SweepSwitches(t.Context())
			if removed != 0 || err != nil {
				t.Errorf("between two hours: got %d, %v", removed, err)
			}
			f.clock = f.clock.Add(-time.Minute)
			removed = expect.Value(f.SweepSwitches(t.Context()))(t)
			expect.Equal(t, "the number of removed switches", removed, tc.removed)
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
		removed := expect.Value(f.SweepSwitches(t.Context()))(t)
		expect.Equal(t, "the number of removed notes", removed, 1)
		notes, _, err := set.Notes(t.Context(), "default", "", 10)
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

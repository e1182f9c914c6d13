package subscription

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"mcpevents/shared/eventlog"
	"mcpevents/shared/fault"
	"mcpevents/shared/store"
)

// replays counts what is replayed, and fails while it is told to.
type replays struct {
	after   []int64
	resumed int
	err     error
}

func (r *replays) Resume(context.Context, *Subscription) error {
	r.resumed++
	return nil
}

func (r *replays) Replay(_ context.Context, _ *Subscription, after int64) (bool, error) {
	r.after = append(r.after, after)
	return false, r.err
}

func TestAReplayThatWasCutOffIsMadeUpFor(t *testing.T) {
	f := newFixture(t, Options{})
	r := &replays{err: errors.New("the queue does not answer")}
	f.Replay = r
	from := f.clock.Add(-time.Hour).UnixMicro()
	request := SubscribeRequest{
		Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`), Cursor: f.Sealer.Seal("default", eventlog.Cursor{At: from}),
	}
	if _, err := f.subscribe(request); err == nil {
		t.Fatal("subscribed although nothing could be replayed")
	}
	r.err = nil
	for range 3 { // the client tries again, and refreshes later on
		if _, err := f.subscribe(request); err != nil {
			t.Fatal(err)
		}
	}
	if len(r.after) != 2 || r.after[1] != from {
		t.Errorf("replayed after %v, want a failure and a success from %d", r.after, from)
	}
}

func TestACursorFromBeforeAPatternWasReadIsAGap(t *testing.T) {
	f := newFixture(t, Options{})
	r := &replays{}
	f.Replay = r
	f.Log.Now = f.Now
	sub := func(at time.Time) *SubscribeResult {
		t.Helper()
		got, err := f.subscribe(SubscribeRequest{
			Arguments: json.RawMessage(`{"owner":"a"}`), Cursor: f.Sealer.Seal("default", eventlog.Cursor{At: at.UnixMicro()}),
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if !sub(f.clock.Add(-time.Hour)).Truncated {
		t.Error("the log has nothing of the pattern for an hour, and nobody was told")
	}
	if err := f.Unsubscribe(t.Context(), alice, "github.push", json.RawMessage(`{"owner":"a"}`), "https://chat.example/cb"); err != nil {
		t.Fatal(err)
	}
	began := f.clock
	f.clock = f.clock.Add(time.Hour)
	if sub(began).Truncated {
		t.Error("a gap was told where the log has everything")
	}
}

func TestTheSweepComesBackForWhatEndsLaterInTheMinute(t *testing.T) {
	f := newFixture(t, Options{Quota: 1})
	f.clock = f.clock.Truncate(time.Minute).Add(30 * time.Second)
	got, err := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"b"}`), TTL: TTL{Asked: true, For: time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	swept := 0
	for _, at := range []time.Duration{-10 * time.Second, 50 * time.Second} {
		f.clock = got.RefreshBefore.Add(at)
		n, err := f.Sweep(t.Context(), f.clock.Truncate(time.Minute), 5)
		if err != nil {
			t.Fatal(err)
		}
		swept += n
	}
	if swept != 1 {
		t.Errorf("swept %d, want 1", swept)
	}
	if _, err := f.subscribe(SubscribeRequest{Arguments: json.RawMessage(`{"owner":"a","repo":"c"}`)}); err != nil {
		t.Errorf("what has ended still takes the principal's quota: %v", err)
	}
}

// unsure applies a transaction and loses its answer.
type unsure struct {
	store.DB
	lose bool
}

func (u *unsure) Write(ctx context.Context, ops ...store.Op) error {
	err := u.DB.Write(ctx, ops...)
	if err == nil && u.lose && len(ops) > 1 {
		u.lose = false
		return fault.New(fault.Unavailable, "no answer")
	}
	return err
}

func TestCountersAreNeverTooLow(t *testing.T) {
	f := newFixture(t, Options{})
	f.DB = &unsure{DB: f.db, lose: true}
	if _, err := f.Register(t.Context(), alice, RegisterRequest{URIs: []string{build}, Target: "https://a.example/hook"}); err == nil {
		t.Fatal("registered without an answer of the store")
	}
	if n := len(f.subscribers(build)); n != 1 { // it compares with the header
		t.Errorf("%d subscribers", n)
	}
}

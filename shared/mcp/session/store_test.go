package session_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

var alice = auth.Principal{ID: "alice", Workspace: "default"}

// hooked is a store that calls functions before it reads or writes.
type hooked struct {
	store.DB
	query func(store.Query) error
	write func([]store.Op) error
}

func (h *hooked) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if h.query != nil {
		if err := h.query(q); err != nil {
			return store.Page{}, err
		}
	}
	return h.DB.Query(ctx, q)
}

func (h *hooked) Write(ctx context.Context, ops ...store.Op) error {
	if h.write != nil {
		if err := h.write(ops); err != nil {
			return err
		}
	}
	return h.DB.Write(ctx, ops...)
}

// inBubble runs a test over a store in memory, with a clock that moves only while everything waits.
func inBubble(t *testing.T, test func(*testing.T, *hooked, *session.Store)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1}))(t)
		defer db.Close()
		h := &hooked{DB: db}
		test(t, h, &session.Store{DB: h, MaxURIs: 10})
	})
}

// run runs a subtest in a bubble.
func run(t *testing.T, name string, test func(*testing.T, *hooked, *session.Store)) {
	t.Run(name, func(t *testing.T) { inBubble(t, test) })
}

// create makes a session and uses it once.
func create(t *testing.T, s *session.Store) *session.Session {
	t.Helper()
	return load(t, s, createUnused(t, s).ID)
}

func createUnused(t *testing.T, s *session.Store) *session.Session {
	t.Helper()
	return expect.Value(s.Create(t.Context(), session.Session{Workspace: alice.Workspace, Principal: alice.ID}))(t)
}

func load(t *testing.T, s *session.Store, id string) *session.Session {
	t.Helper()
	return expect.Value(s.Load(t.Context(), id, alice, false))(t)
}

func subscribe(t *testing.T, s *session.Store, sess *session.Session, uri string) {
	t.Helper()
	expect.OK(t, expect.ErrOf(s.Subscribe(t.Context(), sess, session.URI{URI: uri})))
}

// staysSubscribed uses a session once an hour, and checks each time that it is still subscribed.
func staysSubscribed(t *testing.T, s *session.Store, id string, hours int) {
	t.Helper()
	for hour := range hours {
		sess := load(t, s, id)
		uris, err := s.ListSubscriptions(t.Context(), sess.Key)
		if err != nil || len(uris) != 1 {
			t.Fatalf("after %d hours the live session is subscribed to %v, want one URI (error %v)", hour, uris, err)
		}
		time.Sleep(time.Hour)
	}
}

func TestASubscriptionLivesAsLongAsItsSession(t *testing.T) {
	run(t, "SES-01 SES-02 while the session is used every hour", func(t *testing.T, _ *hooked, s *session.Store) {
		made := create(t, s)
		subscribe(t, s, made, "event://ci/deploy")
		staysSubscribed(t, s, made.ID, 100)
	})
	run(t, "SES-02 when another request prolongs the session between reading it and subscribing", func(t *testing.T, _ *hooked, s *session.Store) {
		made := create(t, s)
		time.Sleep(11 * time.Hour)
		slow := load(t, s, made.ID) // more than half of its life is left
		time.Sleep(2 * time.Hour)
		load(t, s, made.ID)
		subscribe(t, s, slow, "event://ci/deploy")
		staysSubscribed(t, s, made.ID, 50)
	})
	run(t, "SES-02 when two requests prolong the session at the same time and the slower one subscribes", func(t *testing.T, h *hooked, s *session.Store) {
		made := create(t, s)
		time.Sleep(13 * time.Hour)
		h.write = func([]store.Op) error {
			h.write = nil
			load(t, s, made.ID)
			return nil
		}
		subscribe(t, s, load(t, s, made.ID), "event://ci/deploy")
		staysSubscribed(t, s, made.ID, 50)
	})
	for _, step := range []string{"the subscriptions are read", "a subscription is written", "the count is written", "the session is written"} {
		run(t, "SES-02 when prolonging the session is interrupted twice, before "+step, func(t *testing.T, h *hooked, s *session.Store) {
			made := create(t, s)
			subscribe(t, s, made, "event://ci/deploy")
			time.Sleep(13 * time.Hour)
			for range 2 {
				down := fault.New(fault.Unavailable, "no answer")
				h.query = func(q store.Query) error {
					if step == "the subscriptions are read" && strings.HasPrefix(q.After, "u#") {
						return down
					}
					return nil
				}
				h.write = func(ops []store.Op) error {
					sort := ops[0].Item.Sort
					if step == "a subscription is written" && strings.HasPrefix(sort, "u#") ||
						step == "the count is written" && sort == "#" || step == "the session is written" && sort == "-" {
						return down
					}
					return nil
				}
				_, _ = s.Load(t.Context(), made.ID, alice, false)
				h.query, h.write = nil, nil
				time.Sleep(5 * time.Hour)
			}
			staysSubscribed(t, s, made.ID, 50)
		})
	}
	run(t, "SES-01 and what is left of an expired session is found by its principal's list", func(t *testing.T, h *hooked, s *session.Store) {
		made := create(t, s)
		subscribe(t, s, made, "event://ci/deploy")
		time.Sleep(session.TTL + time.Hour)
		expect.Equal(t, "the load of the session", expect.ErrOf(s.Load(t.Context(), made.ID, alice, false)), session.ErrNone)
		expect.Equal(t, "the sessions of the list", len(stored(t, h, session.ListKey(alice.Workspace, alice.ID))), 1)
		time.Sleep(session.TTL)
		for _, partition := range []store.Key{session.Partition(made.Key), session.ListKey(alice.Workspace, alice.ID)} {
			expect.Len(t, "the stored items a day later", stored(t, h, partition), 0)
		}
	})
}

func stored(t *testing.T, db store.DB, partition store.Key) []store.Item {
	t.Helper()
	return expect.Value(db.Query(t.Context(), store.Query{Table: partition.Table, Partition: partition.Partition}))(t).Items
}

// A resource belongs to another backend now. Before the session's record is replaced, another request ends the session or unsubscribes
// the URI.
func TestAReplacedSubscriptionOfASessionThatChanges(t *testing.T) {
	const uri = "file:///a"
	start := func(t *testing.T, h *hooked, s *session.Store, change func(*session.Session)) (*session.Session, error) {
		sess := create(t, s)
		expect.OK(t, expect.ErrOf(s.Subscribe(t.Context(), sess, session.URI{URI: uri, Backend: "old"})))
		writes := 0
		h.write = func([]store.Op) error {
			if writes++; writes == 2 { // the one that replaces the record
				h.write = nil
				change(sess)
			}
			return nil
		}
		replaced, err := s.Subscribe(t.Context(), sess, session.URI{URI: uri, Backend: "new"})
		expect.True(t, "no record is replaced", replaced == nil)
		return sess, err
	}
	run(t, "it ends", func(t *testing.T, h *hooked, s *session.Store) {
		sess, err := start(t, h, s, func(sess *session.Session) {
			expect.OK(t, h.DB.Write(t.Context(), store.Delete(session.Partition(sess.Key)))) // the first write of Remove
		})
		expect.Is(t, "the error", err, session.ErrNone)
		left := expect.Value(s.Remove(t.Context(), sess))(t)
		expect.Equal(t, "the backend of the record that is left", left[0].Backend, "old")
	})
	run(t, "it is unsubscribed", func(t *testing.T, h *hooked, s *session.Store) {
		sess, err := start(t, h, s, func(sess *session.Session) { expect.OK(t, s.Unsubscribe(t.Context(), sess, uri)) })
		expect.OK(t, err)
		now := expect.Value(s.FindSubscription(t.Context(), sess, uri))(t)
		expect.True(t, "the session is subscribed at the new backend", now != nil && now.Backend == "new")
	})
}

func TestTakeOver(t *testing.T) {
	takeOver := func(t *testing.T, s *session.Store, sess *session.Session, connection string, before, begun bool) {
		t.Helper()
		got, err := s.TakeOver(t.Context(), sess, connection)
		if want := (session.EarlierStreams{Exists: before, Begun: begun}); err != nil || got != want {
			t.Errorf("stream %s found the earlier stream %+v, %v; want %+v", connection, got, err, want)
		}
	}
	begins := func(t *testing.T, s *session.Store, sess *session.Session, connection string) {
		t.Helper()
		expect.OK(t, s.RecordStreamBegun(t.Context(), sess, connection))
	}
	isNewest := func(t *testing.T, s *session.Store, sess *session.Session, connection string, want bool) {
		t.Helper()
		if served, err := s.ReloadForStream(t.Context(), sess, connection); err != nil || (served != nil) != want {
			t.Errorf("stream %s is the newest: %v, want %v (error %v)", connection, served != nil, want, err)
		}
	}
	run(t, "SES-03 a stream that did not begin leaves the events since the subscribe to the next one", func(t *testing.T, _ *hooked, s *session.Store) {
		sess := create(t, s)
		takeOver(t, s, sess, "a", false, false)
		takeOver(t, s, sess, "b", true, false)
		begins(t, s, sess, "a") // too late, because b has taken over
		takeOver(t, s, sess, "c", true, false)
		begins(t, s, sess, "c")
		isNewest(t, s, sess, "c", true)
		takeOver(t, s, sess, "d", true, true)
		isNewest(t, s, sess, "c", false)
		isNewest(t, s, sess, "d", true)
	})
	run(t, "SES-04 of two streams that take over at the same time, one finds the other", func(t *testing.T, h *hooked, s *session.Store) {
		sess := create(t, s)
		h.write = func([]store.Op) error {
			h.write = nil
			takeOver(t, s, sess, "quicker", false, false)
			return nil
		}
		takeOver(t, s, sess, "slower", true, false)
		isNewest(t, s, sess, "quicker", false)
		isNewest(t, s, sess, "slower", true)
	})
	run(t, "SES-03 a stream that begins while another takes over is not overlooked", func(t *testing.T, h *hooked, s *session.Store) {
		sess := create(t, s)
		takeOver(t, s, sess, "a", false, false)
		h.write = func([]store.Op) error {
			h.write = nil
			begins(t, s, sess, "a")
			return nil
		}
		takeOver(t, s, sess, "b", true, true)
	})
	run(t, "SES-03 a stream that an earlier release opened has begun", func(t *testing.T, h *hooked, s *session.Store) {
		sess := create(t, s)
		key := session.Partition(sess.Key)
		key.Sort = "stream"
		expect.OK(t, h.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte("old"), Expires: time.Now().Add(time.Hour)})))
		takeOver(t, s, sess, "new", true, true)
	})
}

func TestASessionThatIsNeverUsedExpiresSoon(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *hooked, s *session.Store) {
		used, unused := create(t, s), createUnused(t, s)
		time.Sleep(11 * time.Minute)
		load(t, s, used.ID)
		expect.Is(t, "AUT-07: the unused session, 11 minutes after initialize", expect.ErrOf(s.Load(t.Context(), unused.ID, alice, false)), session.ErrNone)
	})
}

// surplus checks which session of a principal is surplus, and returns it. nil stands for none.
func surplus(t *testing.T, s *session.Store, p auth.Principal, want *session.Session) *session.Session {
	t.Helper()
	got, err := s.FindSurplus(t.Context(), p)
	if err != nil || (got == nil) != (want == nil) || want != nil && got.Key != want.Key {
		t.Fatalf("AUT-07: surplus is %+v (error %v), want %+v", got, err, want)
	}
	return got
}

func TestASessionInUseIsNotSurplus(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *hooked, s *session.Store) {
		s.Max = func(context.Context, auth.Principal) int { return 3 }
		used := create(t, s)
		time.Sleep(time.Hour)
		idle := create(t, s)
		for range 9 * 60 {
			time.Sleep(time.Minute)
			load(t, s, used.ID)
		}
		create(t, s)
		surplus(t, s, alice, idle) // unused for nine hours
	})
}

func TestExpiredSessionsDoNotCount(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *hooked, s *session.Store) {
		s.Max = func(context.Context, auth.Principal) int { return 3 }
		create(t, s)
		for range 2 {
			createUnused(t, s)
		}
		time.Sleep(6 * time.Minute) // the unused ones expire
		surplus(t, s, alice, nil)   // only one session still exists
	})
}

func TestTheSessionThatWasUnusedForLongestIsSurplus(t *testing.T) {
	inBubble(t, func(t *testing.T, _ *hooked, s *session.Store) {
		s.Max = func(context.Context, auth.Principal) int { return 3 }
		var made []*session.Session
		for range 3 {
			surplus(t, s, alice, nil)
			made = append(made, create(t, s))
			time.Sleep(time.Minute)
		}
		time.Sleep(13 * time.Hour)
		load(t, s, made[0].ID) // prolonged
		expect.OK(t, expect.ErrOf(s.Remove(t.Context(), surplus(t, s, alice, made[1]))))
		expect.Is(t, "the removed session", expect.ErrOf(s.Load(t.Context(), made[1].ID, alice, false)), session.ErrNone)
		surplus(t, s, auth.Principal{ID: "anonymous", Workspace: alice.Workspace, Anonymous: true}, nil) // without authentication
	})
}

package admin_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/operate/audit"
	"github.com/mcp-events/mcpevents/shared/operate/erase"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// scrubbed is a faulty store that can still be scrubbed.
type scrubbed struct{ *storetest.Faulty }

func (s scrubbed) Scrub(ctx context.Context) error { return store.Scrub(ctx, s.DB) }

// OPS-07 WHK-21: each call of the store fails once, before or after its writes. An erasure that is repeated after that leaves no data of
// the principal in the files.
func TestARepeatedEraseLeavesNothing(t *testing.T) {
	var o standalone.Options
	f := start(t, func(with *standalone.Options) { o = *with })
	paused := f.subscribe("alice", "/secret-path-a", built)
	ended := f.subscribe("alice", "/secret-path-b", built)
	killed := f.subscribe("alice", "/secret-path-c", "event://incidents/web/created")
	bobs := f.subscribe("bob", "/bob", built)
	f.answerWith(413)
	f.publish(built, "evt_dead")
	expect.Eventually(f, "the dead letters", func() bool { return len(f.list("op", "dead-letters").Items) == 3 })
	f.answerWith(500)
	f.publish(built, "evt_waits")
	expect.Eventually(f, "the failures", func() bool { return len(f.list("op", "deliveries?outcome=failed").Items) >= 6 })
	f.call("op", "POST", "subscriptions/"+paused+"/pause", `{"reason":"alice asked"}`, 200, nil)
	f.call("op", "DELETE", "subscriptions/"+ended, "", 204, nil)
	expect.OK(t, f.s.Shutdown(t.Context()))
	stored := expect.Value(sqlite.Open(filepath.Join(o.Data, "mcpevents.db"), sqlite.Options{}))(t)
	dead := &storetest.Faulty{DB: stored, At: 2, Late: true, Dies: true} // the process dies right after it has ended the subscription
	service := &subscription.Service{Store: subscription.Store{DB: dead, Log: slog.New(slog.DiscardHandler)}}
	expect.True(t, "an interrupted deregistration", service.End(t.Context(), "default", "alice", killed) != nil)
	expect.Equal(t, "the subscriptions in the lists", expect.Value((&subscription.Lists{DB: stored}).CountStates(t.Context(), "default", 100))(t)[subscription.Active], 2)
	expect.OK(t, stored.Close())
	whole := expect.Value(os.ReadFile(filepath.Join(o.Data, "mcpevents.db")))(t)
	// The queue is in the same file, and its messages name the subscriptions. A server discards them.
	queued := regexp.MustCompile(`{"v":1,"ws":"default","pr":"alice","sub":"sub_[0-9a-f]+"`)
	for _, late := range []bool{false, true} {
		for at := 1; ; at++ {
			name := filepath.Join(t.TempDir(), "copy.db")
			expect.OK(t, os.WriteFile(name, whole, 0o600))
			file := expect.Value(sqlite.Open(name, sqlite.Options{}))(t)
			faulty := &storetest.Faulty{DB: file, At: at, Late: late}
			db := scrubbed{faulty}
			log := slog.New(slog.DiscardHandler)
			subscriptions := &subscription.Service{Store: subscription.Store{DB: db, Log: log}, Catalog: catalog.NewStored(db, nil, nil, nil), Log: &eventlog.Log{DB: db}}
			operations := deadletter.NewOperations(deadletter.Options{DB: db, Log: log})
			e := &erase.Eraser{
				DB: db, Subscriptions: subscriptions, Lists: &subscription.Lists{DB: db}, Operations: operations,
				Replays: &deadletter.Replays{Operations: operations, Subscriptions: subscriptions},
				Trail:   &audit.Trail{DB: db},
			}
			var errs []error
			for {
				done, err := e.Erase(t.Context(), "default", "alice", false)
				if err == nil && done.Complete {
					break
				}
				if errs = append(errs, err); len(errs) == 3 {
					t.Fatal(errs)
				}
			}
			calls := faulty.Calls
			when := fmt.Sprintf("late %v, call %d, %v", late, at, errors.Join(errs...))
			left := expect.Value((&subscription.Lists{DB: file}).CountStates(t.Context(), "default", 100))(t)
			expect.Equal(t, when+": the subscriptions that are left", left[subscription.Active], 1)
			expect.True(t, when+": bob's subscription", expect.Value((&subscription.Service{Store: subscription.Store{DB: file}}).Find(t.Context(), "default", bobs))(t) != nil)
			expect.OK(t, file.Close())
			raw := queued.ReplaceAll(expect.Value(os.ReadFile(name))(t), nil)
			for _, text := range []string{"alice", paused, ended, killed, "secret-path"} {
				for rest, n := raw, 0; n < 3; n++ {
					i := bytes.Index(rest, []byte(text))
					if i < 0 {
						break
					}
					if from := rest[max(0, i-11):i]; text != "alice" || !bytes.HasSuffix(from, []byte("principal: ")) {
						t.Errorf("%s: %q is left: %.80q", when, text, rest[max(0, i-60):min(len(rest), i+20)])
					}
					rest = rest[i+1:]
				}
			}
			if calls < at {
				break
			}
		}
	}
}

// withoutEvents is a store in which the events of the log cannot be read.
type withoutEvents struct{ store.DB }

func (w withoutEvents) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if strings.Contains(q.Partition, "event://") {
		return store.Page{}, context.DeadlineExceeded
	}
	return w.DB.Query(ctx, q)
}

// OPS-07: if the log is too large to be read in one request, an erasure still deletes all of the principal's other data.
func TestAnErasureThatCannotReadTheWholeLog(t *testing.T) {
	file := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	defer func() { _ = file.Close() }()
	db := withoutEvents{file}
	consents := conversation.ConsentsKey("default", "alice")
	expect.OK(t, file.Write(t.Context(), store.Put(store.Item{Key: consents, Value: []byte(`{}`)})))
	log := slog.New(slog.DiscardHandler)
	subscriptions := &subscription.Service{Store: subscription.Store{DB: db, Log: log}, Log: &eventlog.Log{DB: db}}
	operations := deadletter.NewOperations(deadletter.Options{DB: db, Log: log})
	trail := &audit.Trail{DB: db}
	expect.OK(t, trail.Do(t.Context(), "default", audit.Entry{By: "op", Action: "subscription.pause", Target: "alice"}, func() error { return nil }))
	e := &erase.Eraser{
		DB: db, Subscriptions: subscriptions, Lists: &subscription.Lists{DB: db}, Operations: operations,
		Replays: &deadletter.Replays{Operations: operations, Subscriptions: subscriptions}, Trail: trail,
	}
	_, err := e.Erase(t.Context(), "default", "alice", false)
	expect.True(t, "the erasure says that it is not complete", err != nil)
	left := expect.Value(store.One(t.Context(), file, consents, "read the consent"))(t)
	expect.True(t, "the consent is erased", left == nil)
	text := expect.Value(file.Contains(t.Context(), []byte(`"alice"`)))(t)
	expect.True(t, "the audit trail has a pseudonym", !text)
}

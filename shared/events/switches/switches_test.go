package switches_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// gone is a store that can become unavailable.
type gone struct {
	store.DB
	err error
}

func (g *gone) Query(ctx context.Context, q store.Query) (store.Page, error) {
	if g.err != nil {
		return store.Page{}, g.err
	}
	return g.DB.Query(ctx, q)
}

// OPS-06, WHK-22: an instance sees what another one paused within five seconds, even if it has read the switches just
// before.
func TestAnotherInstanceSeesASwitch(t *testing.T) {
	db := expect.Value(sqlite.Open(filepath.Join(t.TempDir(), "db"), sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	clock := func() time.Time { return now }
	reach := &gone{DB: db}
	operator, dispatcher := &switches.Set{DB: db, Now: clock}, &switches.Set{DB: reach, Now: clock}
	paused := func(want switches.Name) {
		t.Helper()
		expect.Equal(t, fmt.Sprint("the switch at ", now), expect.Value(dispatcher.FindPaused(t.Context(), "default", "a.b", "https://a.example"))(t), want)
	}
	for _, name := range []switches.Name{switches.All, switches.EventSwitch("a.b"), switches.OriginSwitch("https://a.example")} {
		paused("")
		expect.OK(t, operator.Pause(t.Context(), "default", switches.Switch{Name: name, By: "op"}))
		now = now.Add(4900 * time.Millisecond)
		paused(name)
		expect.OK(t, expect.ErrOf(operator.Resume(t.Context(), "default", name)))
		now = now.Add(4900 * time.Millisecond)
	}
	paused("")
	t.Run("OPS-06 an instance that cannot read the switches continues for less than five seconds and then fails", func(t *testing.T) {
		reach.err = fault.New(fault.Unavailable, "gone")
		now = now.Add(3 * time.Second)
		paused("")
		now = now.Add(1900 * time.Millisecond)
		if _, err := dispatcher.FindPaused(t.Context(), "default", "a.b", ""); !errors.Is(err, reach.err) {
			t.Errorf("got %v", err)
		}
	})
}

// slow is a store whose queries take two seconds and then fail.
type slow struct{ store.DB }

func (slow) Query(context.Context, store.Query) (store.Page, error) {
	time.Sleep(2 * time.Second)
	return store.Page{}, fault.New(fault.Unavailable, "gone")
}

func (slow) Write(context.Context, ...store.Op) error { return nil }

func TestGivenAStoreThatIsSlowAndFailsWhenManyCallersWaitForTheSwitchesThenTheyShareItsError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &switches.Set{DB: slow{}}
		began := time.Now()
		var calls sync.WaitGroup
		for i := range 50 {
			calls.Go(func() {
				time.Sleep(time.Duration(i) * time.Millisecond)
				expect.Fault(t, "a read while the store fails", expect.ErrOf(set.FindPaused(t.Context(), "default", "a.b", "")), fault.Unavailable)
			})
		}
		calls.Wait()
		expect.AtMost(t, "the time that the calls took", time.Since(began), 5*time.Second)
	})
}

func TestGivenAReadOfTheSwitchesThatHangsThenItHoldsUpOnlyItsOwnWorkspace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := &switches.Set{DB: slow{}}
		began := time.Now()
		var calls sync.WaitGroup
		find := func(workspace string, limit, want time.Duration) {
			calls.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				defer cancel()
				_, err := set.FindPaused(ctx, workspace, "a.b", "")
				if took := time.Since(began); !fault.Is(err, fault.Unavailable) || took != want {
					t.Errorf("got %v after %v in %s, want an error after %v", err, took, workspace, want)
				}
			})
			synctest.Wait()
		}
		find("default", time.Minute, 2*time.Second)
		find("other", time.Minute, 2*time.Second)
		find("default", time.Second, time.Second) // its caller does not wait longer
		calls.Wait()
	})
}

// A pause that this process made acts immediately. So if the switches cannot be read again, those from before the pause are not used.
func TestGivenAPauseOfThisProcessWhenTheSwitchesCannotBeReadThenNothingIsSent(t *testing.T) {
	db := expect.Value(sqlite.Open(filepath.Join(t.TempDir(), "db"), sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	reach := &gone{DB: db}
	set := &switches.Set{DB: reach}
	expect.Equal(t, "the switch", expect.Value(set.FindPaused(t.Context(), "default", "a.b", ""))(t), "")
	expect.OK(t, set.Pause(t.Context(), "default", switches.Switch{Name: switches.All, By: "op"}))
	reach.err = fault.New(fault.Unavailable, "gone")
	if n, err := set.FindPaused(t.Context(), "default", "a.b", ""); !errors.Is(err, reach.err) {
		t.Errorf("got %q and %v, want the store's error", n, err)
	}
	reach.err = nil
	expect.Equal(t, "the switch", expect.Value(set.FindPaused(t.Context(), "default", "a.b", ""))(t), switches.All)
}

func TestNames(t *testing.T) {
	for text, want := range map[string]switches.Name{
		"all":                           "all",
		"event/a.b":                     "event/a.b",
		"origin/https://a.example:8443": "origin/https://a.example:8443",
		"origin/https:/a.example":       "origin/https://a.example", // as some proxies rewrite it
		"origin/http://[::1]:9000":      "origin/http://[::1]:9000",
		"subscription/sub_1":            "subscription/sub_1",
		"origin/foo":                    "",
		"origin/a.example":              "",
		"origin/https://a.example/":     "",
		"origin/https://a.example/hook": "",
		"origin/https://me@a.example":   "",
		"origin/ftp://a.example":        "",
		"origin/https://A.example":      "",
		"origin/https://a.example:443":  "",
		"origin/":                       "",
		"nothing/x":                     "",
	} {
		got, err := switches.Parse(text)
		if got != want || (want == "") != fault.Is(err, fault.Invalid) {
			t.Errorf("OPS-06 %s: got %q, %v, want %q", text, got, err, want)
		}
	}
}

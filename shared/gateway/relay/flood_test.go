package relay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/demand/intake"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-22: a backend that sends gaps, positions or malformed messages as fast as it can is read no faster than the limits.
func TestFloodsOfABackend(t *testing.T) {
	t.Run("gaps", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			gaps := 0
			e := &receiver{
				Events:  &Events{Intake: intake.Intake{Gap: func(context.Context, string, string) error { gaps++; return nil }}},
				backend: &follower{Backend: named{}}, limit: rate.NewLimiter(eventRate, eventBurst),
			}
			for began := time.Now(); time.Since(began) < time.Second; {
				expect.OK(t, e.announceGap(t.Context(), "event://~b/x/e30"))
			}
			if most := (eventRate+eventBurst)/gapCost + 1; gaps > most {
				t.Errorf("got %d gaps in a second, want at most %d", gaps, most)
			}
		})
	})
	t.Run("lines of a stream", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			const lines = 10 * lineBurst
			body := io.NopCloser(strings.NewReader(strings.Repeat(":\n", lines)))
			began := time.Now()
			n := expect.Value(io.Copy(io.Discard, limitedStream{body, t.Context(), rate.NewLimiter(lineRate, lineBurst)}))(t)
			expect.Equal(t, "the bytes", int(n), 2*lines)
			if took, least := time.Since(began), 15*time.Second; took < least {
				t.Errorf("%d lines took %s, want at least %s", lines, took, least)
			}
		})
	})
	t.Run("lines of the log", func(t *testing.T) {
		var text strings.Builder
		log := limitLog(slog.New(slog.NewTextHandler(&text, nil))).With("name", "x")
		for range 1000 {
			log.Warn("server reported an error")
		}
		if n := strings.Count(text.String(), "\n"); n < logBurst || n > logBurst+5 {
			t.Errorf("got %d lines, want about %d", n, logBurst)
		}
	})
	t.Run("changes of its event types", func(t *testing.T) {
		e, lists := newListing(t, `{"events":[]}`)
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		go func() {
			for ctx.Err() == nil {
				select {
				case e.backend.typesChanged <- struct{}{}:
				case <-ctx.Done():
				}
			}
		}()
		_ = e.run(ctx, catalog.BackendTypes{}) // ends with ctx
		if n := int(lists.Load()); n > changeBurst+3 {
			t.Errorf("the relay read the list %d times, want about %d", n, changeBurst)
		}
	})
	t.Run("event types that cannot be used", func(t *testing.T) {
		bad := fmt.Sprintf(`{"name":"../x","description":%q},`, strings.Repeat("x", 4000))
		e, lists := newListing(t, `{"events":[`+strings.Repeat(bad, maxListed/4000)+`{"name":"."}],"nextCursor":"more"}`)
		expect.OK(t, e.list(t.Context(), catalog.BackendTypes{}))
		expect.Equal(t, "the pages", int(lists.Load()), 1)
	})
}

// dropping is a backend whose messages are dropped silently.
type dropping struct{ named }

func (dropping) Client() *upstream.Client {
	return &upstream.Client{Dropped: func(context.Context, string) {}}
}

// newListing returns a receiver for a backend whose pages of event types are all the same, and how many it has sent.
func newListing(t *testing.T, page string) (*receiver, *atomic.Int32) {
	t.Helper()
	lists := &atomic.Int32{}
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		lists.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"jsonrpc":"2.0","id":1,"result":`+page+`}`)
	}))
	t.Cleanup(backend.Close)
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	t.Cleanup(func() { _ = db.Close() })
	c := expect.Value(client.Connect(t.Context(), backend.URL, client.Options{Revision: string(spec.V20260728)}))(t)
	return &receiver{
		Events: &Events{
			Intake: intake.Intake{Demand: demand.New(db)}, Configured: func(context.Context) ([]api.Backend, error) { return nil, nil },
			Changed: func(context.Context) error { return nil },
		},
		relay: &Relay{DB: db, Log: slog.New(slog.DiscardHandler)}, client: c, version: spec.V20260728,
		backend: &follower{Backend: dropping{}, typesChanged: make(chan struct{}, 1)},
	}, lists
}

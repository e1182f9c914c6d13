package property

import (
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/delivery"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMain(m *testing.M) {
	slog.SetDefault(quiet) // these tests make requests fail on purpose
	os.Exit(m.Run())
}

// number reads a whole number from the environment.
func number(name string, otherwise uint64) uint64 {
	n, err := strconv.ParseUint(os.Getenv(name), 10, 64)
	if err != nil {
		return otherwise
	}
	return n
}

// schedules plays random schedules until a time is over, or as many as the environment says.
func schedules(t *testing.T, budget time.Duration, play func(t *testing.T, seed uint64) ([]string, []string, figures)) {
	t.Helper()
	n := number("MCPEVENTS_TEST_SCHEDULES", 0)
	seed := number("MCPEVENTS_TEST_SEED", 0)
	if seed != 0 {
		n = max(n, 1)
	} else {
		seed = rand.Uint64() >> 16
	}
	var all figures
	failed := 0
	began := time.Now()
	for i := uint64(0); failed < 3; i++ {
		if n > 0 && i == n || n == 0 && time.Since(began) > budget {
			break
		}
		problems, trace, did := play(t, seed+i)
		all.add(did)
		if len(problems) > 0 {
			failed++
			t.Errorf("MCPEVENTS_TEST_SEED=%d: %d problems:\n%s\nthe schedule:\n%s", seed+i, len(problems), strings.Join(problems[:min(len(problems), 20)], "\n"), strings.Join(trace, "\n"))
		}
	}
	t.Logf("%s, in %v", all, time.Since(began).Round(time.Millisecond))
	if all.events == 0 || all.returned == 0 {
		t.Errorf("the schedules show nothing: %s", all)
	}
}

func limits(l *config.Limits) {
	l.EventsSchedule = []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second}
	l.Heartbeat, l.StreamMaxAge = 2*time.Second, 20*time.Second
}

var standalone = setup{
	round: 5 * time.Second, limits: limits,
	attempts: delivery.Options{Concurrency: 64, Patience: 2 * time.Second, Detached: 256, Bytes: 32 << 20},
}

var bubbled = scale{
	worst: busy, length: 20 * time.Second, gap: 1200 * time.Millisecond, naps: 2 * time.Second, every: 3 * time.Second,
	patience: 20 * time.Minute, linger: 20 * time.Minute, idle: 12 * time.Second, publishers: 3, followers: 6, webhooks: 3, reuse: true, faults: true,
}

func TestEveryEventReachesEverySubscriber(t *testing.T) {
	inBubble := func(s setup, k scale) func(*testing.T, uint64) ([]string, []string, figures) {
		return func(t *testing.T, seed uint64) (problems, trace []string, did figures) {
			synctest.Test(t, func(t *testing.T) { problems, trace, did = play(t, s, k, seed) })
			return problems, trace, did
		}
	}
	t.Run("EVX-26 EVX-11 stand-alone, random schedules", func(t *testing.T) {
		schedules(t, 6*time.Second, inBubble(standalone, bubbled))
	})
	t.Run("EVX-26 EVX-11 instances with clocks a second apart, writers stamp, random schedules", func(t *testing.T) {
		s := standalone
		s.instances, s.skew = 3, time.Second
		// Without a delay the frozen clock would give hundreds of entries the same stamp, which no real clock does.
		s.delay = func() time.Duration { return time.Duration(rand.Int64N(int64(30 * time.Millisecond))) }
		s.shared = func(t *testing.T) store.DB {
			db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
			return storetest.Unordered{DB: db}
		}
		s.attempts = delivery.Options{Concurrency: 64}
		schedules(t, 5*time.Second, inBubble(s, bubbled))
	})
	t.Run("EVX-26 EVX-11 stand-alone, real time", func(t *testing.T) {
		k := scale{
			worst: slow, length: 2 * time.Second, gap: 10 * time.Millisecond, naps: 20 * time.Millisecond, every: 400 * time.Millisecond,
			patience: 6 * time.Minute, linger: 100 * time.Millisecond, idle: time.Second, publishers: 4, followers: 8, webhooks: 2,
		}
		s := standalone
		s.round = time.Second
		schedules(t, 2*time.Second, func(t *testing.T, seed uint64) ([]string, []string, figures) { return play(t, s, k, seed) })
	})
}

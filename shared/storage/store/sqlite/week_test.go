package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
)

// A week with an event every 18 seconds to one subscriber, the log kept for a day and records for two, and one hour in
// which forty times as many come: the file stays within a small multiple of what lives, and shrinks after the burst.
func TestTheFileIsBoundedOverAWeek(t *testing.T) {
	var clock wallClock
	clock.us.Store(1_800_000_000_000_000)
	path := filepath.Join(t.TempDir(), "events.db")
	db := open(t, path, Options{SweepEvery: -1, Engine: engine.Options{Now: clock.now}})
	const perHour, burst, value = 200, 8000, 500
	n := 0
	hour := func(events int) {
		var ops []store.Op
		for range events {
			n++
			logged := store.Item{Key: store.Key{Table: store.Log, Partition: fmt.Sprint("u#", n%10), Sort: store.AtCommit}}
			record := store.Item{Key: store.Key{Table: store.Deliveries, Partition: fmt.Sprintf("r#%016x", rand.IntN(1000)*7919), Sort: fmt.Sprintf("%016d", n)}}
			logged.Value, record.Value = make([]byte, value), make([]byte, value)
			logged.Expires, record.Expires = clock.now().Add(24*time.Hour), clock.now().Add(48*time.Hour)
			ops = append(ops, store.Put(logged), store.Put(record))
		}
		if err := db.WriteAll(context.Background(), ops...); err != nil {
			t.Fatal(err)
		}
		clock.us.Add(time.Hour.Microseconds())
		if err := db.clean(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	read := func(sql string) (n int64) {
		err := db.engine.Read(context.Background(), func(c *engine.Conn) (err error) { n, err = c.Int(sql); return err })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	size := func() int64 { return read("PRAGMA page_count") * read("PRAGMA page_size") }
	live := func() int64 {
		return read("SELECT (SELECT count(*) FROM log) + (SELECT count(*) FROM deliveries)") * value
	}
	var most int64
	for h := range 7 * 24 {
		events := perHour
		if h == 3*24 {
			events = burst
		}
		hour(events)
		if h > 24 {
			if got := size(); 2*got > 5*live() {
				t.Fatalf("hour %d: %d bytes for %d that live", h, got, live())
			}
		}
		most = max(most, size())
		if h%24 == 23 {
			t.Logf("day %d: file %.1f MB, values %.1f MB", h/24+1, float64(size())/1e6, float64(live())/1e6)
		}
	}
	if got := size(); got > 2*live() || got > most*3/4 {
		t.Errorf("%d bytes at the end for %d that live, %d after the burst", got, live(), most)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() > most*3/4 {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
}

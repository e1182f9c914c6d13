package eventlog

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"reflect"
	"runtime"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

func sealer(t testing.TB, fill byte) *Sealer {
	t.Helper()
	return expect.Value(NewSealer(bytes.Repeat([]byte{fill}, 32)))(t)
}

func TestCursor(t *testing.T) {
	s := sealer(t, 1)
	many := make([]uint64, MaxSent+20)
	for i := range many {
		many[i] = uint64(i)
	}
	for _, c := range []Cursor{{}, {At: 1}, {At: 1 << 60, Sent: []uint64{7, 1 << 63}}, {At: 5, Sent: many}} {
		got := expect.Value(s.Open("default", s.Seal("default", c)))(t)
		expect.Equal(t, "the position", got.At, c.At)
		expect.List(t, "the sent events", got.Sent, c.Sent[:min(len(c.Sent), MaxSent)])
	}
	t.Run("EVX-07 with positions of partitions", func(t *testing.T) {
		c := Cursor{At: 5, Given: 9, Last: 3, Sent: many[:MaxSent]}
		for i := range MaxPlaces {
			c.Places = append(c.Places, s.PlaceOf(OwnPartition("default", fmt.Sprint(i)), int64(100+i)))
		}
		token := s.Seal("default", c)
		got, err := s.Open("default", token)
		if err != nil || !reflect.DeepEqual(got, c) || len(token) > maxToken {
			t.Errorf("%d bytes: got %+v, %v, want %+v", len(token), got, err, c)
		}
		for uri, want := range map[string]int64{"0": 100, "15": 115, "16": 5} {
			expect.Equal(t, fmt.Sprintf("the start in %s", uri), s.PositionIn(got, OwnPartition("default", uri)), want)
		}
	})
	t.Run("EVX-07 tokens of earlier releases are read", func(t *testing.T) {
		for token, want := range map[string]Cursor{
			"AQAGCiQYHkAAAAAAAAAAAAEAAAAAAAAAAhknqx2JbwFlpi0bb-KbJ-A": {At: 1700000000000000, Sent: []uint64{1, 2}},
			"AgAGCiQYHkAAAAWvMQekAAAAAAAAAAAAA4EEQYjxvzhIii6p1tEGbMs": {At: 1700000000000000, Last: 1600000000000000, Sent: []uint64{3}},
		} {
			expect.Deep(t, "the cursor", expect.Value(s.Open("default", token))(t), want)
		}
	})
	token := s.Seal("default", Cursor{At: 1700000000000000, Sent: []uint64{1, 2}})
	expect.AtMost(t, "the bytes of a token", len(token), 1024)
	t.Run("EVX-07 a foreign cursor is refused", func(t *testing.T) {
		for name, open := range map[string]func() (Cursor, error){
			"of another workspace":  func() (Cursor, error) { return s.Open("other", token) },
			"of another deployment": func() (Cursor, error) { return sealer(t, 2).Open("default", token) },
			"empty":                 func() (Cursor, error) { return s.Open("default", "") },
			"with padding":          func() (Cursor, error) { return s.Open("default", token+"=") },
			"with a line break":     func() (Cursor, error) { return s.Open("default", token+"\n") },
		} {
			expect.Fault(t, name, expect.ErrOf(open()), fault.Invalid)
		}
	})
	t.Run("EVX-07 every changed bit is noticed", func(t *testing.T) {
		raw := expect.Value(base64.RawURLEncoding.DecodeString(token))(t)
		for i := range len(raw) * 8 {
			raw[i/8] ^= 1 << (i % 8)
			if _, err := s.Open("default", base64.RawURLEncoding.EncodeToString(raw)); err == nil {
				t.Fatalf("bit %d", i)
			}
			raw[i/8] ^= 1 << (i % 8)
		}
	})
}

func FuzzCursor(f *testing.F) {
	s := sealer(f, 1)
	f.Add(s.Seal("default", Cursor{At: 1, Sent: []uint64{1}}))
	f.Add("AQ")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := s.Open("default", token)
		if err == nil && s.Seal("default", c) != token {
			t.Fatalf("%q opens to what seals otherwise", token)
		}
	})
}

// measured is a store that notes the largest heap at the beginning of a query.
type measured struct {
	store.DB
	largest uint64
}

func (m *measured) Query(ctx context.Context, q store.Query) (store.Page, error) {
	m.largest = max(m.largest, heap())
	return m.DB.Query(ctx, q)
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestReadingAParentWithLargeEvents(t *testing.T) {
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
	defer db.Close()
	m := &measured{DB: db}
	log := &Log{DB: m, Retention: 1e12}
	payload := append(append([]byte(`"`), bytes.Repeat([]byte("x"), 200<<10)...), '"')
	for i := range maxChildren {
		uri := fmt.Sprintf("event://large/%02d", i)
		var events []event.Event
		for n := range 5 {
			at := log.Time()
			events = append(events, event.Event{Workspace: "default", ID: fmt.Sprintf("%d_%d", i, n), URI: uri, Data: payload, Published: at})
		}
		expect.OK(t, log.RecordChild(t.Context(), "default", uri))
		for _, e := range events {
			expect.OK(t, expect.ErrOf(log.Append(t.Context(), "default", uri, []event.Event{e}, nil)))
		}
	}
	before := heap()
	m.largest = 0
	latest := expect.Value(log.LatestBelow(t.Context(), "default", "event://large", 20, func(string) (bool, bool) { return true, false }))(t)
	size := 0
	for _, e := range latest {
		size += len(e.Data)
	}
	expect.AtMost(t, "AUT-06 the bytes, at most", size, LatestBytes)
	expect.AtLeast(t, "AUT-06 the bytes, at least", size, LatestBytes-len(payload))
	expect.Equal(t, "the URI of the newest event", latest[len(latest)-1].URI, "event://large/49")
	expect.AtMost(t, "AUT-06 the bytes that it held while it read", m.largest-before, 8*LatestBytes)
}

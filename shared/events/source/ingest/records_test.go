package ingest_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	otel "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// unordered makes a store behave like DynamoDB where code asks whether writes are ordered.
type unordered struct{ store.DB }

func (unordered) Stamps() bool { return false }
func (unordered) Local() bool  { return false }

// recorded records an outcome at each of the times, and returns the records that were kept.
func recorded(t *testing.T, db store.DB, keep string, kind ingest.Kind, times ...time.Time) []ingest.Record {
	t.Helper()
	r := ingest.NewRecords(db, keep, nil, nil)
	for _, at := range times {
		r.Record(t.Context(), ingest.Outcome{Time: at, Workspace: "default", Source: "github", Kind: kind})
	}
	return listed(t, db, ingest.RecordQuery{})
}

func listed(t *testing.T, db store.DB, ask ingest.RecordQuery) []ingest.Record {
	t.Helper()
	commit(t, db)
	list, _, err := ingest.ListRecords(t.Context(), db, "default", "github", ask, "", 1000)
	expect.OK(t, err)
	return list
}

// commit makes the store commit its pending unhurried writes.
func commit(t *testing.T, db store.DB) {
	t.Helper()
	expect.OK(t, db.Write(t.Context(), store.Put(store.Item{Key: store.Key{Table: store.Deliveries, Partition: "commit", Sort: "commit"}})))
}

func open(t *testing.T) store.DB {
	t.Helper()
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{Engine: engine.Options{Now: func() time.Time { return noon }}}))(t)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// every returns n times, each one step after the previous one.
func every(step time.Duration, n int) []time.Time {
	all := make([]time.Time, n)
	for i := range all {
		all[i] = noon.Add(time.Duration(i) * step)
	}
	return all
}

func TestRecords(t *testing.T) {
	const ms = time.Millisecond
	for _, x := range []struct {
		name, keep string
		file       bool
		kind       ingest.Kind
		times      []time.Time
		kept       int
		omitted    int64 // by the newest record
	}{
		{"SRC-03 a flood of unmatched requests is ten records, and then one per second with the count of the others", "all", false, ingest.Unmatched, every(ms, 1010), 11, 990},
		{"SRC-05 a flood of unsigned requests is limited in the same way", "failures", true, ingest.Unverified, every(ms, 1010), 11, 990},
		{"SRC-04 when only failures are kept, accepted events are one record per minute", "failures", false, ingest.Accepted, every(time.Second, 121), 3, 59},
		{"SRC-04 when only failures are kept, duplicates are one record per minute", "", false, ingest.Duplicate, every(time.Second, 61), 2, 59},
		{"SRC-04 all of it is in a file that keeps all", "all", true, ingest.Accepted, every(ms, 500), 500, 0},
		{"SRC-04 on AWS that is as bounded as the rest", "all", false, ingest.Accepted, every(ms, 1010), 11, 990},
		{"SRC-04 when nothing is kept, there are no records", "none", true, ingest.Unfit, every(ms, 3), 0, 0},
	} {
		t.Run(x.name, func(t *testing.T) {
			db := open(t)
			under := db
			if !x.file {
				db = unordered{db}
			}
			got := recorded(t, db, x.keep, x.kind, x.times...)
			if len(got) != x.kept || x.kept > 0 && got[0].Omitted != x.omitted {
				t.Errorf("kept %d, want %d; the newest is %+v", len(got), x.kept, got[:min(1, len(got))])
			}
			page, err := under.Query(t.Context(), store.Query{Table: store.Deliveries, Partition: "so#default#github"})
			for _, it := range page.Items {
				if it.Expires.Before(noon.Add(7*24*time.Hour)) || it.Expires.After(noon.Add(8*24*time.Hour)) {
					t.Errorf("one expires at %v, %v", it.Expires, err)
				}
			}
		})
	}
	t.Run("SRC-05 the records of a flood from many sources are limited in total", func(t *testing.T) {
		db := unordered{open(t)}
		r := ingest.NewRecords(db, "", nil, nil)
		n := 0
		for i := range 100 {
			name := strings.Repeat("s", i+1)
			for range 100 {
				r.Record(t.Context(), ingest.Outcome{Time: noon, Workspace: "default", Source: name, Kind: ingest.Invalid})
			}
			commit(t, db)
			list, _, err := ingest.ListRecords(t.Context(), db, "default", name, ingest.RecordQuery{}, "", 100)
			if n += len(list); err != nil {
				t.Fatal(err)
			}
		}
		expect.Equal(t, "records of 10,000", n, 50)
	})
}

func TestListRecords(t *testing.T) {
	db := open(t)
	r := ingest.NewRecords(db, "all", nil, nil)
	for i, kind := range []ingest.Kind{ingest.Accepted, ingest.Unfit, ingest.Accepted, ingest.Unverified, ingest.Unmatched, ingest.Accepted} {
		r.Record(t.Context(), ingest.Outcome{
			Time: noon.Add(time.Duration(i) * time.Second), Workspace: "default", Source: "github", Kind: kind, Reason: strings.Repeat("ü", 9000), URI: "event://a", ID: string(kind) + "\xff", Name: "n",
		})
	}
	r.Record(t.Context(), ingest.Outcome{Time: noon, Workspace: "other", Source: "github", Kind: ingest.Limited})
	t.Run("SRC-04 records are listed newest first, with long values cut", func(t *testing.T) {
		all := listed(t, db, ingest.RecordQuery{})
		if len(all) != 6 || !all[0].Time.Equal(noon.Add(5*time.Second)) || len(all[0].Reason) > 510 || all[0].ID != "accepted" || all[0].URI != "event://a" || all[0].Name != "n" {
			t.Errorf("got %+v", all)
		}
	})
	t.Run("SRC-04 records can be selected by kind and time", func(t *testing.T) {
		for _, x := range []struct {
			ask  ingest.RecordQuery
			want int
		}{
			{ingest.RecordQuery{Kind: ingest.Accepted}, 3},
			{ingest.RecordQuery{Kind: ingest.Refused}, 2},
			{ingest.RecordQuery{Kind: ingest.Limited}, 0},
			{ingest.RecordQuery{Since: noon.Add(time.Second), Until: noon.Add(3 * time.Second)}, 3},
		} {
			expect.Equal(t, fmt.Sprintf("records of %+v", x.ask), len(listed(t, db, x.ask)), x.want)
		}
	})
	t.Run("SRC-04 records can be listed page by page, also those of one kind", func(t *testing.T) {
		for _, kind := range []ingest.Kind{"", ingest.Accepted, ingest.Refused} {
			want, before := listed(t, db, ingest.RecordQuery{Kind: kind}), ""
			for i := range want {
				page, next, err := ingest.ListRecords(t.Context(), db, "default", "github", ingest.RecordQuery{Kind: kind}, before, 1)
				if err != nil || len(page) != 1 || page[0] != want[i] {
					t.Errorf("%q: page %d is %+v, %v", kind, i, page, err)
				}
				before = next
			}
			if before != "" {
				page, next, err := ingest.ListRecords(t.Context(), db, "default", "github", ingest.RecordQuery{Kind: kind}, before, 1)
				if err != nil || len(page) != 0 || next != "" {
					t.Errorf("%q: after the last page got %+v %s, %v", kind, page, next, err)
				}
			}
		}
	})
}

// broken is a store that fails all writes.
type broken struct{ store.DB }

func (broken) Write(context.Context, ...store.Op) error {
	return fault.New(fault.Unavailable, "the disk is full")
}

// SRC-03, OPS-12: every outcome is counted, even if it is not recorded or its record cannot be written.
func TestOutcomesAreCounted(t *testing.T) {
	reader := otel.NewManualReader()
	set := expect.Value(metric.NewSet(otel.NewMeterProvider(otel.WithReader(reader))))(t)
	var log bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the client has disconnected
	db := open(t)
	ingest.NewRecords(db, "", set, nil).Record(ctx, ingest.Outcome{Time: noon, Workspace: "default", Source: "github", Kind: ingest.Unfit})
	expect.Equal(t, "SRC-04 the outcomes of a request whose client has disconnected", len(listed(t, db, ingest.RecordQuery{})), 1)
	r := ingest.NewRecords(broken{db}, "all", set, slog.New(slog.NewTextHandler(&log, nil)))
	for _, kind := range []ingest.Kind{ingest.Accepted, ingest.Unmatched, ingest.Unmatched} {
		r.Record(t.Context(), ingest.Outcome{Time: noon, Workspace: "default", Source: "github", Kind: kind})
	}
	if !strings.Contains(log.String(), `msg="source outcome not recorded" source=github outcome=accepted`) {
		t.Errorf("SRC-04 logged: %s", &log)
	}
	var all metricdata.ResourceMetrics
	expect.OK(t, reader.Collect(t.Context(), &all))
	counts := map[string]int64{}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok && strings.HasPrefix(m.Name, "mcpevents_source") {
			for _, p := range sum.DataPoints {
				by, _ := p.Attributes.Get(0)
				counts[m.Name+" "+string(by.Key)+"="+by.Value.AsString()] = p.Value
			}
		}
	}
	for name, want := range map[string]int64{
		metric.SourceRequests + " outcome=accepted": 1, metric.SourceRequests + " outcome=unmatched": 2, metric.SourceRequests + " outcome=unfit": 1, metric.SourceRefused + " source=github": 1,
	} {
		expect.Equal(t, fmt.Sprintf("SRC-03 %s of %v", name, counts), counts[name], want)
	}
}

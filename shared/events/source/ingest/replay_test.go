package ingest_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	otel "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// In each of these sources, the id of the event is in a header that is not signed.
const replayedFile = `sources:
  - name: linear
    verify: {scheme: hmac, secrets: ["env:KEY"], header: X-Sig}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
  - name: timed
    verify: {scheme: hmac, secrets: ["env:KEY"], header: X-Sig, signed: "{timestamp}.{body}", timestamp: X-At}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
  - name: other
    verify: {scheme: hmac, secrets: ["env:KEY"], header: X-Sig, signed: "{header:x-other}.{body}"}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
  - name: stripe
    verify: {scheme: stripe, secrets: ["env:KEY", "env:STANDARD"]}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
  - name: standard
    verify: {scheme: standard-webhooks, secrets: ["env:STANDARD"]}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
`

const standardKey = "0123456789abcdef0123456789abcdef"

// replayed returns a fixture with these sources, and its time in seconds.
func replayed(t *testing.T) (f *fixture, at int64) {
	t.Helper()
	f, _, _ = newFixtureOf(t, catalogFile, replayedFile, map[string]string{
		"env:KEY": sharedSecret, "env:STANDARD": "whsec_" + base64.StdEncoding.EncodeToString([]byte(standardKey)),
	})
	t.Cleanup(f.close)
	return f, f.now.Unix()
}

// signedRequest returns a request that is signed as the source's provider would at the given time, in seconds.
func signedRequest(source, delivery, body string, at int64) *http.Request {
	r := httptest.NewRequest("POST", "http://127.0.0.1/sources/"+source, strings.NewReader(body))
	r.Header.Set("X-Delivery", delivery)
	timed := fmt.Sprintf("%d.%s", at, body)
	switch source {
	case "linear":
		r.Header.Set("X-Sig", signature(sharedSecret, body))
	case "timed":
		r.Header.Set("X-At", fmt.Sprint(at))
		r.Header.Set("X-Sig", signature(sharedSecret, timed))
	case "other":
		r.Header.Set("X-Other", "o")
		r.Header.Set("X-Sig", signature(sharedSecret, "o."+body))
	case "stripe":
		r.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at, signature(sharedSecret, timed)))
	case "standard":
		h := hmac.New(sha256.New, []byte(standardKey))
		fmt.Fprintf(h, "msg_1.%s", timed)
		r.Header.Set("Webhook-Id", "msg_1")
		r.Header.Set("Webhook-Timestamp", fmt.Sprint(at))
		r.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
	}
	return r
}

func TestReplays(t *testing.T) {
	for _, name := range []string{"linear", "timed", "other", "stripe", "standard"} {
		t.Run("SRC-02 "+name+": a replay under another id does not become a second event", func(t *testing.T) {
			f, at := replayed(t)
			f.wants(t, signedRequest(name, "d-1", `{"a":1}`, at), 202, `"d-1"`, ingest.Accepted)
			f.wants(t, signedRequest(name, "d-2", `{"a":1}`, at), 202, `"d-1"`, ingest.Duplicate)
			f.wants(t, signedRequest(name, "d-3", `{"a":2}`, at), 202, `"d-3"`, ingest.Accepted)
		})
		t.Run("SRC-04 "+name+": a redelivery that is signed again is the same event", func(t *testing.T) {
			f, at := replayed(t)
			f.wants(t, signedRequest(name, "d-1", `{"a":1}`, at), 202, `"d-1"`, ingest.Accepted)
			f.wants(t, signedRequest(name, "d-1", `{"a":1}`, at+60), 202, `"d-1"`, ingest.Duplicate)
		})
		t.Run("SRC-04 "+name+": a replay of an unfit document does not become a second dead letter, nor a second event later", func(t *testing.T) {
			f, at := replayed(t)
			for i := range f.Sources.(sources) {
				f.mapping(i).Data, _ = parseValue(`"/body/none"`)
			}
			for _, id := range []string{"d-1", "d-2"} {
				f.wants(t, signedRequest(name, id, `{"a":1}`, at), 422, ``, ingest.Unfit)
			}
			expect.Equal(t, "dead letters", len(f.sent[queue.Dead]), 1)
			_, body := f.letter(t, 0)
			for i := range f.Sources.(sources) {
				f.mapping(i).Data, _ = parseValue(`"/body"`)
			}
			f.read(t, body)
			f.wants(t, signedRequest(name, "d-3", `{"a":1}`, at), 202, `"d-1"`, ingest.Duplicate)
			f.wantEvents(t, "d-1")
		})
	}
	t.Run("SRC-02 a replay with another spelling of the signed time is still a replay", func(t *testing.T) {
		f, at := replayed(t)
		f.wants(t, signedRequest("standard", "d-1", `{"a":1}`, at), 202, `"d-1"`, ingest.Accepted)
		r := signedRequest("standard", "d-2", `{"a":1}`, at)
		r.Header.Set("Webhook-Timestamp", fmt.Sprintf("00%d", at))
		f.wants(t, r, 202, `"d-1"`, ingest.Duplicate)
	})
	t.Run("SRC-02 a replay with only one of two signatures is still a replay", func(t *testing.T) {
		f, at := replayed(t)
		timed := fmt.Sprintf("%d.%s", at, `{"a":1}`)
		standard := "whsec_" + base64.StdEncoding.EncodeToString([]byte(standardKey))
		for i, key := range []string{sharedSecret, standard} {
			r := signedRequest("stripe", fmt.Sprint("d-", i), `{"a":1}`, at)
			r.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at, signature(key, timed)))
			f.wants(t, r, 202, `"d-0"`, []ingest.Kind{ingest.Accepted, ingest.Duplicate}[i])
		}
	})
}

// meanwhile is a publisher that runs a function during its first call.
type meanwhile struct {
	ingest.Publisher
	then func()
}

func (m *meanwhile) Accept(ctx context.Context, p auth.Principal, in []publish.Input) ([]publish.Accepted, error) {
	if then := m.then; then != nil {
		m.then = nil
		then()
	}
	return m.Publisher.Accept(ctx, p, in)
}

func TestConcurrentReplays(t *testing.T) {
	const body = `{"a":1}`
	for name, other := range map[string]func(f *fixture){
		"by this process": func(*fixture) {},
		"by another":      func(f *fixture) { f.Seen = ingest.NewSeen(f.Seen.DB) },
	} {
		// begun runs a function while a request is being accepted.
		begun := func(t *testing.T, then func(f *fixture, at int64)) (f *fixture, at int64) {
			f, at = replayed(t)
			f.Seen = ingest.NewSeen(storetest.Unordered{DB: f.Seen.DB})
			first := f.Seen
			f.Publisher = &meanwhile{f.Publisher, func() {
				other(f)
				then(f, at)
				f.Seen = first
			}}
			return f, at
		}
		t.Run("SRC-02 a replay "+name+" does not become a second event", func(t *testing.T) {
			f, at := begun(t, func(f *fixture, at int64) {
				f.wants(t, signedRequest("timed", "d-2", body, at), 503, `is being accepted under another id`, ingest.Unavailable)
			})
			code, _ := f.answer(t, signedRequest("timed", "d-1", body, at))
			expect.Equal(t, "the status", code, 202)
			other(f)
			f.wants(t, signedRequest("timed", "d-2", body, at), 202, `"d-1"`, ingest.Duplicate)
			f.wantEvents(t, "d-1")
		})
		t.Run("SRC-04 a redelivery "+name+" is accepted, and the queue drops it", func(t *testing.T) {
			f, at := begun(t, func(f *fixture, at int64) {
				f.wants(t, signedRequest("timed", "d-1", body, at), 202, `"d-1"`, ingest.Accepted)
			})
			code, _ := f.answer(t, signedRequest("timed", "d-1", body, at))
			expect.Equal(t, "the status", code, 202)
			if sent := f.sent[queue.Events]; len(sent) != 2 || sent[0].Dedup != sent[1].Dedup {
				t.Errorf("sent %+v", sent)
			}
		})
		t.Run("SRC-05 after a failure "+name+", the request is accepted again", func(t *testing.T) {
			f, at := begun(t, func(f *fixture, _ int64) { f.down = true })
			f.wants(t, signedRequest("timed", "d-1", body, at), 503, ``, ingest.Unavailable)
			f.down = false
			other(f)
			f.wants(t, signedRequest("timed", "d-1", body, at), 202, `"d-1"`, ingest.Accepted)
		})
	}
	t.Run("SRC-05 given a process that died while accepting a request, another process accepts it again, and its replays a minute later", func(t *testing.T) {
		f, at := replayed(t)
		f.Seen = ingest.NewSeen(storetest.Unordered{DB: f.Seen.DB})
		f.Publisher = &meanwhile{f.Publisher, func() {
			f.Seen = ingest.NewSeen(f.Seen.DB)
			f.wants(t, signedRequest("timed", "d-2", body, at), 503, ``, ingest.Unavailable)
			f.now = f.now.Add(2 * time.Minute)
			f.wants(t, signedRequest("timed", "d-2", body, at), 202, `"d-2"`, ingest.Accepted)
			f.down = true
		}}
		code, _ := f.answer(t, signedRequest("timed", "d-1", body, at))
		expect.Equal(t, "the status", code, 503)
		f.Seen, f.down = ingest.NewSeen(f.Seen.DB), false
		f.wants(t, signedRequest("timed", "d-1", body, at), 202, `"d-2"`, ingest.Duplicate) // the first request kept the key that the other one had recorded
	})
	t.Run("SRC-02 a replay of a redelivery does not become a second event", func(t *testing.T) {
		f, at := replayed(t)
		f.wants(t, signedRequest("timed", "d-1", body, at), 202, `"d-1"`, ingest.Accepted)
		f.wants(t, signedRequest("timed", "d-1", body, at+1), 202, `"d-1"`, ingest.Duplicate)
		f.wants(t, signedRequest("timed", "d-2", body, at+1), 202, `"d-1"`, ingest.Duplicate)
		f.wants(t, signedRequest("timed", "d-2", `{"a":2}`, at+1), 202, `"d-2"`, ingest.Accepted) // so its own id is still free
	})
}

var noon = time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)

// recorded records an outcome at each of the times, and returns the records that were kept.
func recorded(t *testing.T, db store.DB, keep string, kind ingest.Kind, times ...time.Time) []ingest.Record {
	t.Helper()
	r := ingest.NewOutcomeLog(db, keep, nil, nil)
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
				db = storetest.Unordered{DB: db}
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
		db := storetest.Unordered{DB: open(t)}
		r := ingest.NewOutcomeLog(db, "", nil, nil)
		n := 0
		for i := range 100 {
			name := strings.Repeat("s", i+1)
			for range 100 {
				r.Record(t.Context(), ingest.Outcome{Time: noon, Workspace: "default", Source: name, Kind: ingest.Invalid})
			}
			commit(t, db)
			list, _, err := ingest.ListRecords(t.Context(), db, "default", name, ingest.RecordQuery{}, "", 100)
			n += len(list)
			expect.OK(t, err)
		}
		expect.Equal(t, "records of 10,000", n, 50)
	})
}

func TestListRecords(t *testing.T) {
	db := open(t)
	r := ingest.NewOutcomeLog(db, "all", nil, nil)
	for i, kind := range []ingest.Kind{ingest.Accepted, ingest.Unfit, ingest.Accepted, ingest.Unverified, ingest.Unmatched, ingest.Accepted} {
		r.Record(t.Context(), ingest.Outcome{
			Time: noon.Add(time.Duration(i) * time.Second), Workspace: "default", Source: "github", Kind: kind, Reason: strings.Repeat("ü", 9000), URI: "event://a", ID: string(kind) + "", Name: "n",
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
	ingest.NewOutcomeLog(db, "", set, nil).Record(ctx, ingest.Outcome{Time: noon, Workspace: "default", Source: "github", Kind: ingest.Unfit})
	expect.Equal(t, "SRC-04 the outcomes of a request whose client has disconnected", len(listed(t, db, ingest.RecordQuery{})), 1)
	r := ingest.NewOutcomeLog(broken{db}, "all", set, slog.New(slog.NewTextHandler(&log, nil)))
	for _, kind := range []ingest.Kind{ingest.Accepted, ingest.Unmatched, ingest.Unmatched} {
		r.Record(t.Context(), ingest.Outcome{Time: noon, Workspace: "default", Source: "github", Kind: kind})
	}
	expect.Contains(t, "SRC-04 the log", log.String(), `msg="source outcome not recorded" source=github outcome=accepted`)
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

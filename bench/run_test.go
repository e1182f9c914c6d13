//go:build !noemulators

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// options measure a few hundred events of a server that is built from here.
func options(t *testing.T) Options {
	t.Helper()
	return Options{
		Shape:    Shape{Events: 300, Batch: 1, Publishers: 4, URIs: 1, Subscribers: 1, Payload: 100},
		Serve:    []string{harness.Binary(t, "./cmd/mcpevents", false), "--log-level", "error", "serve"},
		Receiver: "127.0.0.1:0", Timeout: 2 * time.Minute, Wait: time.Minute,
	}
}

func TestRunMeasuresTheServer(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Options)
	}{
		{"single publishes", func(*Options) {}},
		{"batches over URIs", func(o *Options) { o.Batch, o.URIs = 7, 3 }},
		{"a rate", func(o *Options) { o.Rate, o.URIs = 600, 10 }},
		{"fan-out", func(o *Options) { o.Events, o.Subscribers = 20, 30 }},
		{"batches, received with net/http", func(o *Options) { o.Client, o.Batch = ClientStd, 7 }},
		{"one event at a time", func(o *Options) { o.Events, o.Latency, o.Subscribers = 100, true, 2 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			tc.change(&o)
			report, err := Run(t.Context(), o)
			if err != nil || len(report.Results) != 1 {
				t.Fatalf("got %+v, %v", report, err)
			}
			r := report.Results[0]
			if r.Delivered != int64(o.deliveries()) || r.Lost != 0 || r.Duplicates != 0 || r.Forged != 0 || r.Strange != 0 {
				t.Errorf("got %+v", r)
			}
			l := r.Latency
			if l.P50 <= 0 || l.P50 > l.P90 || l.P90 > l.P99 || l.P99 > l.Max || r.CPUPer10k == nil || *r.SenderCPUPer10k <= 0 || r.PeakRSS == 0 {
				t.Errorf("got %+v", r)
			}
			if rate := float64(o.Rate); rate > 0 && r.PublishedPerSecond > 1.05*rate {
				t.Errorf("published at %.0f a second, not at %d", r.PublishedPerSecond, o.Rate)
			}
			expect.OK(t, report.Err())
		})
	}
}

// TestMemoryOfSlowEndpointsIsBounded publishes as fast as the server accepts events, and at rates at which all attempts that may be
// under way are under way all the time. It does not wait for all deliveries, which takes minutes with such endpoints.
func TestMemoryOfSlowEndpointsIsBounded(t *testing.T) {
	for _, tc := range []struct {
		name         string
		events, rate int
		wait         time.Duration
	}{
		{"a burst of 400 events", 400, 0, 4 * time.Second},
		{"20 events per second", 100, 20, 2 * time.Second},
		{"an event per second", 5, 1, time.Second},
	} {
		t.Run("WHK-26 50 endpoints that take 1.5 s for 238 KB each leave the server under 400 MiB with "+tc.name, func(t *testing.T) {
			const most = 400 << 20
			o := options(t)
			o.Events, o.Rate, o.Wait = tc.events, tc.rate, tc.wait
			o.Publishers, o.Subscribers, o.Payload, o.AnswerDelay = 16, 50, 238_000, 1500*time.Millisecond
			report, err := Run(t.Context(), o)
			if err != nil || len(report.Results) != 1 {
				t.Fatalf("got %+v, %v", report, err)
			}
			r := report.Results[0]
			t.Logf("peak %d MiB, %d deliveries, %.0f events published per second", r.PeakRSS>>20, r.Delivered, r.PublishedPerSecond)
			if r.PeakRSS == 0 || r.PeakRSS >= most {
				t.Errorf("got a peak of %d MiB, want less than %d", r.PeakRSS>>20, most>>20)
			}
			if r.Delivered == 0 || r.Forged != 0 || r.Strange != 0 {
				t.Errorf("got %+v, want deliveries with the right signatures", r)
			}
		})
	}
}

func TestRunMeasuresBesideEndpointsThatHang(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		t.Run(fmt.Sprintf("at other origins, and with net/http: %t", elsewhere), func(t *testing.T) {
			t.Parallel()
			o := options(t)
			if elsewhere {
				o.Client = ClientStd
			}
			o.Events, o.Subscribers, o.Hang, o.HangOrigin, o.Wait = 40, 3, 2, elsewhere, 5*time.Second
			report, err := Run(t.Context(), o)
			if err != nil || len(report.Results) != 2 {
				t.Fatalf("got %+v, %v", report, err)
			}
			without, hanging := report.Results[0], report.Results[1]
			if without.Hanging != 0 || hanging.Hanging != 2 || without.Lost != 0 || hanging.Delivered+hanging.Lost != int64(o.deliveries()) {
				t.Errorf("got %+v\n%+v", without, hanging)
			}
		})
	}
}

// other is another product: it posts published events to the registered endpoints without waiting. It sends the second
// event twice, and drops the third.
type other struct {
	mu      sync.Mutex
	targets []string
	seen    int
}

func (s *other) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var in struct{ Target, Msg string }
	if json.NewDecoder(r.Body).Decode(&in) != nil || r.Header.Get("Authorization") != "Bearer x" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.URL.Path == "/endpoints" {
		s.targets = append(s.targets, in.Target)
		_, _ = io.WriteString(w, `{"secret":"whsec_`+strings.Repeat("A", 43)+`="}`)
		return
	}
	s.seen++
	times := map[int]int{2: 2, 3: 0}
	n, special := times[s.seen]
	if !special {
		n = 1
	}
	for range n {
		for _, target := range s.targets {
			resp, err := http.Post(target, "application/json", strings.NewReader(`{"message":{"id":"`+in.Msg+`"}}`))
			if err == nil {
				_ = resp.Body.Close()
			}
		}
	}
}

func TestRunMeasuresAnotherSenderByTheSameReceiver(t *testing.T) {
	sender := &other{}
	s := httptest.NewServer(sender)
	defer s.Close()
	headers := map[string]string{"Authorization": "Bearer x"}
	o := options(t)
	o.Events, o.Batch, o.Subscribers, o.Wait = 100, 10, 2, time.Second
	o.Adapters = []Adapter{{
		Name:     "other",
		Publish:  Request{URL: s.URL + "/messages?topic={{uri}}", Headers: headers, Body: `{"msg":"{{id}}","data":{{payload}}}`},
		Register: &Request{URL: s.URL + "/endpoints", Headers: headers, Body: `{"target":"{{target}}","topic":"{{uri}}"}`},
		Received: Received{Pointer: "/message/id"},
	}}
	report, err := Run(t.Context(), o)
	if err != nil || len(report.Results) != 2 {
		t.Fatalf("got %+v, %v", report, err)
	}
	ours, theirs := report.Results[0], report.Results[1]
	if ours.Lost != 0 || ours.Duplicates != 0 || ours.Delivered != 200 {
		t.Errorf("got %+v", ours)
	}
	if theirs.Sender != "other" || theirs.Lost != 2 || theirs.Duplicates != 2 || theirs.Delivered != 198 || theirs.SenderCPU != nil {
		t.Errorf("got %+v", theirs)
	}
	expect.Error(t, "the report's error", report.Err(), "other: 2 of 200 deliveries did not arrive")

	// The report says so in each of its forms.
	var out, svg, js bytes.Buffer
	expect.OK(t, errors.Join(report.WriteText(&out), report.WriteSVG(&svg), report.WriteJSON(&js)))
	if !strings.Contains(out.String(), "lost               2 of 200\n  duplicates         2") {
		t.Errorf("got %s", &out)
	}
	var read Report
	if err := json.Unmarshal(js.Bytes(), &read); err != nil || read.Shape != o.Shape || read.Results[1].Lost != 2 {
		t.Errorf("got %s, %v", &js, err)
	}
	text := svg.String()
	for d := xml.NewDecoder(&svg); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"mcp-events, ", "other, ", "2 lost", "p99.9"} {
		expect.Contains(t, "the chart", text, want)
	}
}

func TestRunReportsWrongSignatures(t *testing.T) {
	s := httptest.NewServer(&other{})
	defer s.Close()
	headers := map[string]string{"Authorization": "Bearer x"}
	r := expect.Value(newReceiver("127.0.0.1:0", ClientOwn))(t)
	defer r.close()
	o := options(t)
	o.Events, o.Publishers, o.Wait = 10, 1, 100*time.Millisecond
	report := newReport(o)
	a := Adapter{
		Name: "unsigned", Publish: Request{URL: s.URL, Headers: headers, Body: `{"msg":"{{id}}"}`}, Secret: "/secret",
		Register: &Request{URL: s.URL + "/endpoints", Headers: headers, Body: `{"target":"{{target}}"}`}, Received: Received{Pointer: "/message/id"},
	}
	expect.OK(t, o.measure(t.Context(), r, a, &report))
	if report.Results[0].Forged == 0 || report.Err() == nil {
		t.Errorf("got %+v", report.Results[0])
	}
}

func TestRunEndsWhenPublishingFails(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }))
	defer s.Close()
	o := options(t)
	o.Server = s.URL
	_, err := Run(context.Background(), o)
	expect.Error(t, "the error", err, "429")
}

func TestSourceMeasuresBesidePublishing(t *testing.T) {
	t.Run("SRC-08 both ways, for two sizes, and nothing is lost", func(t *testing.T) {
		o := options(t)
		report, err := Source(t.Context(), o)
		if err != nil || len(report.Results) != 4 {
			t.Fatalf("got %+v, %v", report, err)
		}
		for i, r := range report.Results {
			if r.Delivered != 300 || r.Lost != 0 || r.Duplicates != 0 || r.Forged != 0 || r.Strange != 0 || r.CPUPer10k == nil {
				t.Errorf("got %+v", r)
			}
			expect.Equal(t, "the ratio to the source of "+r.Sender, i%2 == 1, (r.SourceRatio != nil))
		}
		var out bytes.Buffer
		if err := errors.Join(report.WriteText(&out), report.Err()); err != nil || strings.Count(out.String(), "CPU of the source") != 2 {
			t.Errorf("got %v\n%s", err, &out)
		}
	})
	t.Run("SRC-08 the mapping makes what is published directly", func(t *testing.T) {
		cfg := expect.Value(config.Parse([]byte(sourceConfig)))(t)
		for links, size := range map[int][2]int{0: {700, 1100}, 95: {19_000, 22_000}} {
			v := values{id: "e1", n: 7}
			body := parseTemplate(pullRequest(links)).append(nil, v)
			expect.AtLeast(t, "the bytes, at least", len(body), size[0])
			expect.AtMost(t, "the bytes, at most", len(body), size[1])
			doc := expect.Value(source.ReadRequest(&http.Request{Header: http.Header{"X-Github-Event": {"pull_request"}, "X-Github-Delivery": {"e1"}}, URL: &url.URL{}}, body, nil))(t)
			e, err := cfg.Sources[0].Map(doc)
			if want := string(parseTemplate(sourceData).append(nil, v)); err != nil || e.ID != "e1" || e.Variables["n"] != "0" || string(e.Data) != want {
				t.Errorf("got %+v %s, %v\nwant %s", e, e.Data, err, want)
			}
		}
	})
	t.Run("SRC-08 shapes that no provider sends are refused", func(t *testing.T) {
		o := options(t)
		o.Batch = 10
		expect.Error(t, "the options' error", expect.ErrOf(Source(t.Context(), o)), "--source does not go with")
	})
}

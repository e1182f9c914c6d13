package bench

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestPercentile(t *testing.T) {
	upTo := func(n int) (d []time.Duration) {
		for i := 1; i <= n; i++ {
			d = append(d, time.Duration(i))
		}
		return d
	}
	for _, tc := range []struct {
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{nil, 50, 0},
		{upTo(1), 0, 1},
		{upTo(1), 100, 1},
		{upTo(2), 50, 1},
		{upTo(2), 51, 2},
		{upTo(10), 90, 9},
		{upTo(10), 99, 10},
		{upTo(100), 50, 50},
		{upTo(100), 99, 99},
		{upTo(100), 100, 100},
		{upTo(1000), 99.9, 999},
		{[]time.Duration{1, 1, 1, 7}, 75, 1},
		{[]time.Duration{1, 1, 1, 7}, 76, 7},
	} {
		expect.Equal(t, fmt.Sprintf("p%g of %d values", tc.p, len(tc.sorted)), percentile(tc.sorted, tc.p), tc.want)
	}
}

func TestLedgerCounts(t *testing.T) {
	// Given 4 events over 2 URIs with 2 subscribers each: endpoints 0 and 2 have URI 0, endpoints 1 and 3 URI 1.
	shape := Shape{Events: 4, URIs: 2, Subscribers: 2}
	type arrival struct {
		id       string
		endpoint int
	}
	all := []arrival{{"x-0", 0}, {"x-0", 2}, {"x-1", 1}, {"x-1", 3}, {"x-2", 0}, {"x-2", 2}, {"x-3", 1}, {"x-3", 3}}
	for _, tc := range []struct {
		name                      string
		arrivals                  []arrival
		lost, duplicates, strange int64
	}{
		{"nothing", nil, 8, 0, 0},
		{"everything", all, 0, 0, 0},
		{"everything twice", append(append([]arrival{}, all...), all...), 0, 8, 0},
		{"all but one", all[1:], 1, 0, 0},
		{"one twice, one lost", append(append([]arrival{}, all[1:]...), all[1]), 1, 1, 0},
		{"a wrong endpoint", []arrival{{"x-0", 1}}, 8, 0, 1},
		{"no endpoint", []arrival{{"x-0", 4}, {"x-0", -1}}, 8, 0, 2},
		{"no event", []arrival{{"x-4", 0}, {"x--1", 0}, {"x-", 0}, {"x-1e0", 1}}, 8, 0, 4},
		{"another run's", []arrival{{"y-0", 0}, {"", 0}}, 8, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newLedger("x-", shape, nil)
			for _, a := range tc.arrivals {
				l.arrive([]byte(a.id), a.endpoint, time.Now())
			}
			if l.lost() != tc.lost || l.duplicates.Load() != tc.duplicates || l.strange.Load() != tc.strange {
				t.Errorf("got lost %d, duplicates %d, strange %d", l.lost(), l.duplicates.Load(), l.strange.Load())
			}
			select {
			case <-l.done:
				if tc.lost > 0 {
					t.Error("is done while deliveries are missing")
				}
			default:
				if tc.lost == 0 {
					t.Error("is not done")
				}
			}
		})
	}
}

func TestLedgerMeasuresFromWhenTheEventWasDue(t *testing.T) {
	s := Shape{Events: 3, URIs: 1, Subscribers: 1, Rate: 100}
	l := newLedger("x-", s, nil)
	for n := range s.Events {
		l.publishing(n, s.due(l.began, n))
	}
	l.arrive([]byte("x-2"), 0, l.began.Add(50*time.Millisecond)) // due after 20 ms
	l.arrive([]byte("x-0"), 0, l.began.Add(7*time.Millisecond))
	l.arrive([]byte("x-0"), 0, l.began.Add(time.Second)) // a duplicate changes nothing
	expect.Equal(t, "the latencies", fmt.Sprint(l.latencies()), "[7ms 30ms]")
	expect.Equal(t, "the last arrival after the begin", time.Duration(l.last.Load()), 50*time.Millisecond)
}

func TestLedgerTakesConcurrentArrivals(t *testing.T) {
	s := Shape{Events: 1000, URIs: 1, Subscribers: 2}
	l := newLedger("x-", s, nil)
	var wg sync.WaitGroup
	for range 4 { // each delivery comes four times
		wg.Go(func() {
			for n := range s.Events {
				l.arrive(fmt.Appendf(nil, "x-%d", n), 0, time.Now())
				l.arrive(fmt.Appendf(nil, "x-%d", n), 1, time.Now())
			}
		})
	}
	wg.Wait()
	<-l.done
	if l.arrived.Load() != 2000 || l.duplicates.Load() != 6000 || l.lost() != 0 {
		t.Errorf("got arrived %d, duplicates %d, lost %d", l.arrived.Load(), l.duplicates.Load(), l.lost())
	}
}

func TestShapeRefuses(t *testing.T) {
	good := Shape{Events: 1, Batch: 1, Publishers: 1, URIs: 1, Subscribers: 1, Payload: 1}
	expect.OK(t, good.check())
	for name, change := range map[string]func(*Shape){
		"no events":                   func(s *Shape) { s.Events = 0 },
		"no batch":                    func(s *Shape) { s.Batch = 0 },
		"no URIs":                     func(s *Shape) { s.URIs = -1 },
		"a negative rate":             func(s *Shape) { s.Rate = -1 },
		"more than memory holds":      func(s *Shape) { s.Events, s.Subscribers = 1e6, 1e3 },
		"an unknown client":           func(s *Shape) { s.Client = "curl" },
		"an origin that has no hangs": func(s *Shape) { s.HangOrigin = true },
	} {
		s := good
		change(&s)
		if s.check() == nil {
			t.Errorf("%s is allowed", name)
		}
	}
}

//go:build unix

package chaos

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// faultyURI is the one that the faulty endpoints wait for: a tenth of the events.
const faultyURI = 3

// faulty are endpoints that do not serve what they are sent until they recover, each in a way of
// its own, on one origin: a good neighbour is there too. One more is on an origin that
// cannot be connected to.
type faulty struct {
	receiver  *harness.Receiver
	endpoints []*harness.Endpoint
	refused   net.Addr

	mu     sync.Mutex
	broken map[string]bool
	well   time.Time                 // since then none is broken
	denied map[string]map[string]int // attempts while broken, by endpoint and webhook-id
}

// ways is how an endpoint answers while it is broken, by its name.
var ways = map[string]http.HandlerFunc{
	"hangs":     hang,
	"drips":     drip,
	"fails":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
	"throttles": throttle,
	"closes":    func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	"refuses":   nil, // its port is closed
	"is well":   nil,
}

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// drip answers a byte at a time, without end.
func drip(w http.ResponseWriter, r *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	for _, b := range []byte("HTTP/1.1 200 OK\r\nX-Drip: " + strings.Repeat("x", 1000)) {
		if _, err := conn.Write([]byte{b}); err != nil {
			return
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}

func throttle(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Retry-After", "2")
	w.WriteHeader(http.StatusTooManyRequests)
}

// newFaulty registers the endpoints, which break then.
func newFaulty(t *testing.T, target *harness.Target) *faulty {
	t.Helper()
	f := &faulty{receiver: harness.NewReceiver(t), broken: map[string]bool{}, denied: map[string]map[string]int{}}
	front, refused := serve(t, "127.0.0.1:0", f), listen(t, "127.0.0.1:0")
	f.refused = refused.Addr()
	refused.Close()
	c := target.Stateless("alice")
	for way, answer := range ways {
		name := strings.ReplaceAll(way, " ", "-")
		e := f.receiver.Endpoint(name)
		host := front
		if way == "refuses" {
			host = f.refused
		}
		var r struct {
			Subscription struct{ WebhookSecret struct{ Key string } }
		}
		retry(t, func(ctx context.Context) error {
			return call(ctx, c, "resources/subscriptions/register", map[string]any{
				"uris": []string{uri(faultyURI)}, "targetUri": "http://" + host.String() + "/" + name,
			}, &r)
		})
		e.SetSecret(r.Subscription.WebhookSecret.Key)
		f.endpoints = append(f.endpoints, e)
		f.broken[name], f.denied[name] = answer != nil, map[string]int{}
	}
	return f
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, "/")
	f.mu.Lock()
	broken := f.broken[name]
	f.mu.Unlock()
	if !broken {
		f.receiver.ServeHTTP(w, r)
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return // the sender was cut off: it never sent this
	}
	f.mu.Lock()
	f.denied[name][r.Header.Get("webhook-id")]++
	f.mu.Unlock()
	for way, answer := range ways {
		if strings.ReplaceAll(way, " ", "-") == name {
			answer(w, r)
		}
	}
}

// recover lets all of them serve.
func (f *faulty) recover(t *testing.T) {
	f.mu.Lock()
	clear(f.broken)
	f.well = time.Now()
	f.mu.Unlock()
	serve(t, f.refused.String(), f)
}

// served reports whether all have got everything.
func (f *faulty) served(want int) bool {
	for _, e := range f.endpoints {
		if _, different := e.Count(); different < want {
			return false
		}
	}
	return true
}

// check counts lost and repeated deliveries.
func (f *faulty) check(t *testing.T, count int, patience time.Duration) {
	t.Helper()
	want := map[string]bool{}
	for n := range count {
		if n%uris == faultyURI {
			want[id(n)] = true
		}
	}
	began := time.Now()
	harness.Within(t, patience, func() bool { return f.served(len(want)) })
	t.Logf("the recovered endpoints were waited for %v more", time.Since(began))
	for _, e := range f.endpoints {
		t.Run("WHK-18 an endpoint that "+e.Name, func(t *testing.T) {
			got := e.IDs()
			missing, repetitions, attempts := 0, 0, 0
			for id := range want {
				if got[id] == 0 {
					missing++
				}
				repetitions += max(got[id]-1, 0)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			for id, n := range f.denied[e.Name] {
				attempts += n
				if !want[id] {
					t.Errorf("an attempt had the strange webhook-id %q", id)
				}
			}
			deliveries := e.Deliveries()
			last := deliveries[max(0, len(deliveries)-1)].At.Sub(f.well)
			t.Logf("%d deliveries, %d lost, %d repetitions, %d attempts while it was broken, the last %v after it recovered",
				len(want), missing, repetitions, attempts, last.Round(time.Millisecond))
			if missing > 0 || len(got) != len(want) {
				t.Errorf("%d events are missing, %d ids are strange", missing, len(got)-(len(want)-missing))
			}
			for _, d := range deliveries {
				var body struct{ Data struct{ ID string } }
				if err := json.Unmarshal(d.Body, &body); err != nil || body.Data.ID != d.ID() {
					t.Errorf("the event %q came with the webhook-id %q: %v", body.Data.ID, d.ID(), err)
				}
			}
		})
	}
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// serve runs an HTTP server that ends with the test.
func serve(t *testing.T, addr string, h http.Handler) net.Addr {
	t.Helper()
	l := listen(t, addr)
	s := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l)
	}()
	t.Cleanup(func() {
		_ = s.Close()
		<-ended
	})
	return l.Addr()
}

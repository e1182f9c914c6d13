//go:build unix

package harness

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// Receiver is an HTTP server with any number of webhook endpoints.
type Receiver struct {
	tb  testing.TB
	srv *httptest.Server

	mu        sync.Mutex
	endpoints map[string]*Endpoint
}

// NewReceiver starts a receiver on 127.0.0.1. After the test it answers 410, so that a deployment that the next test
// shares stops sending to it; it ends with the process.
func NewReceiver(tb testing.TB) *Receiver {
	tb.Helper()
	r := &Receiver{tb: tb, endpoints: map[string]*Endpoint{}}
	r.srv = httptest.NewUnstartedServer(r)
	r.srv.Config.ReadHeaderTimeout = 30 * time.Second
	r.srv.Start()
	tb.Cleanup(func() {
		r.mu.Lock()
		for _, e := range r.endpoints {
			e.release()
		}
		r.mu.Unlock()
	})
	return r
}

// Addr returns the receiver's host and port.
func (r *Receiver) Addr() net.Addr { return r.srv.Listener.Addr() }

// Endpoint makes an endpoint, which answers challenges and takes everything.
func (r *Receiver) Endpoint(name string) *Endpoint {
	e := &Endpoint{Name: name, url: r.srv.URL + "/" + name, done: make(chan struct{}), ids: map[string]int{}}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.endpoints[name] != nil {
		r.tb.Fatalf("there are two endpoints %q", name)
	}
	r.endpoints[name] = e
	return e
}

func (r *Receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name, _, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/"), "/")
	r.mu.Lock()
	e := r.endpoints[name]
	r.mu.Unlock()
	if e == nil {
		http.NotFound(w, req)
		return
	}
	select {
	case <-e.done:
		w.WriteHeader(http.StatusGone)
	default:
		e.serve(w, req)
	}
}

// NewSecret returns a secret as a client of the MCP Events extension would create it.
func NewSecret() string {
	b := make([]byte, 32)
	rand.Read(b) // never fails
	return "whsec_" + base64.StdEncoding.EncodeToString(b)
}

// Delivery is a request as it arrived at an endpoint.
type Delivery struct {
	At     time.Time
	Method string
	Path   string
	Header http.Header
	Body   []byte
	// Challenge is the challenge of a verification, which is no delivery.
	Challenge string
	// Answered is the status that it got.
	Answered int
}

// ID returns the header webhook-id.
func (d *Delivery) ID() string { return d.Header.Get("webhook-id") }

// Verify checks the signature by the Standard Webhooks library.
func (d *Delivery) Verify(secret string) error {
	wh, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return err
	}
	return wh.Verify(d.Body, d.Header)
}

// Reply is how an endpoint answers.
type Reply struct {
	// Status is 200 when 0.
	Status int
	Header map[string]string
	Body   string
	// Hang holds the request until the sender or the test has gone.
	Hang bool
	// After is how long the answer takes.
	After time.Duration
}

// Endpoint is one webhook target.
type Endpoint struct {
	Name string
	url  string
	done chan struct{}
	once sync.Once

	mu         sync.Mutex
	answer     func(n int, d *Delivery) Reply
	verify     func(d *Delivery) Reply
	light      bool
	secret     string
	deliveries []*Delivery
	challenges []*Delivery
	ids        map[string]int
	count      int
}

// URL returns the target to register.
func (e *Endpoint) URL() string { return e.url }

// Answer sets how deliveries are answered; n counts them from 1.
func (e *Endpoint) Answer(f func(n int, d *Delivery) Reply) { set(&e.mu, &e.answer, f) }

// AnswerChallenge sets how verifications are answered.
func (e *Endpoint) AnswerChallenge(f func(d *Delivery) Reply) { set(&e.mu, &e.verify, f) }

// Light makes the endpoint count subscriptions and forget what they were sent.
func (e *Endpoint) Light() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.light = true
}

// Secret sets the secret that deliveries are signed with; Secret("") forgets it.
func (e *Endpoint) SetSecret(secret string) { set(&e.mu, &e.secret, secret) }

// Secret returns the secret that SetSecret has set.
func (e *Endpoint) Secret() string { return read(&e.mu, &e.secret) }

// Deliveries returns all deliveries so far in the order of their arrival, including repetitions.
func (e *Endpoint) Deliveries() []*Delivery {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*Delivery(nil), e.deliveries...)
}

// Challenges returns the verification requests so far.
func (e *Endpoint) Challenges() []*Delivery {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]*Delivery(nil), e.challenges...)
}

// IDs counts the deliveries by webhook-id; of a light endpoint by subscription.
func (e *Endpoint) IDs() map[string]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.ids)
}

// Count returns the number of deliveries so far, including repetitions, and the number of different ids among them.
func (e *Endpoint) Count() (all, different int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.count, len(e.ids)
}

// Wait waits for n deliveries with different ids, and returns all that came.
func (e *Endpoint) Wait(tb testing.TB, n int) []*Delivery {
	tb.Helper()
	if !Within(tb, Patience, func() bool { _, d := e.Count(); return d >= n }) {
		all, different := e.Count()
		tb.Fatalf("endpoint %s: got %d deliveries, %d different, want %d", e.Name, all, different, n)
	}
	return e.Deliveries()
}

// WaitAttempts waits for n requests, repetitions included.
func (e *Endpoint) WaitAttempts(tb testing.TB, n int) []*Delivery {
	tb.Helper()
	if !Within(tb, Patience, func() bool { a, _ := e.Count(); return a >= n }) {
		all, different := e.Count()
		tb.Fatalf("endpoint %s: got %d attempts of %d deliveries, want %d attempts", e.Name, all, different, n)
	}
	return e.Deliveries()
}

func (e *Endpoint) release() { e.once.Do(func() { close(e.done) }) }

func (e *Endpoint) serve(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(io.LimitReader(req.Body, 1<<20))
	if err != nil {
		return // the sender was cut off: it never sent this
	}
	d := &Delivery{At: time.Now(), Method: req.Method, Path: req.URL.RequestURI(), Header: req.Header.Clone(), Body: body}
	d.Header.Set("Host", req.Host)
	e.reply(w, req, e.take(d))
}

// take notes a request and decides on its answer.
func (e *Endpoint) take(d *Delivery) Reply {
	e.mu.Lock()
	defer e.mu.Unlock()
	if challenge := challenge(d.Body); challenge != "" {
		d.Challenge = challenge
		e.challenges = append(e.challenges, d)
		if e.verify != nil {
			return e.verify(d)
		}
		b, _ := json.Marshal(map[string]string{"challenge": challenge})
		return Reply{Header: map[string]string{"Content-Type": "application/json"}, Body: string(b)}
	}
	e.count++
	if e.light {
		e.ids[d.Header.Get("X-MCP-Subscription-Id")]++
		return Reply{}
	}
	e.ids[d.ID()]++
	e.deliveries = append(e.deliveries, d)
	var r Reply
	if e.answer != nil {
		r = e.answer(e.count, d)
	}
	d.Answered = r.Status
	return r
}

func challenge(body []byte) string {
	var v struct{ Type, Challenge string }
	if json.Unmarshal(body, &v) != nil || v.Type != "verification" {
		return ""
	}
	return v.Challenge
}

func (e *Endpoint) reply(w http.ResponseWriter, req *http.Request, r Reply) {
	if r.Hang {
		select {
		case <-req.Context().Done():
		case <-e.done:
		}
		return
	}
	if r.After > 0 {
		timer := time.NewTimer(r.After)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-req.Context().Done():
			return
		case <-e.done:
			return
		}
	}
	for k, v := range r.Header {
		w.Header().Set(k, v)
	}
	if r.Status != 0 {
		w.WriteHeader(r.Status)
	}
	io.WriteString(w, r.Body)
}

package check

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// receiver is an HTTP server that receives webhooks. It has several endpoints: each [hook] has a path of its own.
type receiver struct {
	base   string
	server *http.Server

	mu    sync.Mutex
	hooks map[string]*hook
}

type hook struct {
	url string
	// status and challenge replace the default responses of the endpoint. status returns the HTTP status for the n-th event, counted from
	// 0. The default is 204. challenge writes the response to a challenge. By default, the endpoint echoes the challenge.
	status    func(n int) int
	challenge func(w http.ResponseWriter)
	location  string // the Location header of a redirect

	mu      sync.Mutex
	secrets []string
	got     []delivery
	changed chan struct{} // closed and replaced with each delivery
}

type delivery struct {
	method   string
	header   http.Header
	body     []byte
	verified error // nil if signed with the newest secret
	old      error // nil if signed with the previous secret
	control  bool  // true for control messages such as challenges, false for events
}

func (d delivery) id() string { return d.header.Get(webhook.HeaderID) }

func newReceiver(listen, public string) (*receiver, error) {
	l, err := net.Listen("tcp", cmp.Or(listen, "127.0.0.1:0"))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "listen for webhooks")
	}
	r := &receiver{base: "http://" + l.Addr().String(), hooks: map[string]*hook{}}
	if public != "" {
		r.base = strings.TrimRight(public, "/")
	}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second}
	go func() { _ = r.server.Serve(l) }()
	return r, nil
}

func (r *receiver) end() { _ = r.server.Close() }

func (r *receiver) newHook(name string) *hook {
	secret, _ := webhook.NewSecret()
	h := &hook{url: r.base + "/" + name, secrets: []string{secret}, changed: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hooks[name] = h
	return h
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	h := r.hooks[req.URL.Path[strings.LastIndexByte(req.URL.Path, '/')+1:]]
	r.mu.Unlock()
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, webhook.MaxReceived))
	if h == nil || err != nil {
		// A server may also ask for /.well-known/mcp-webhook-receiver.json, because it can verify an endpoint with this file. The
		// receiver does not offer the file, because it echoes challenges instead.
		http.Error(w, "no webhooks here", http.StatusNotFound)
		return
	}
	h.serve(w, delivery{method: req.Method, header: req.Header, body: body})
}

func (h *hook) serve(w http.ResponseWriter, d delivery) {
	var envelope struct {
		Type, Challenge string
	}
	_ = json.Unmarshal(d.body, &envelope)
	d.control = envelope.Type != ""
	n := h.record(&d)
	switch {
	case envelope.Type == "verification" && h.challenge != nil:
		h.challenge(w)
	case envelope.Type == "verification":
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"challenge": envelope.Challenge})
	default:
		status := http.StatusNoContent
		if h.status != nil && !d.control {
			status = h.status(n)
		}
		if h.location != "" {
			w.Header().Set("Location", h.location)
		}
		w.WriteHeader(status)
	}
}

// record stores a delivery. It returns how many events the endpoint has received before this one.
func (h *hook) record(d *delivery) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := len(h.secrets) - 1
	d.verified, d.old = webhook.Verify(d.header, d.body, h.secrets[last]), errors.New("there is no previous secret")
	if last > 0 {
		d.old = webhook.Verify(d.header, d.body, h.secrets[last-1])
	}
	for _, g := range h.got {
		if !g.control {
			n++
		}
	}
	h.got = append(h.got, *d)
	close(h.changed)
	h.changed = make(chan struct{})
	return n
}

// rotate adds a new secret to the endpoint. The endpoint still recognizes signatures with the previous secret, and records the result of
// that check in delivery.old.
func (h *hook) rotate() {
	secret, _ := webhook.NewSecret()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.secrets = append(h.secrets, secret)
}

func (h *hook) secret() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.secrets[len(h.secrets)-1]
}

// listDeliveries returns the events that the endpoint has received. If the parameter control is true, it returns the control messages
// instead.
func (h *hook) listDeliveries(control bool) []delivery {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(h.got), func(d delivery) bool { return d.control != control })
}

// awaitEvents waits until the endpoint has received n events, for at most the time wait. It returns all received events.
func (h *hook) awaitEvents(ctx context.Context, n int, wait time.Duration) []delivery {
	late := time.After(wait)
	for {
		h.mu.Lock()
		changed := h.changed
		h.mu.Unlock()
		got := h.listDeliveries(false)
		if len(got) >= n {
			return got
		}
		select {
		case <-changed:
		case <-late:
			return got
		case <-ctx.Done():
			return got
		}
	}
}

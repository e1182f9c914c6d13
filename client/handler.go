package client

import (
	"cmp"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Handler is the endpoint of webhook subscriptions, of any number of clients. A program serves it at URL, with a
// server that bounds how long requests take, and gives it to [Connect]:
//
//	hooks := &client.Handler{URL: "https://app.example.com/hooks"}
//	http.Handle("/hooks", hooks)
//
// It verifies each request with the Standard Webhooks library, by the secrets of the subscription that
// X-MCP-Subscription-Id names. If the id is not known, it tries the secrets of the subscriptions that wait for the answer
// to events/subscribe. For example, a challenge arrives while that request is open (SEP-3415, "Endpoint verification"),
// and a server that lost a subscription gives it a new id when the client refreshes it. It answers challenges itself, and hands gap and terminated to their subscription. An event is known
// by its eventId; webhook-id may be the same or a message's own.
//
// Statuses: 204 acknowledged; 200 challenge echoed; 400 no event; 401 no signature by a secret of the subscription;
// 405 not a POST; 413 too large; 425 unknown subscription, 500 not handled, 503 too many at once: come again.
type Handler struct {
	// URL is where servers reach it, in public https unless they are made for development.
	URL string
	// Log gets a line for each request that is refused; nil discards it.
	Log *slog.Logger

	mu      sync.RWMutex
	pending []*hook            // whose events/subscribe has no answer yet, so that the server may choose another id
	bound   map[string][]*hook // servers choose ids, so two can choose the same
}

// Listen serves the handler at an address of this machine, for a program that has no HTTP server. An empty URL becomes
// that of the address. End waits for requests that are being served.
func (h *Handler) Listen(addr string) (end func(), err error) {
	log := logTo(h.Log)
	url, end, err := listen(addr, h, func(err error) { log.Error("receiver failed", "error", err) })
	h.URL = cmp.Or(h.URL, url)
	return end, err
}

// await accepts requests for a subscription under an id that the handler does not know yet. From now on the server may
// choose a new id, because it does not know the subscription or has lost it.
func (h *Handler) await(k *hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.pending, k) {
		h.pending = append(h.pending, k)
	}
}

// bind sets the id of a subscription to the one in the server's answer.
func (h *Handler) bind(k *hook, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeLocked(k)
	if h.bound == nil {
		h.bound = map[string][]*hook{}
	}
	h.bound[id] = append(h.bound[id], k)
	k.id = id
}

// remove forgets a subscription.
func (h *Handler) remove(k *hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeLocked(k)
}

func (h *Handler) removeLocked(k *hook) {
	same := func(other *hook) bool { return other == k }
	h.pending = slices.DeleteFunc(h.pending, same)
	if rest := slices.DeleteFunc(h.bound[k.id], same); len(rest) > 0 {
		h.bound[k.id] = rest
	} else {
		delete(h.bound, k.id)
	}
}

// candidates returns the subscriptions that a request may be for, and whether its id is known.
func (h *Handler) candidates(id string) (hooks []*hook, known bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if hooks := h.bound[id]; len(hooks) > 0 {
		return slices.Clone(hooks), true
	}
	return slices.Clone(h.pending), false
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, reason := h.serve(w, r)
	respond(w, r, logTo(h.Log), status, reason)
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (status int, reason string) {
	body, status, reason := readBody(w, r, webhook.MaxReceived)
	if status != 0 {
		return status, reason
	}
	hooks, known := h.candidates(r.Header.Get(webhook.HeaderSubscription))
	var err error
	at := slices.IndexFunc(hooks, func(k *hook) bool {
		err = webhook.Verify(r.Header, body, k.keys()...)
		return err == nil
	})
	switch {
	case at < 0 && !known:
		return http.StatusTooEarly, "unknown subscription" // or no longer; 503 would pause the others of this endpoint
	case at < 0:
		return http.StatusUnauthorized, fault.Public(err)
	}
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return http.StatusBadRequest, "not JSON"
	}
	if m.EventID == "" && m.Type == "verification" && m.Challenge != "" {
		return echo(w, m.Challenge)
	}
	return hooks[at].receive(r, &m)
}

// message is the body of a webhook: an EventOccurrence, or a control envelope, which has a type and no eventId (SEP-3415,
// "Non-event webhook bodies"). The body is the server's: a publisher's own members are below data. The webhook-id, which
// begins with msg_ and the type there, is not looked at, for the AI SDK's example server leaves the type out.
type message struct {
	occurrence
	Type      string `json:"type"`
	Challenge string `json:"challenge"`
}

// receive handles a verified webhook. What it began goes on when the sender no longer waits: the sender comes again, and
// finds the outcome.
func (k *hook) receive(r *http.Request, m *message) (status int, reason string) {
	id := r.Header.Get(webhook.HeaderID)
	var handle func() error
	switch {
	case m.EventID != "":
		e := m.event(viaEvents)
		e.Subscription, e.Verified = r.Header.Get(webhook.HeaderSubscription), new(true)
		handle = func() error { return k.accept(e) }
	case m.Type == "gap":
		handle = func() error {
			return k.single("message "+id, func() error { return k.regain(Gap{Name: k.sub.Name, Cursor: m.Cursor}) })
		}
	case m.Type == "terminated":
		k.terminate(m.Error)
		return http.StatusNoContent, ""
	case m.Type != "":
		k.log.Warn("unknown control message", "type", m.Type)
		return http.StatusNoContent, ""
	default:
		return http.StatusBadRequest, "neither an event nor a control message"
	}
	if k.waiting.Add(1) > maxWaiting {
		k.waiting.Add(-1)
		return http.StatusServiceUnavailable, "too many at once"
	}
	done := make(chan error, 1)
	if !k.spawn(func() {
		defer k.waiting.Add(-1)
		done <- handle()
	}) {
		k.waiting.Add(-1)
		return http.StatusServiceUnavailable, "the subscription ends"
	}
	select {
	case err := <-done:
		if err != nil {
			k.log.Warn("handler failed, the webhook comes again", "event", m.EventID, "error", err)
			return http.StatusInternalServerError, "not handled" // 503 would pause others, too
		}
		return http.StatusNoContent, ""
	case <-r.Context().Done():
		return http.StatusServiceUnavailable, "not handled in time"
	}
}

// accept has an event handled, and notes that everything up to its cursor is.
func (k *hook) accept(e Event) error {
	select {
	case k.slots <- struct{}{}:
		defer func() { <-k.slots }()
	case <-k.ctx.Done():
		return k.ctx.Err()
	}
	err := k.once(e)
	if err == nil {
		k.settle(e.Cursor)
	}
	return err
}

// terminate ends the subscription with the server's reason.
func (k *hook) terminate(e *rpcError) {
	select {
	case k.over <- terminated(k.sub.Name, e):
	default: // it came twice
	}
}

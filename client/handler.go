package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Handler is an [http.Handler] that receives the webhooks of any number of subscriptions and clients. Serve it at URL, with an HTTP
// server that has timeouts, and pass it to [Connect] as Options.Webhooks:
//
//	hooks := &client.Handler{URL: "https://app.example.com/hooks"}
//	http.Handle("/hooks", hooks)
//
// It verifies each request with the Standard Webhooks library and the secrets of the subscription that X-MCP-Subscription-Id names. If
// the id is unknown, it tries the secrets of the subscriptions whose events/subscribe is not answered yet, and of subscriptions by URI
// (SEP-1803). An unknown id is normal in two cases. A challenge arrives before the answer to events/subscribe (SEP-3415, "Endpoint
// verification"). And a server that has lost a subscription gives it a new id when the client refreshes it.
//
// A client cannot have two subscriptions with the same event type and arguments at one handler, because they are a single subscription at
// the server. [Client.Subscribe] returns [ErrConflict] for the second one.
//
// The handler responds with these status codes:
//
//	204  the event or control message was accepted
//	200  the body echoes a challenge
//	400  the body is incomplete, or is not an event, a control message or a challenge
//	401  the signature is not by a secret of the subscription
//	405  the method is not POST
//	413  the body is too large
//
// and, for the sender to try again later,
//
//	425  the subscription is unknown, perhaps because its events/subscribe is not answered yet
//	500  the event or gap was not handled, for example because [SubscribeOptions.Event] returned an error
//	503  there are too many requests, the subscription is ending, or the event was not handled in time
type Handler struct {
	// URL is the handler's own URL, to which MCP servers send webhooks. Most servers require a public https URL.
	URL string
	// Log receives a warning for each refused request. If it is nil, there are no warnings.
	Log *slog.Logger

	mu      sync.RWMutex
	pending []*hook            // hooks whose events/subscribe is not answered; the answer may give them a new id
	bound   map[string][]*hook // hooks by subscription id; two servers can choose the same id
	uris    []*hook            // hooks of SEP-1803, which are not in bound because their servers need not send an id
}

// Listen serves the handler at an address of this machine, for programs without an HTTP server of their own. If URL is empty, Listen sets
// it to the URL of that address. The returned function end stops the server, and waits for running requests.
func (h *Handler) Listen(addr string) (end func(), err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "listen for webhooks")
	}
	h.URL = cmp.Or(h.URL, "http://"+l.Addr().String()+"/")
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	closeUnused(s)
	log, served := orDiscard(h.Log), make(chan struct{})
	go func() {
		defer close(served)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			log.Error("receiver failed", "error", err)
		}
	}()
	return func() {
		ctx, cancel := closingContext(context.Background())
		defer cancel()
		if s.Shutdown(ctx) != nil {
			_ = s.Close()
		}
		<-served
	}, nil
}

// closeUnused makes s.Shutdown close the connections on which no request has arrived yet. HTTP clients often open connections before they
// need them, and Shutdown would wait up to five seconds for them. Closing them loses no request, because after the beginning of Shutdown,
// net/http does not serve a connection's first request anyway.
func closeUnused(s *http.Server) {
	var mu sync.Mutex
	unused := map[net.Conn]struct{}{}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if state == http.StateNew {
			unused[c] = struct{}{}
		} else {
			delete(unused, c)
		}
	}
	s.RegisterOnShutdown(func() {
		mu.Lock()
		defer mu.Unlock()
		for c := range unused {
			_ = c.Close()
		}
	})
}

func (h *Handler) register(k *hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.uris = append(h.uris, k)
}

// add adds a subscription of MCP Events to the handler. It returns an error for a second subscription of a client to the same event type
// with the same arguments. The server would treat both as one subscription, and each event would reach only one of them.
func (h *Handler) add(k *hook) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, other := range slices.Concat(append(slices.Collect(maps.Values(h.bound)), h.pending)...) {
		if other.client == k.client && other.cursors.key == k.cursors.key && other.ctx.Err() == nil {
			return fault.New(fault.Conflict, "the client already receives webhooks of %.200q with these arguments: use that subscription, or "+
				"close it first", k.sub.Name)
		}
	}
	h.pending = append(h.pending, k)
	return nil
}

// expect prepares the handler for webhooks that arrive before the server has answered with the subscription's id. For requests with an
// unknown id, the handler then tries the secrets of this subscription.
func (h *Handler) expect(k *hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !slices.Contains(h.pending, k) {
		h.pending = append(h.pending, k)
	}
}

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

func (h *Handler) remove(k *hook) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removeLocked(k)
}

func (h *Handler) removeLocked(k *hook) {
	same := func(other *hook) bool { return other == k }
	h.pending = slices.DeleteFunc(h.pending, same)
	h.uris = slices.DeleteFunc(h.uris, same)
	if rest := slices.DeleteFunc(h.bound[k.id], same); len(rest) > 0 {
		h.bound[k.id] = rest
	} else {
		delete(h.bound, k.id)
	}
}

// candidates returns the subscriptions to which a request with the given subscription id may belong. The result known is false if the
// handler does not know the id, but may learn it soon, for example because an events/subscribe is not answered yet. If known is false and
// no candidate's secret fits the signature, the sender should try again later.
//
// Candidates whose registration (SEP-1803) is not answered come last, because the verification of a signature for them blocks until the
// answer arrives.
func (h *Handler) candidates(id string) (hooks []*hook, known bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if hooks := h.bound[id]; len(hooks) > 0 {
		return slices.Clone(hooks), true
	}
	var registered, waiting []*hook
	for _, k := range h.uris {
		switch own := k.registeredID(); {
		case own == "":
			waiting = append(waiting, k)
		case own == id:
			hooks = append(hooks, k)
		default:
			registered = append(registered, k)
		}
	}
	if len(hooks) > 0 {
		return hooks, true
	}
	return slices.Concat(h.pending, registered, waiting), len(h.pending) == 0 && len(h.uris) > 0
}

// ServeHTTP implements [http.Handler].
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	log := orDiscard(h.Log)
	status, reason := h.serve(w, r)
	switch status {
	case http.StatusOK: // echo has written the response
	case http.StatusNoContent:
		w.WriteHeader(status)
	default:
		log.Warn("webhook refused", "status", status, "reason", reason, "id", r.Header.Get(webhook.HeaderID), "from", r.RemoteAddr)
		http.Error(w, reason, status)
	}
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request) (status int, reason string) {
	body, status, reason := readWebhook(w, r, webhook.MaxReceived)
	if status != 0 {
		return status, reason
	}
	hooks, known := h.candidates(r.Header.Get(webhook.HeaderSubscription))
	if strings.HasPrefix(r.Header.Get(webhook.HeaderID), webhook.VerificationPrefix) && slices.ContainsFunc(hooks, (*hook).isUnsigned) {
		challenge, ok := webhook.Challenge(r.Header, body)
		if !ok || len(body) > maxChallenge {
			return http.StatusBadRequest, "not a challenge"
		}
		return echo(w, challenge)
	}
	var err error
	at := slices.IndexFunc(hooks, func(k *hook) bool {
		err = k.verify(r, body)
		return err == nil
	})
	switch {
	case at < 0 && (!known || errors.Is(err, errNotRegistered)):
		return http.StatusTooEarly, "unknown subscription" // 503 would pause the other subscriptions of this endpoint
	case at < 0:
		return http.StatusUnauthorized, fault.Public(err)
	case hooks[at].registered != nil:
		if challenge, ok := webhook.Challenge(r.Header, body); ok {
			return echo(w, challenge)
		}
		e := hooks[at].decodeRegistered(r.Header, body, !hooks[at].isUnsigned())
		return hooks[at].answer(r, e.ID, func() error { return hooks[at].handleEvent(e) })
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

// message is the body of a webhook: an EventOccurrence or a control envelope. It is a control envelope if it has a type and no eventId
// (SEP-3415, "Non-event webhook bodies"). A publisher cannot imitate a control envelope, because everything that publishers write is
// inside the member data.
//
// The client does not check whether the webhook-id of a control envelope begins with the type, because the example server of Vercel's AI
// SDK leaves the type out.
type message struct {
	occurrence
	Type      string `json:"type"`
	Challenge string `json:"challenge"`
}

func (k *hook) receive(r *http.Request, m *message) (status int, reason string) {
	id := r.Header.Get(webhook.HeaderID)
	var handle func() error
	switch {
	case m.EventID != "":
		e := m.event("events")
		e.Subscription, e.Verified = r.Header.Get(webhook.HeaderSubscription), new(true)
		handle = func() error { return k.handleEvent(e) }
	case m.Type == "gap":
		handle = func() error {
			return k.doOnce("message "+id, func() error { return k.resumeAt(Gap{Name: k.sub.Name, Cursor: m.Cursor}) })
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
	return k.answer(r, m.EventID, handle)
}

// answer calls the function do for a webhook and returns the response to send. If the sender gives up before do has returned, do
// continues. When the sender repeats the webhook, the repetition gets the result of the same call.
func (k *hook) answer(r *http.Request, id string, do func() error) (status int, reason string) {
	if k.webhooks.Add(1) > maxWebhooks {
		k.webhooks.Add(-1)
		return http.StatusServiceUnavailable, "too many concurrent webhooks"
	}
	done := make(chan error, 1)
	if !k.spawn(func() {
		defer k.webhooks.Add(-1)
		done <- do()
	}) {
		k.webhooks.Add(-1)
		return http.StatusServiceUnavailable, "the subscription is ending"
	}
	select {
	case err := <-done:
		if err != nil {
			k.log.Warn("webhook not handled", "event", id, "error", err)
			return http.StatusInternalServerError, "not handled" // 503 would pause the other subscriptions of this endpoint, too
		}
		return http.StatusNoContent, ""
	case <-r.Context().Done():
		return http.StatusServiceUnavailable, "not handled in time"
	}
}

func (k *hook) handleEvent(e Event) error {
	select {
	case k.slots <- struct{}{}:
		defer func() { <-k.slots }()
	case <-k.ctx.Done():
		return k.ctx.Err()
	}
	err := k.handleOnce(e)
	if err == nil {
		k.saveSafe(e.Cursor)
	}
	return err
}

func (k *hook) terminate(e *rpcError) {
	select {
	case k.ended <- newTerminated(k.sub.Name, e):
	default: // an earlier reason is still in the channel, and the first one counts
	}
}

// maxChallenge limits the size, in bytes, of a challenge that the handler echoes without checking its signature.
const maxChallenge = 4 << 10

// readWebhook reads the body of a webhook. If it refuses the webhook, it returns an HTTP status and the reason. Otherwise the status is
// 0.
func readWebhook(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, status int, reason string) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, http.StatusMethodNotAllowed, "POST webhooks here"
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, http.StatusRequestEntityTooLarge, "too large"
	} else if err != nil {
		return nil, http.StatusBadRequest, "the body is incomplete"
	}
	return body, 0, ""
}

func echo(w http.ResponseWriter, challenge string) (status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"challenge": challenge})
	return http.StatusOK, ""
}

package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Receiver is an endpoint in this process for the webhooks of a [Registration] (SEP-1803). Those of MCP Events have
// the [Handler].
type Receiver struct {
	// URL is where it listens.
	URL string
	// Failed receives the error that ended it, if one does.
	Failed chan error

	take func(Event) error
	log  *slog.Logger
	end  func()

	key    atomic.Pointer[string] // nil before the registration; empty when webhooks are not signed
	once   sync.Once
	ready  chan struct{} // closed when there is a key
	closed chan struct{} // closed when the receiver ends
}

// NewReceiver listens and hands what arrives, verified, to take.
func NewReceiver(addr string, take func(Event) error, log *slog.Logger) (*Receiver, error) {
	r := &Receiver{Failed: make(chan error, 1), take: take, log: log, ready: make(chan struct{}), closed: make(chan struct{})}
	var err error
	r.URL, r.end, err = listen(addr, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		status, reason := r.serve(w, req)
		respond(w, req, log, status, reason)
	}), func(err error) { r.Failed <- fault.Wrap(fault.Unavailable, err, "receive webhooks") })
	return r, err
}

// listen serves webhooks at an address of this machine until end is called, which waits for requests that are being
// served. Failed gets the error that ended it before.
func listen(addr string, h http.Handler, failed func(error)) (url string, end func(), err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", nil, fault.Wrap(fault.Unavailable, err, "listen for webhooks")
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			failed(err)
		}
	}()
	return "http://" + l.Addr().String() + "/", func() {
		ctx, cancel := ending(context.Background())
		defer cancel()
		if s.Shutdown(ctx) != nil {
			_ = s.Close()
		}
		<-served
	}, nil
}

// secret says what webhooks are signed with; empty, that they are not: the server's operator has chosen so.
func (r *Receiver) secret(key string) {
	r.key.Store(&key)
	r.once.Do(func() { close(r.ready) })
}

// Close ends it.
func (r *Receiver) Close() {
	close(r.closed)
	r.end()
}

// serve handles a request, and says what is answered: 204, 200 if a challenge is echoed, or a refusal.
func (r *Receiver) serve(w http.ResponseWriter, req *http.Request) (status int, reason string) {
	if key := r.key.Load(); (key == nil || *key == "") && strings.HasPrefix(req.Header.Get(webhook.HeaderID), webhook.VerificationPrefix) {
		return echoUnverified(w, req)
	}
	key := r.await(req.Context())
	if key == nil {
		return http.StatusServiceUnavailable, "not registered yet"
	}
	body, status, reason := readBody(w, req, webhook.MaxReceived)
	if status != 0 {
		return status, reason
	}
	if *key != "" {
		if err := webhook.Verify(req.Header, body, *key); err != nil {
			return http.StatusUnauthorized, fault.Public(err)
		}
		if challenge, ok := webhook.Challenge(req.Header, body); ok {
			return echo(w, challenge)
		}
	}
	if r.deliver(req.Header, body, *key != "") != nil {
		return http.StatusServiceUnavailable, "not taken"
	}
	return http.StatusNoContent, ""
}

// awaitSecret is how long a webhook may wait for the answer to the registration
// that it overtook; with a 503 it would only come again seconds later.
const awaitSecret = 10 * time.Second

// await is the key, once it is known; nil if that takes too long.
func (r *Receiver) await(ctx context.Context) *string {
	select {
	case <-r.ready:
	case <-time.After(awaitSecret):
	case <-r.closed:
	case <-ctx.Done():
	}
	return r.key.Load()
}

// maxChallenge bounds the body of a challenge in bytes.
const maxChallenge = 4 << 10

// echoUnverified answers the challenge of a server that verifies registrations. It comes before the answer that has the
// secret, so its signature cannot be checked; an echo only says that webhooks may come, each of which is verified.
func echoUnverified(w http.ResponseWriter, req *http.Request) (status int, reason string) {
	body, status, _ := readBody(w, req, maxChallenge)
	challenge, ok := webhook.Challenge(req.Header, body)
	if status != 0 || !ok {
		return http.StatusBadRequest, "no challenge"
	}
	return echo(w, challenge)
}

// readBody reads the body of a webhook. A status refuses it.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) (body []byte, status int, reason string) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		return nil, http.StatusMethodNotAllowed, "POST webhooks here"
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if _, large := errors.AsType[*http.MaxBytesError](err); large {
		return nil, http.StatusRequestEntityTooLarge, "too large"
	} else if err != nil {
		return nil, http.StatusBadRequest, "the body broke off"
	}
	return body, 0, ""
}

// echo answers a challenge.
func echo(w http.ResponseWriter, challenge string) (status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"challenge": challenge})
	return http.StatusOK, ""
}

// respond answers with what became of a webhook.
func respond(w http.ResponseWriter, r *http.Request, log *slog.Logger, status int, reason string) {
	switch status {
	case http.StatusOK: // the challenge is echoed
	case http.StatusNoContent:
		w.WriteHeader(status)
	default:
		log.Warn("webhook refused", "status", status, "reason", reason, "id", r.Header.Get(webhook.HeaderID), "from", r.RemoteAddr)
		http.Error(w, reason, status)
	}
}

// deliver reads the body of a webhook, and hands it on.
func (r *Receiver) deliver(h http.Header, content []byte, verified bool) error {
	out := Event{Via: "webhook", ID: h.Get(webhook.HeaderID), Subscription: h.Get(webhook.HeaderSubscription), Verified: &verified, Received: time.Now()}
	var body struct {
		Type      string          `json:"type"`
		URI       string          `json:"uri"`
		Timestamp string          `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(content, &body); err != nil {
		r.log.Warn("webhook is not JSON", "id", out.ID)
		out.Data, _ = json.Marshal(string(content)) // a text
		return r.take(out)
	}
	out.Time, out.Data, out.Name, out.URI = body.Timestamp, body.Data, body.Type, body.URI
	return r.take(out)
}

// drainTime bounds the end of a receiver, of a session and of a subscription.
const drainTime = 5 * time.Second

// ending is the context of what is done at the end, also when ctx has ended.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), drainTime)
}

package client

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/webhook"
)

// Receiver is an endpoint in this process for the webhooks of a [Registration] (SEP-1803). Those of MCP Events have
// the [Handler].
type Receiver struct {
	// URL is where it listens.
	URL string
	// Failed receives the error that ended it, if one does.
	Failed chan error

	take   func(Event) error
	log    *slog.Logger
	server *http.Server

	ready  chan struct{} // closed when the secret is known, or that there is none
	closed chan struct{} // closed when the receiver ends
	served chan struct{} // closed when the server has ended
	once   sync.Once
	mu     sync.Mutex
	key    string // empty when webhooks are not signed
}

// NewReceiver listens and hands what arrives, verified, to take.
func NewReceiver(addr string, take func(Event) error, log *slog.Logger) (*Receiver, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "listen for webhooks")
	}
	r := &Receiver{
		URL: "http://" + l.Addr().String() + "/", Failed: make(chan error, 1), take: take, log: log,
		ready: make(chan struct{}), closed: make(chan struct{}), served: make(chan struct{}),
	}
	verifying := &webhook.ReceiverHandler{
		Secrets: func(string) []string { return []string{r.secretNow()} },
		Deliver: func(_ context.Context, w webhook.Received) error { return r.deliver(w, true) },
	}
	r.server = &http.Server{
		ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			if r.secretNow() == "" && r.echo(w, req) {
				return
			}
			if !r.await(req.Context()) {
				http.Error(w, "not registered yet", http.StatusServiceUnavailable)
				return
			}
			if r.secretNow() == "" {
				r.serveUnsigned(w, req)
				return
			}
			s := &statusWriter{ResponseWriter: w, status: http.StatusOK}
			verifying.ServeHTTP(s, req)
			if s.status >= 400 {
				log.Warn("request refused", "status", s.status, "id", req.Header.Get(webhook.HeaderID), "from", req.RemoteAddr)
			}
		}),
	}
	go func() {
		defer close(r.served)
		if err := r.server.Serve(l); err != http.ErrServerClosed {
			r.Failed <- fault.Wrap(fault.Unavailable, err, "receive webhooks")
		}
	}()
	return r, nil
}

// awaitSecret is how long a webhook may wait for the answer to the registration
// that it overtook; with a 503 it would only come again seconds later.
const awaitSecret = 10 * time.Second

func (r *Receiver) await(ctx context.Context) bool {
	select {
	case <-r.ready:
		return true
	default:
	}
	timer := time.NewTimer(awaitSecret)
	defer timer.Stop()
	select {
	case <-r.ready:
		return true
	case <-timer.C:
	case <-r.closed:
	case <-ctx.Done():
	}
	return false
}

// secret says what webhooks are signed with.
func (r *Receiver) secret(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.key = key
	r.once.Do(func() { close(r.ready) })
}

// unsigned says that the server does not sign: its operator has chosen so.
func (r *Receiver) unsigned() { r.secret("") }

func (r *Receiver) secretNow() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.key
}

// Close ends it.
func (r *Receiver) Close() {
	close(r.closed)
	ctx, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	if r.server.Shutdown(ctx) != nil {
		_ = r.server.Close()
	}
	<-r.served
}

// echo answers the challenge of a server that verifies registrations. It comes before the answer that has the secret, so
// its signature cannot be checked; an echo only says that webhooks may come, each of which is verified.
func (r *Receiver) echo(w http.ResponseWriter, req *http.Request) bool {
	if !strings.HasPrefix(req.Header.Get(webhook.HeaderID), webhook.VerificationPrefix) {
		return false
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, maxChallenge))
	challenge, ok := webhook.Challenge(req.Header, body)
	if err != nil || !ok {
		http.Error(w, "no challenge", http.StatusBadRequest)
		return true
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"challenge": challenge})
	return true
}

// maxChallenge bounds the body of a challenge in bytes.
const maxChallenge = 4 << 10

func (r *Receiver) serveUnsigned(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, webhook.DefaultMaxReceived))
	if err != nil || req.Method != http.MethodPost {
		http.Error(w, "POST webhooks here", http.StatusBadRequest)
		return
	}
	err = r.deliver(webhook.Received{
		ID: req.Header.Get(webhook.HeaderID), Subscription: req.Header.Get(webhook.HeaderSubscription), Body: body,
	}, false)
	if err != nil {
		http.Error(w, "not taken", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// deliver reads the body of a webhook.
func (r *Receiver) deliver(w webhook.Received, verified bool) error {
	out := Event{Via: "webhook", ID: w.ID, Subscription: w.Subscription, Verified: &verified, Received: time.Now()}
	var body struct {
		Type      string          `json:"type"`
		URI       string          `json:"uri"`
		Timestamp string          `json:"timestamp"`
		Data      json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(w.Body, &body); err != nil {
		r.log.Warn("webhook is not JSON", "id", w.ID)
		out.Data, _ = json.Marshal(string(w.Body)) // a text
		return r.take(out)
	}
	out.Time, out.Data, out.Name, out.URI = body.Timestamp, body.Data, body.Type, body.URI
	return r.take(out)
}

// statusWriter remembers the status that was sent.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (s *statusWriter) WriteHeader(status int) {
	s.status = status
	s.ResponseWriter.WriteHeader(status)
}

// drainTime bounds the end of a receiver.
const drainTime = 5 * time.Second

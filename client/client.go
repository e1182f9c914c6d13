package client

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// The kinds of errors, for use with [errors.Is].
var (
	// ErrInvalid is the error of options, arguments or data that are malformed.
	ErrInvalid error = fault.Invalid
	// ErrUnauthenticated is the error of a missing or wrong key.
	ErrUnauthenticated error = fault.Unauthenticated
	// ErrForbidden is the error of a caller without the right to do this.
	ErrForbidden error = fault.Forbidden
	// ErrNotFound is the error of an event type or URI that the server does not show to this caller.
	ErrNotFound error = fault.NotFound
	// ErrUnsupported is the error of a mode or method that the server or this client does not offer.
	ErrUnsupported error = fault.Unsupported
	// ErrExhausted is the error of a reached limit or quota. It is [Retryable].
	ErrExhausted error = fault.Exhausted
	// ErrUnavailable is the error of a server that does not answer, or of a store that fails. It is [Retryable].
	ErrUnavailable error = fault.Unavailable
	// ErrConflict is the error of a [File] that belongs to another subscription.
	ErrConflict error = fault.Conflict
	// ErrTooLarge is the error of data over a limit of the server.
	ErrTooLarge error = fault.TooLarge
	// ErrSchema is the error of an event that does not match the schema of its type.
	ErrSchema error = fault.Unprocessable
)

// Retryable reports whether a call that failed with err may succeed when it is repeated.
func Retryable(err error) bool { return httpcall.Retryable(err) }

// Options configure [Connect]. The zero value is for a server that asks for no credentials, and keeps cursors in memory.
type Options struct {
	// Key is sent as Authorization: Bearer. An empty key sends no header.
	Key string
	// HTTP sends the requests. Use it for proxies, certificates, and tokens that expire, for example with an
	// oauth2.Transport. Its Timeout bounds requests but not streams. Nil is [http.DefaultClient].
	HTTP *http.Client
	// Agent names the program to the server as NAME/VERSION.
	Agent string
	// Revision is the revision of MCP to speak, for example 2025-11-25. If it is empty, Connect chooses the newest one that
	// both know. Otherwise Connect sends no request.
	Revision string
	// Store keeps cursors; nil keeps them in memory.
	Store Store
	// Webhooks receives webhooks; nil is for a program that the server cannot reach.
	Webhooks *Handler
	// MinPoll is the shortest time between two polls, whatever the server asks for; 0 is a second.
	MinPoll time.Duration
	// Log receives repeated requests and reports of the server; nil discards them.
	Log *slog.Logger
}

// Client is a connection to an MCP server. Its methods may be called concurrently.
type Client struct {
	options Options
	log     *slog.Logger
	server  httpcall.Server
	url     string
	version spec.Version
	session atomic.Pointer[string] // of the revisions that have sessions
	begun   atomic.Bool            // the session has begun and has not ended yet
	renewal sync.Mutex
	seq     atomic.Int64
	memory  memory
	silence time.Duration
}

// Connect returns a client of the MCP endpoint at url. It negotiates the newest revision that both know: 2026-07-28, which
// has no sessions, or a session of an earlier one, which [Client.Close] ends. If the server does not answer, Connect tries
// five times.
func Connect(ctx context.Context, url string, o Options) (*Client, error) {
	c, err := newClient(url, o)
	if err != nil || o.Revision != "" {
		return c, err
	}
	var discovered struct {
		Versions []spec.Version `json:"supportedVersions"`
	}
	err = c.persist(ctx, func() error {
		_, err := c.exchange(ctx, spec.MethodDiscover, nil, &discovered)
		return err
	})
	switch {
	case err == nil && slices.Contains(discovered.Versions, spec.V20260728):
		return c, nil
	case ctx.Err() != nil, Retryable(err), fault.Is(err, fault.Unauthenticated), fault.Is(err, fault.Forbidden):
		return nil, err
	}
	for _, c.version = range spec.Versions[1:] {
		failed := c.persist(ctx, func() error { return c.begin(ctx) })
		if failed == nil {
			return c, nil
		}
		err = errors.Join(err, failed)
	}
	return nil, err
}

// newClient returns a client that has sent no request.
func newClient(url string, o Options) (*Client, error) {
	c := &Client{
		options: o, log: logTo(o.Log), server: httpcall.Server{URL: url, Key: o.Key, Agent: o.Agent, HTTP: o.HTTP},
		version: spec.V20260728, silence: deadAfter,
	}
	if o.Revision != "" {
		c.version = spec.Version(o.Revision)
		if !slices.Contains(spec.Versions, c.version) {
			return nil, fault.New(fault.Unsupported, "unknown revision %.32q (known: %v)", o.Revision, spec.Versions)
		}
	}
	var err error
	c.url, err = c.server.Endpoint("/mcp")
	c.setSession("")
	return c, err
}

// fork returns a client of the same server with a session of its own.
func (c *Client) fork() *Client {
	own := &Client{options: c.options, log: c.log, server: c.server, url: c.url, version: c.version, silence: c.silence}
	own.setSession("")
	return own
}

// stateless reports whether the revision has no sessions.
func (c *Client) stateless() bool { return c.version.Stateless() }

// implementation is the clientInfo that servers see.
func (c *Client) implementation() map[string]string {
	name, version, _ := strings.Cut(c.server.Agent, "/")
	return map[string]string{"name": name, "version": version}
}

// begin starts a session if the revision has sessions.
func (c *Client) begin(ctx context.Context) error {
	if c.stateless() {
		return nil
	}
	c.setSession("")
	c.begun.Store(false)
	var result struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	header, err := c.exchange(ctx, spec.MethodInitialize, map[string]any{
		"protocolVersion": c.version, "capabilities": map[string]any{}, "clientInfo": c.implementation(),
	}, &result)
	if err != nil {
		return err
	}
	if result.ProtocolVersion != string(c.version) {
		return fault.New(fault.Unsupported, "the server offers revision %.32q and not %s", result.ProtocolVersion, c.version)
	}
	c.setSession(header.Get("Mcp-Session-Id"))
	body := []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	resp, b, err := c.server.Do(ctx, http.MethodPost, c.url, c.header(spec.NoteInitialized, nil), body)
	if err == nil && resp.StatusCode >= 300 {
		err = httpcall.ReadRefusal(resp, b)
	}
	c.begun.Store(err == nil)
	return err
}

// errSessionGone means that the server has ended or lost the session.
var errSessionGone = fault.New(fault.NotFound, "the session has ended")

func (c *Client) sessionID() string { return *c.session.Load() }

func (c *Client) setSession(id string) { c.session.Store(&id) }

// call sends a request and returns the header of the response. It starts a new session if the last one has ended, or if an
// earlier call could not start one.
func (c *Client) call(ctx context.Context, method string, params map[string]any, result any) (http.Header, error) {
	session := c.sessionID()
	if c.stateless() || c.begun.Load() {
		header, err := c.exchange(ctx, method, params, result)
		if !errors.Is(err, errSessionGone) {
			return header, err
		}
		c.log.Warn("session ended, starting a new one")
	}
	if err := c.renew(ctx, session); err != nil {
		return nil, err
	}
	header, err := c.exchange(ctx, method, params, result)
	if errors.Is(err, errSessionGone) {
		err = fault.New(fault.Unavailable, "%s: the new session has ended, too", method)
	}
	return header, err
}

// renew starts a new session unless another goroutine has replaced the given one already.
func (c *Client) renew(ctx context.Context, gone string) error {
	c.renewal.Lock()
	defer c.renewal.Unlock()
	if c.begun.Load() && c.sessionID() != gone {
		return nil
	}
	return c.begin(ctx)
}

// logTo returns log, or a logger that discards everything if log is nil.
func logTo(log *slog.Logger) *slog.Logger {
	if log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return log
}

// storeOf returns the store that keeps the cursor of a subscription.
func (c *Client) storeOf(o SubscribeOptions) Store {
	switch {
	case o.Store != nil:
		return o.Store
	case c.options.Store != nil:
		return c.options.Store
	}
	return &c.memory
}

// Close ends the session, if there is one, within five seconds. Close subscriptions before, because those that still run
// begin a session of their own.
func (c *Client) Close() error {
	if c.sessionID() == "" {
		return nil
	}
	ctx, cancel := ending(context.Background())
	defer cancel()
	_, _, err := c.server.Do(ctx, http.MethodDelete, c.url, c.header("", nil), nil)
	return err
}

// Call sends a request of MCP, for example tools/call, and decodes its result. Result may be nil.
func (c *Client) Call(ctx context.Context, method string, params map[string]any, result any) error {
	_, err := c.call(ctx, method, params, result)
	return err
}

// drainTime bounds the end of a handler, of a session and of a subscription.
const drainTime = 5 * time.Second

// ending returns a context for the requests that end something, which may have to run after ctx has ended.
func ending(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), drainTime)
}

// maxTries is how often a request is sent that the server does not answer.
const maxTries = 5

// persist repeats a retryable call. If ctx ends during a repetition, persist returns the error of the try before, because
// that says what is wrong.
func (c *Client) persist(ctx context.Context, do func() error) error {
	var last error
	for try := 0; ; try++ {
		err := do()
		if last != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			return last
		}
		if err == nil || !Retryable(err) || try+1 >= maxTries {
			return err
		}
		last = err
		c.log.Warn("request failed, retrying", "try", try+2, "of", maxTries, "error", err)
		_ = httpcall.Sleep(ctx, try, 0) // if ctx ends, the next try fails
	}
}

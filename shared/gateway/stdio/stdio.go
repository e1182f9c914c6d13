// Package stdio runs backends that are commands: MCP servers that read messages from standard input and write messages to standard output,
// one per line.
//
//	stdio.go     the transport through which the gateway reaches commands
//	server.go    one backend: its shared process, its clients' processes, how many there may be, and the pauses between starts
//	process.go   one process: which revision the command speaks, its streams and its end
//	route.go     which request a message of a process belongs to
//	exchange.go  a request and the messages that answer it
//
// [Transport] is an [http.RoundTripper], so that the rest of the gateway sees a backend over Streamable HTTP. In 2026-07-28, all requests
// to a backend, also the gateway's own, share one process. In the earlier revisions, each session of a client has its own process, whose id
// is the session id. A command's output is as untrusted as messages over HTTP, and shared/gateway/upstream checks both in the same way.
package stdio

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Transport sends requests for the URLs of [api.Command.URL] to processes of commands. It is safe for concurrent use.
type Transport struct {
	// Source returns the current backends. The transport runs only their commands.
	Source func(context.Context) ([]api.Backend, error)
	// Secrets resolves the values of a command's environment when a process starts.
	Secrets func(context.Context, secret.Value) (string, error)
	Server  json.RawMessage // the MCP Implementation object of the gateway
	// Dropped is called for each message of a backend that the transport drops because it is unusable, for example not JSON. It may be
	// nil.
	Dropped func(ctx context.Context, b api.Backend, reason string)
	Log     *slog.Logger
	// Processes limits the processes of clients' sessions in total, and PerPrincipal for each principal. 0 means 64 and 16. The backends'
	// shared processes do not count.
	Processes, PerPrincipal int
	// StartTime limits how long a command may take to answer for the first time; 0 means 2 minutes. ProbeTime is how long the transport
	// waits for the answer to server/discover before it also tries initialize, which the earlier revisions need; 0 means 5 s.
	StartTime, ProbeTime time.Duration
	// Grace is how long a process may take to end after its standard input was closed, and again after SIGTERM; 0 means 2 s.
	Grace time.Duration

	mu        sync.Mutex
	closed    bool
	servers   map[string]*server // by URL
	processes map[*process]bool
	sessions  map[string]*process // the processes by session id
}

func (t *Transport) startTime() time.Duration { return cmp.Or(t.StartTime, 2*time.Minute) }
func (t *Transport) probeTime() time.Duration { return cmp.Or(t.ProbeTime, 5*time.Second) }
func (t *Transport) grace() time.Duration     { return cmp.Or(t.Grace, 2*time.Second) }

// RoundTrip sends the message in a request to a process. A message in a session goes to the session's process, and a client's initialize
// to a new process. Other messages go to the backend's shared process, which RoundTrip starts if necessary.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		body, err = io.ReadAll(req.Body)
		_ = req.Body.Close()
		if err != nil {
			return nil, err
		}
	}
	s, err := t.server(req.Context(), req.URL.String())
	if err != nil {
		return nil, err
	}
	if session := req.Header.Get(spec.HeaderSession); session != "" {
		return s.inSession(req, session, body)
	}
	if req.Method != http.MethodPost {
		return respond(req, http.StatusMethodNotAllowed, nil), nil
	}
	id, method := jsonrpc.Member(body, "id"), methodOf(body)
	holder := upstream.DeclaredIn(req.Context()).Holder
	if method == spec.MethodInitialize && holder != "" {
		return s.begin(req, holder, id, body)
	}
	p, err := s.getShared(req.Context())
	if err != nil {
		return nil, err
	}
	switch {
	case method == spec.MethodInitialize && !p.stateless:
		resp := respond(req, http.StatusOK, jsonrpc.AppendResult(nil, id, p.initialized))
		resp.Header.Set(spec.HeaderSession, p.id)
		return resp, nil
	case (method == spec.MethodInitialize || !p.stateless) && id != nil:
		text := "the command does not speak a revision that has " + method
		return respond(req, http.StatusOK, jsonrpc.AppendError(nil, id, &jsonrpc.Error{Code: jsonrpc.MethodNotFound, Message: text})), nil
	}
	resp, err := p.post(req, id, method, body)
	if errors.Is(err, io.ErrClosedPipe) { // the process has just ended, and did not get the message
		if p, err = s.getShared(req.Context()); err == nil {
			resp, err = p.post(req, id, method, body)
		}
	}
	return resp, err
}

func (s *server) inSession(req *http.Request, session string, body []byte) (*http.Response, error) {
	s.t.mu.Lock()
	p := s.t.sessions[session]
	s.t.mu.Unlock()
	if p == nil || p.server != s || p.isEnding() {
		return respond(req, http.StatusNotFound, nil), nil
	}
	switch req.Method {
	case http.MethodDelete:
		if p.holder != "" { // the shared process keeps running, because there may be further sessions of the gateway
			p.stop("its session ended")
		}
		return respond(req, http.StatusNoContent, nil), nil
	case http.MethodGet:
		return p.listen(req), nil
	}
	method := methodOf(body)
	if p.holder == "" && method == spec.NoteInitialized {
		// The gateway has already sent notifications/initialized to the shared process, in its own handshake, so do not send it again.
		return respond(req, http.StatusAccepted, nil), nil
	}
	resp, err := p.post(req, jsonrpc.Member(body, "id"), method, body)
	if errors.Is(err, io.ErrClosedPipe) { // the process has just ended, and did not get the message
		return respond(req, http.StatusNotFound, nil), nil
	}
	return resp, err
}

func (t *Transport) server(ctx context.Context, url string) (*server, error) {
	t.mu.Lock()
	s := t.servers[url]
	t.mu.Unlock()
	if s != nil {
		return s, nil
	}
	if err := t.Sync(ctx); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if s = t.servers[url]; s == nil {
		return nil, fault.New(fault.Unavailable, "no backend has this command any more")
	}
	return s, nil
}

// Sync reads the current backends. The processes of removed backends end after their last call.
func (t *Transport) Sync(ctx context.Context) error {
	all, err := t.Source(ctx)
	if err != nil {
		return err
	}
	commands := map[string]api.Backend{}
	for _, b := range all {
		if b.Command != nil {
			commands[b.URL] = b
		}
	}
	t.mu.Lock()
	var gone []*server
	maps.DeleteFunc(t.servers, func(url string, s *server) bool {
		_, stays := commands[url]
		if !stays {
			gone = append(gone, s)
		}
		return !stays
	})
	for url, b := range commands {
		if t.servers[url] == nil && !t.closed {
			if t.servers == nil {
				t.servers = map[string]*server{}
			}
			t.servers[url] = &server{t: t, backend: b}
		}
	}
	t.mu.Unlock()
	for _, s := range gone {
		s.retire()
	}
	return nil
}

// Touch records that a client uses a backend, so that the backend's shared process keeps running.
func (t *Transport) Touch(b api.Backend) {
	if p := t.sharedProcess(b); p != nil {
		p.touch()
	}
}

// Running reports whether the backend's shared process runs and is not about to stop because it is idle.
func (t *Transport) Running(b api.Backend) bool {
	p := t.sharedProcess(b)
	return p != nil && !p.isLeaving()
}

// Failing reports whether the last shared process of the backend has failed, and no other one is running now.
func (t *Transport) Failing(b api.Backend) bool {
	s := t.findServer(b)
	return s != nil && s.readyProcess() == nil && s.failed.Load()
}

func (t *Transport) sharedProcess(b api.Backend) *process {
	s := t.findServer(b)
	if s == nil {
		return nil
	}
	return s.readyProcess()
}

// findServer returns the server of a backend, or nil if [Transport.Sync] has not read the backend.
func (t *Transport) findServer(b api.Backend) *server {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.servers[b.URL]
}

// Close ends all processes and waits for them. When ctx ends, it kills the rest.
func (t *Transport) Close(ctx context.Context) {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	all := t.listProcesses()
	for _, p := range all {
		p.stop("the server shuts down")
	}
	hurry := context.AfterFunc(ctx, func() {
		for _, p := range all {
			p.kill()
		}
	})
	defer hurry()
	for _, p := range all {
		<-p.done
	}
}

func (t *Transport) listProcesses() []*process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.processes))
}

// respond returns a complete HTTP response with a JSON body or only a status.
func respond(req *http.Request, status int, body []byte) *http.Response {
	h := http.Header{}
	if body != nil {
		h.Set("Content-Type", "application/json")
	}
	return response(req, status, h, io.NopCloser(bytes.NewReader(body)))
}

func response(req *http.Request, status int, h http.Header, body io.ReadCloser) *http.Response {
	return &http.Response{
		Status: http.StatusText(status), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: body, ContentLength: -1, Request: req,
	}
}

func stream(req *http.Request, x *exchange) *http.Response {
	return response(req, http.StatusOK, http.Header{"Content-Type": {sse.ContentType}}, x)
}

func methodOf(message json.RawMessage) string {
	method, _ := jsonrpc.String(jsonrpc.Member(message, "method"))
	return method
}

// newUnsentError returns the error for a request that was not sent to any process. The MCP client may see the reason why.
func newUnsentError(kind fault.Kind, b api.Backend, why string) *upstream.UnsentError {
	return &upstream.UnsentError{Fault: fault.New(kind, "backend %s %s", b.Name, why)}
}

// oneLine replaces the line breaks in a message by spaces, because over stdio a line break ends the message. JSON has line breaks only
// between tokens.
func oneLine(message []byte) []byte {
	if bytes.ContainsAny(message, "\r\n") {
		message = []byte(strings.NewReplacer("\r", " ", "\n", " ").Replace(string(message)))
	}
	return message
}

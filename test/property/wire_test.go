package property

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// key is the API key of the only caller.
const key = "alice-key"

// request returns a call of revision 2026-07-28 with params.
func request(ctx context.Context, method string, params map[string]any) *http.Request {
	all := map[string]any{"_meta": map[string]any{
		spec.MetaVersion: spec.V20260728, spec.MetaCapabilities: map[string]any{},
	}}
	for name, value := range params {
		all[name] = value
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": all})
	if err != nil {
		panic(err) // texts and numbers
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1/mcp", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Accept", "application/json, text/event-stream")
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set(spec.HeaderVersion, string(spec.V20260728))
	r.Header.Set(spec.HeaderMethod, method)
	if member := spec.Mirrored[method]; member != "" {
		if name, ok := params[member].(string); ok {
			r.Header.Set(spec.HeaderName, spec.EncodeHeader(name))
		}
	}
	return r
}

// rpc is a JSON-RPC message.
type rpc struct {
	Method string
	Params struct {
		Cursor    string
		Truncated bool
		Data      payload
		Error     json.RawMessage
	}
	Result json.RawMessage
	Error  *struct {
		Code    int
		Message string
		Data    json.RawMessage
	}
}

// call sends a request to an endpoint and decodes its result.
func call(ctx context.Context, e *mcp.Endpoint, method string, params map[string]any, into any) error {
	w := httptest.NewRecorder()
	e.ServeHTTP(w, request(ctx, method, params))
	var m rpc
	if err := json.Unmarshal(w.Body.Bytes(), &m); err != nil {
		return fmt.Errorf("%s: status %d, body %.200q", method, w.Code, w.Body)
	}
	if m.Error != nil {
		return fmt.Errorf("%s: status %d, error %d %s %s", method, w.Code, m.Error.Code, m.Error.Message, m.Error.Data)
	}
	return json.Unmarshal(m.Result, into)
}

var errStreamEnded = errors.New("the stream ended")

// sseStream is an open stream, read frame by frame. Frames that the client has not read are lost when it closes
// the stream, as on a connection that was cut.
type sseStream struct {
	cancel context.CancelFunc
	header http.Header
	status int
	done   chan struct{} // closed when the server has ended the answer
	wake   chan struct{}

	mu      sync.Mutex
	written bytes.Buffer
}

// open starts a stream. The server runs in this process, so its answer needs no connection.
func open(ctx context.Context, e *mcp.Endpoint, r *http.Request) *sseStream {
	ctx, cancel := context.WithCancel(ctx)
	s := &sseStream{cancel: cancel, header: http.Header{}, status: http.StatusOK, done: make(chan struct{}), wake: make(chan struct{}, 1)}
	go func() {
		defer close(s.done)
		e.ServeHTTP(s, r.WithContext(ctx))
	}()
	return s
}

func (s *sseStream) Header() http.Header    { return s.header }
func (s *sseStream) WriteHeader(status int) { s.status = status }
func (s *sseStream) Flush()                 {}

func (s *sseStream) Write(b []byte) (int, error) {
	s.mu.Lock()
	s.written.Write(b)
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
	return len(b), nil
}

// close cuts the connection and waits until the server has noticed.
func (s *sseStream) close() {
	s.cancel()
	<-s.done
}

// next returns the next message.
func (s *sseStream) next(ctx context.Context) (m rpc, err error) {
	for {
		frame, ok := s.frame()
		if ok {
			text := ""
			for line := range strings.Lines(frame) {
				if data, is := strings.CutPrefix(line, "data:"); is {
					text += strings.TrimSpace(data)
				}
			}
			if text == "" {
				continue // a comment
			}
			return m, json.Unmarshal([]byte(text), &m)
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return m, ctx.Err()
		case <-s.done:
			if s.pending() {
				continue
			}
			return m, fmt.Errorf("%w: status %d, %.300s", errStreamEnded, s.status, s.rest())
		}
	}
}

func (s *sseStream) frame() (string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := bytes.Index(s.written.Bytes(), []byte("\n\n"))
	if end < 0 {
		return "", false
	}
	return string(s.written.Next(end + 2)), true
}

// rest returns the unread end of the answer.
func (s *sseStream) rest() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.written.String()
}

// pending reports whether a whole frame waits.
func (s *sseStream) pending() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return bytes.Contains(s.written.Bytes(), []byte("\n\n"))
}

package check

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

const (
	// callTime limits the duration of a request. It is long, because before the server answers events/subscribe, it may send a challenge
	// to the receiver of webhooks and wait for the echo.
	callTime = 30 * time.Second
	// maxAnswer limits the size, in bytes, of an answer and of each message of a stream.
	maxAnswer = 8 << 20
)

// conn sends requests of revision 2026-07-28 of MCP, because MCP Events is defined for this revision.
type conn struct {
	url, key, agent string
	client          *http.Client
	results         *results
	seq             int
}

type answer struct {
	status int
	result json.RawMessage
	err    *rpcError
	body   []byte
}

type rpcError struct {
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
}

func (a *answer) code() int {
	if a.err == nil {
		return 0
	}
	return a.err.Code
}

// String describes the server's answer, for the report on a failed rule.
func (a *answer) String() string {
	switch {
	case a.err != nil:
		return fmt.Sprintf("error %d %s", a.err.Code, clip([]byte(a.err.Message)))
	case a.result != nil:
		return "the result " + clip(a.result)
	}
	return fmt.Sprintf("HTTP %d %s", a.status, clip(a.body))
}

// call sends a request with the key of the options, and returns the server's answer. Any HTTP response counts as an answer, even a
// refusal. But if the response is a stream without a JSON-RPC response, call returns an error.
func (c *conn) call(ctx context.Context, method string, params map[string]any) (*answer, error) {
	return c.callAs(ctx, c.key, method, params)
}

func (c *conn) callAs(ctx context.Context, key, method string, params map[string]any) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	resp, _, err := c.send(ctx, key, method, params)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	a, err := decodeAnswer(resp)
	if err != nil {
		return nil, err
	}
	if a.result != nil && strings.HasPrefix(method, "events/") {
		var result struct{ ResultType string }
		_ = json.Unmarshal(a.result, &result)
		c.results.judge(ruleComplete, result.ResultType == "complete", "%s: the result has resultType %q", method, result.ResultType)
	}
	return a, nil
}

func decodeAnswer(resp *http.Response) (a *answer, err error) {
	a = &answer{status: resp.StatusCode}
	a.body, err = message(resp)
	a.read()
	return a, err
}

func (a *answer) read() {
	var m struct {
		Result json.RawMessage `json:"result"`
		Error  *rpcError       `json:"error"`
	}
	if json.Unmarshal(a.body, &m) == nil {
		a.result, a.err = m.Result, m.Error
	}
}

// message returns the body of an HTTP response. If the body is a stream, message returns the JSON-RPC response in the stream.
func message(resp *http.Response) ([]byte, error) {
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		return io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	}
	for r := sse.NewReader(resp.Body, maxAnswer); ; {
		e, err := r.Next()
		if err != nil {
			return nil, fmt.Errorf("the stream ended without an answer: %w", err)
		}
		var m struct {
			Method string `json:"method"`
		}
		if len(e.Data) > 0 && json.Unmarshal(e.Data, &m) == nil && m.Method == "" {
			return e.Data, nil
		}
	}
}

func (c *conn) send(ctx context.Context, key, method string, params map[string]any) (*http.Response, int, error) {
	c.seq++
	id := c.seq
	name, version, _ := strings.Cut(c.agent, "/")
	params["_meta"] = map[string]any{
		spec.MetaVersion:      spec.V20260728,
		spec.MetaClient:       map[string]string{"name": name, "version": version},
		spec.MetaCapabilities: map[string]any{"extensions": map[string]any{spec.EventsExtension: map[string]any{}}},
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err != nil {
		return nil, id, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return nil, id, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, "+sse.ContentType)
	req.Header.Set("User-Agent", c.agent)
	req.Header.Set(spec.HeaderVersion, string(spec.V20260728))
	req.Header.Set(spec.HeaderMethod, method)
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := c.client.Do(req)
	return resp, id, httpcall.RedactError(err)
}

type note struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	at     time.Time
}

type stream struct {
	id    int
	notes chan note // closed when the stream has ended
	close context.CancelFunc
}

// maxNotes is how many messages of a stream wait in a channel until a check reads them. If the channel is full, the next message stays in
// the connection.
const maxNotes = 1000

var errNoStream = errors.New("the answer is not a stream")

// open opens a stream of events. If the server's answer is not a stream, but for example an error, open returns that answer and
// errNoStream.
func (c *conn) open(ctx context.Context, params map[string]any) (*stream, *answer, error) {
	ctx, cancel := context.WithCancel(ctx)
	begun := time.AfterFunc(callTime, cancel)
	resp, id, err := c.send(ctx, c.key, spec.MethodEventsStream, params)
	if err != nil {
		cancel()
		return nil, nil, err
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		defer cancel()
		defer func() { _ = resp.Body.Close() }()
		a, err := decodeAnswer(resp)
		return nil, a, cmp.Or(err, errNoStream)
	}
	begun.Stop()
	s := &stream{id: id, notes: make(chan note, maxNotes), close: cancel}
	go s.read(ctx, resp.Body)
	return s, nil, nil
}

// openRefused tries to open a stream that the server must refuse, and returns the answer. The server may send the error in the HTTP
// response, or as the first message of a stream. openRefused waits for that message for at most the time wait. If the server accepts the
// stream, the returned answer has no error.
func (c *conn) openRefused(ctx context.Context, params map[string]any, wait time.Duration) (*answer, error) {
	s, a, err := c.open(ctx, params)
	if errors.Is(err, errNoStream) {
		return a, nil
	}
	if err != nil {
		return nil, err
	}
	defer s.close()
	select {
	case n := <-s.notes:
		a := &answer{body: n.Params}
		if n.Method == "" {
			a.read()
		}
		return a, nil
	case <-time.After(wait):
		return &answer{}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (s *stream) read(ctx context.Context, body io.ReadCloser) {
	defer close(s.notes)
	defer func() { _ = body.Close() }()
	for r := sse.NewReader(body, maxAnswer); ; {
		e, err := r.Next()
		if err != nil {
			return
		}
		n := note{at: time.Now()}
		if len(e.Data) == 0 || json.Unmarshal(e.Data, &n) != nil {
			continue
		}
		if n.Method == "" { // the JSON-RPC response: an error, or the end of the stream
			n.Params = e.Data
		}
		select {
		case s.notes <- n:
		case <-ctx.Done():
			return
		}
	}
}

// next waits for a notification with the given method, for at most the time wait. It calls the function seen with each message that it
// reads, so that the caller can also check the messages before the notification.
func (s *stream) next(ctx context.Context, wait time.Duration, method string, seen func(note)) (note, error) {
	late := time.After(wait)
	for {
		select {
		case n, ok := <-s.notes:
			if !ok {
				return note{}, errors.New("the stream ended")
			}
			seen(n)
			if n.Method == method {
				return n, nil
			}
		case <-late:
			return note{}, fmt.Errorf("no %s within %s", method, wait)
		case <-ctx.Done():
			return note{}, ctx.Err()
		}
	}
}

//go:build unix

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/harness"
)

// caller is a client that keeps every received message as raw JSON for later checks.
type caller struct {
	*harness.Client
	http *http.Client
	// choose returns the way to answer the next question.
	choose func() string
	// onQuestion is called with the id of each question before it is answered. It may be nil.
	onQuestion func(id string)
}

func newCaller(c *harness.Client, transport http.RoundTripper) *caller {
	c.Capabilities = map[string]any{"elicitation": map[string]any{}, "sampling": map[string]any{}, "roots": map[string]any{}}
	return &caller{Client: c, http: &http.Client{Transport: transport}, choose: func() string { return accept }}
}

// The ways to answer a question.
const (
	accept  = "accept"
	decline = "decline"
	cancel  = "cancel"
	failing = "error"
	silence = "silence"
)

// request is a tools/call request. The mark is a text that occurs in no other call.
type request struct {
	tool, mark string
	id, token  json.RawMessage
	arguments  map[string]any
}

// outcome contains everything that a client received for a call.
type outcome struct {
	messages []harness.Message // before the response, in their order
	answers  []string          // the way each question was answered
	response *harness.Message  // nil if the stream ended without one
	rounds   int
	status   int
}

// text returns the result as JSON, or the error.
func (o *outcome) text() string {
	switch {
	case o.response == nil:
		return ""
	case o.response.Error != nil:
		return o.response.Error.Error()
	}
	return string(o.response.Result)
}

// progress returns the values of the progress notifications.
func (o *outcome) progress() (values []float64) {
	for _, m := range o.messages {
		if m.Method == "notifications/progress" {
			var p struct{ Progress float64 }
			_ = json.Unmarshal(m.Params, &p) // the caller compares the values
			values = append(values, p.Progress)
		}
	}
	return values
}

// maxRounds is the number of input rounds after which a client of 2026-07-28 gives up.
const maxRounds = 12

// call calls a tool and goes through all input rounds until the final result.
func (c *caller) call(ctx context.Context, r request) (*outcome, error) {
	o := &outcome{}
	params := map[string]any{"name": r.tool, "arguments": r.arguments}
	if r.token != nil {
		params["_meta"] = map[string]any{"progressToken": r.token}
	}
	for ; ; o.rounds++ {
		if err := c.once(ctx, r, params, o); err != nil || o.response == nil || o.response.Error != nil {
			return o, err
		}
		var again struct {
			ResultType    string
			InputRequests map[string]struct {
				Method string
				Params json.RawMessage
			}
			RequestState string
		}
		if json.Unmarshal(o.response.Result, &again) != nil || again.ResultType != "input_required" || c.Session != "" || o.rounds == maxRounds {
			return o, nil
		}
		responses := map[string]json.RawMessage{}
		for key, q := range again.InputRequests {
			how := c.choose()
			if how == failing || how == silence {
				how = decline // an input round has no such answers
			}
			o.answers = append(o.answers, how)
			responses[key] = newAnswer(q.Method, how, r.mark)
			o.messages = append(o.messages, harness.Message{Method: q.Method, Params: q.Params, Raw: q.Params})
		}
		params["inputResponses"], params["requestState"] = responses, again.RequestState
	}
}

// once sends one request and reads its messages until the response.
func (c *caller) once(ctx context.Context, r request, params map[string]any, o *outcome) error {
	req, err := c.Request(ctx, "tools/call", params, r.id)
	if err != nil {
		return err
	}
	o.response = nil
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	o.status = resp.StatusCode
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		m := &harness.Message{Raw: body}
		if err := json.Unmarshal(body, m); err != nil {
			return fmt.Errorf("status %d: %.300s", resp.StatusCode, body)
		}
		o.response = m
		return nil
	}
	events := sse.NewReader(resp.Body, 32<<20)
	for {
		e, err := events.Next()
		if err != nil {
			return fmt.Errorf("after %d messages: %w", len(o.messages), err)
		}
		if len(e.Data) == 0 {
			continue
		}
		m := harness.Message{Raw: e.Data}
		if err := json.Unmarshal(e.Data, &m); err != nil {
			return fmt.Errorf("%.300s: %w", e.Data, err)
		}
		if m.Method == "" {
			o.response = &m
			return nil
		}
		o.messages = append(o.messages, m)
		if len(m.ID) > 0 {
			if err := c.reply(ctx, m, r.mark, o); err != nil {
				return err
			}
		}
	}
}

// reply answers a question that arrived on the stream.
func (c *caller) reply(ctx context.Context, m harness.Message, mark string, o *outcome) error {
	var id string
	if err := json.Unmarshal(m.ID, &id); err != nil {
		return fmt.Errorf("the id of a question is not a string: %s", m.ID)
	}
	if c.onQuestion != nil {
		c.onQuestion(id)
	}
	how := c.choose()
	o.answers = append(o.answers, how)
	if how == silence {
		return nil
	}
	status, err := c.answer(ctx, id, m.Method, how, mark)
	if err != nil {
		return err
	}
	// 400: the backend no longer waits, or it asked twice with one id. 503: its session has ended.
	if status != http.StatusAccepted && status != http.StatusBadRequest && status != http.StatusServiceUnavailable {
		return fmt.Errorf("the answer to a question got status %d", status)
	}
	return nil
}

// answer posts an answer and returns the status.
func (c *caller) answer(ctx context.Context, id, method, how, mark string) (int, error) {
	body := map[string]any{"jsonrpc": "2.0", "id": id}
	if how == failing {
		body["error"] = map[string]any{"code": -1, "message": mark}
	} else {
		body["result"] = newAnswer(method, how, mark)
	}
	return c.TryAnswer(ctx, body)
}

// end ends the session. It tries again if an instance did not reach the store in time.
func (c *caller) end(ctx context.Context) error {
	for tries := 1; ; tries++ {
		req, err := c.Request(ctx, "", nil, nil)
		if err != nil {
			return err
		}
		req.Method, req.Body, req.ContentLength, req.GetBody = http.MethodDelete, nil, 0, nil
		resp, err := c.http.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode/100 == 2 {
			return nil
		}
		if resp.StatusCode != http.StatusServiceUnavailable || tries == 10 {
			return fmt.Errorf("DELETE: status %d", resp.StatusCode)
		}
		time.Sleep(time.Second)
	}
}

// newAnswer returns the result for a question. It contains the mark of the answering client's call.
func newAnswer(method, how, mark string) json.RawMessage {
	var v any
	switch method {
	case "elicitation/create":
		v = map[string]any{"action": how}
		if how == accept {
			v = map[string]any{"action": how, "content": map[string]any{
				"name": mark, "username": mark, "email": mark, "color": mark, "context": mark, "ok": true,
			}}
		}
	case "roots/list":
		v = map[string]any{"roots": []any{map[string]any{"uri": "file:///" + mark}}}
	default:
		v = map[string]any{"role": "assistant", "model": "m", "content": map[string]any{"type": "text", "text": mark}}
	}
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible for these types
	}
	return text
}

// board holds the ids of recent questions, so that other clients can try to answer them.
type board struct {
	mu     sync.Mutex
	recent []string
	seen   map[string]bool
}

var errGuessable = errors.New("the id of a question is guessable or was used before")

// put adds a question. It returns errGuessable if the id is too short or its beginning or end occurred before.
func (b *board) put(id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.seen == nil {
		b.seen = map[string]bool{}
	}
	rest, ok := strings.CutPrefix(id, "gw_")
	if !ok || len(rest) < 22 { // 128 bits in base64
		return fmt.Errorf("%q: %w", id, errGuessable)
	}
	for _, part := range []string{rest, "head " + rest[:8], "tail " + rest[len(rest)-8:]} {
		if b.seen[part] {
			return fmt.Errorf("%q: %w", id, errGuessable)
		}
		b.seen[part] = true
	}
	if b.recent = append(b.recent, id); len(b.recent) > 20 {
		b.recent = b.recent[1:]
	}
	return nil
}

// random returns one of the recent questions.
func (b *board) random() (id string, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.recent) == 0 {
		return "", false
	}
	return b.recent[rand.IntN(len(b.recent))], true
}

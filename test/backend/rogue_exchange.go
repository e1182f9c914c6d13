package backend

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// exchange is one request to the misbehaving backend and its answer, written by hand.
type exchange struct {
	*rogue
	message
	w         http.ResponseWriter
	r         *http.Request
	session   string
	stateless bool
	body      []byte
	begun     bool // the stream

	// of a call
	mark         string
	bytes, count int
	token        json.RawMessage // absent is empty
}

// json answers with a body that may be anything.
func (x *exchange) json(status int, body string) {
	x.w.Header().Set("Content-Type", "application/json")
	x.w.WriteHeader(status)
	_, _ = io.WriteString(x.w, body)
}

// result answers the request, on the stream if there is one.
func (x *exchange) result(result string) {
	body := x.response(result)
	if x.begun {
		x.event(body)
		return
	}
	x.json(http.StatusOK, body)
}

func (x *exchange) response(result string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, x.ID, result)
}

// error answers the request with an error.
func (x *exchange) error(code int, message string) {
	status := http.StatusOK
	if x.stateless && code == -32601 {
		status = http.StatusNotFound
	}
	x.json(status, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":%q}}`, x.ID, code, message))
}

// content returns a tool's result with a text and the call's mark.
func (x *exchange) content(format string, args ...any) string {
	b, err := json.Marshal(fmt.Sprintf(format, args...))
	if err != nil {
		panic(err) // it is a string
	}
	mark, err := json.Marshal(x.mark)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":%s}],"structuredContent":{"mark":%s}}`, b, mark)
}

// say answers with a text.
func (x *exchange) say(format string, args ...any) { x.result(x.content(format, args...)) }

// begin begins a stream, once.
func (x *exchange) begin() {
	if x.begun {
		return
	}
	x.begun = true
	x.w.Header().Set("Content-Type", "text/event-stream")
	x.w.WriteHeader(http.StatusOK)
	x.write("")
}

// write writes bytes to the stream and flushes them.
func (x *exchange) write(s string) {
	x.begin()
	_, _ = io.WriteString(x.w, s)
	_ = http.NewResponseController(x.w).Flush()
}

// event writes an event of one line.
func (x *exchange) event(data string) { x.write("data: " + data + "\n\n") }

// progress writes a progress message for the token, if the call has one.
func (x *exchange) progress(token json.RawMessage, at float64) {
	if len(token) == 0 {
		return
	}
	mark, err := json.Marshal(x.mark)
	if err != nil {
		panic(err)
	}
	x.event(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%v,"message":%s}}`, token, at, mark))
}

// drop cuts the connection.
func (x *exchange) drop() { panic(http.ErrAbortHandler) }

// hang does nothing until the client goes.
func (x *exchange) hang() { <-x.r.Context().Done() }

// answerTime is how long the client has for an answer.
const answerTime = 5 * time.Second

// ask sends a request whose id is the given bytes, and returns the client's
// answer; nil when none came.
func (x *exchange) ask(id, method, params string) json.RawMessage {
	key, ch := x.session+" "+id, make(chan json.RawMessage, 1)
	x.mu.Lock()
	x.waiting[key] = ch
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		delete(x.waiting, key)
		x.mu.Unlock()
	}()
	x.event(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":%q,"params":%s}`, id, method, params))
	timer := time.NewTimer(answerTime)
	defer timer.Stop()
	select {
	case answer := <-ch:
		return answer
	case <-timer.C:
	case <-x.r.Context().Done():
	}
	return nil
}

// question returns the params of an elicitation with the call's mark.
func (x *exchange) question() string {
	b, err := json.Marshal(x.mark)
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf(`{"mode":"form","message":%s,"requestedSchema":{"type":"object","properties":{"name":{"type":"string"}}}}`, b)
}

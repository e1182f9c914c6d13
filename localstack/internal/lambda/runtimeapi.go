package lambda

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Names in the Runtime API, version 2018-06-01.
const (
	headerRequestID   = "Lambda-Runtime-Aws-Request-Id"
	headerDeadline    = "Lambda-Runtime-Deadline-Ms"
	headerFunctionARN = "Lambda-Runtime-Invoked-Function-Arn"
	headerTraceID     = "Lambda-Runtime-Trace-Id"
	trailerErrorType  = "Lambda-Runtime-Function-Error-Type"
	trailerErrorBody  = "Lambda-Runtime-Function-Error-Body"
	headerExtensionID = "Lambda-Extension-Identifier"
)

// maxErrorBody is the maximum size of an error that a function reports.
const maxErrorBody = 256 << 10

func (i *instance) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", i.next)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", i.response)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", i.error)
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", i.initError)
	// A runtime that wants SIGTERM registers as an extension, see lambda.WithEnableSIGTERM. Here, every process gets
	// the signal.
	mux.HandleFunc("POST /2020-01-01/extension/register", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(headerExtensionID, uuid.NewString())
		reply(w, http.StatusOK, map[string]string{"functionName": i.f.cfg.Name, "functionVersion": "$LATEST", "handler": "bootstrap"})
	})
	mux.HandleFunc("GET /2020-01-01/extension/event/next", func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-i.gone:
		case <-r.Context().Done():
		}
	})
	return mux
}

// next ends the previous invocation and waits for another one.
func (i *instance) next(w http.ResponseWriter, r *http.Request) {
	i.finish()
	select {
	case call := <-i.work:
		deadline := i.begin(call)
		h := w.Header()
		h.Set(headerRequestID, call.id)
		h.Set(headerDeadline, strconv.FormatInt(deadline.UnixMilli(), 10))
		h.Set(headerFunctionARN, i.f.cfg.ARN)
		h.Set(headerTraceID, call.trace)
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(call.payload) // a process that cannot read it ends, which wait notices
	case <-i.gone:
	case <-r.Context().Done():
	}
}

// begin starts the timeout of a call.
func (i *instance) begin(call *invocation) time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	call.deadline = time.AfterFunc(i.timeout, func() { i.expire(call) })
	return time.Now().Add(i.timeout)
}

// finish ends a call that the process has answered, and frees its slot. If several run concurrently, it is not known
// which of them the next request follows, but that does not matter.
func (i *instance) finish() {
	i.mu.Lock()
	if !i.ready {
		i.ready = true
		i.init.Stop()
		i.mu.Unlock()
		i.f.started(time.Since(i.started))
		return
	}
	call := i.ending()
	if call == nil || i.dead {
		i.mu.Unlock()
		return
	}
	lost := !call.answered
	call.deadline.Stop()
	call.answered = true
	delete(i.calls, call.id)
	i.mu.Unlock()
	if lost {
		// The runtime asks for the next invocation without having answered this one.
		i.f.count(func(s *Stats) { s.Errors++ })
		call.deliver(failure(call.id, "Runtime.NoResponse", "the function did not respond"))
	}
	i.f.finishCall(i)
	call.limit.release()
}

// ending returns the call that ends with a request for the next one: one that has been answered, or the only one.
func (i *instance) ending() *invocation {
	if len(i.over) > 0 {
		call := i.over[0]
		i.over = i.over[1:]
		return call
	}
	if i.f.atOnce == 1 && len(i.work) == 0 {
		for _, call := range i.calls {
			if call.deadline != nil { // it has begun
				return call
			}
		}
	}
	return nil
}

// answer claims the call in the path. Each can be claimed once. Late is true if its caller has already been notified
// about a timeout.
func (i *instance) answer(w http.ResponseWriter, r *http.Request, failed bool) (call *invocation, late bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	call = i.calls[r.PathValue("id")]
	if i.dead || call == nil || call.answered && !call.late {
		reply(w, http.StatusBadRequest, functionError{Type: "InvalidRequestID", Message: "Invalid request ID"})
		return nil, false
	}
	if late = call.late; !late {
		call.answered, call.failed = true, failed
	}
	call.late = false
	return call, late
}

// accept acknowledges a response.
func (i *instance) accept(w http.ResponseWriter, call *invocation) {
	i.mu.Lock()
	i.over = append(i.over, call)
	i.mu.Unlock()
	reply(w, http.StatusAccepted, map[string]string{"status": "OK"})
}

// response forwards the body while it is being written.
func (i *instance) response(w http.ResponseWriter, r *http.Request) {
	call, late := i.answer(w, r, false)
	if call == nil {
		return
	}
	if !late {
		body, written := io.Pipe()
		i.mu.Lock()
		call.cut = func(err error) { written.CloseWithError(err) }
		i.mu.Unlock()
		if call.deliver(&Response{RequestID: call.id, ContentType: r.Header.Get("Content-Type"), Body: body}) {
			written.CloseWithError(pass(written, r))
		}
	}
	// The reader has closed the response or read all of it. The function may continue to write.
	_, _ = io.Copy(io.Discard, r.Body)
	i.accept(w, call)
}

func (i *instance) error(w http.ResponseWriter, r *http.Request) {
	payload, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxErrorBody))
	if err != nil {
		reply(w, http.StatusRequestEntityTooLarge, functionError{Type: "RequestEntityTooLarge", Message: "the error is too large"})
		return
	}
	call, late := i.answer(w, r, true)
	if call == nil {
		return
	}
	if !late {
		i.f.count(func(s *Stats) { s.Errors++ })
		call.deliver(failed(call.id, payload))
	}
	i.accept(w, call)
}

// initError keeps the error, with which the call fails when the process exits.
func (i *instance) initError(w http.ResponseWriter, r *http.Request) {
	payload, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxErrorBody))
	if err != nil {
		reply(w, http.StatusRequestEntityTooLarge, functionError{Type: "RequestEntityTooLarge", Message: "the error is too large"})
		return
	}
	i.mu.Lock()
	i.initErr = payload
	i.mu.Unlock()
	reply(w, http.StatusAccepted, map[string]string{"status": "OK"})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails if the process has exited
}

// Response is the response of an invocation. It may still be in progress.
type Response struct {
	// RequestID is Lambda's id of the invocation.
	RequestID string
	// ContentType is declared by the runtime, e.g. [HTTPIntegration].
	ContentType string
	// FunctionError is empty, or "Unhandled" if Body contains a JSON error instead of a response.
	FunctionError string
	// Body is read while the function writes it. If the function dies before the end, Read fails. Close releases the
	// instance, and may be called before the end.
	Body io.ReadCloser
}

// HTTPIntegration is the content type of a response that begins with its status and headers: JSON, then eight NUL
// bytes, then the body.
const HTTPIntegration = "application/vnd.awslambda.http-integration-response"

// ErrTooLarge is returned by [Response.ReadAll] for a response that is larger than [MaxPayload].
var ErrTooLarge = errors.New("lambda: the response is over 6 MiB")

// ReadAll reads a response to its end and closes it, for callers that do not stream. It fails if the function dies
// while it writes.
func (r *Response) ReadAll() ([]byte, error) {
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, MaxPayload+1))
	if err != nil {
		return nil, fmt.Errorf("lambda: the response broke off: %w", err)
	}
	if len(b) > MaxPayload {
		return nil, ErrTooLarge
	}
	return b, nil
}

// functionError is the JSON that the caller of a failed invocation gets.
type functionError struct {
	Type    string `json:"errorType,omitempty"`
	Message string `json:"errorMessage"`
}

// failed returns the response for an invocation that ended with an error.
func failed(id string, payload []byte) *Response {
	return &Response{
		RequestID: id, ContentType: "application/json", FunctionError: "Unhandled",
		Body: io.NopCloser(bytes.NewReader(payload)),
	}
}

func failure(id, kind, format string, args ...any) *Response {
	b, err := json.Marshal(functionError{Type: kind, Message: "RequestId: " + id + " Error: " + fmt.Sprintf(format, args...)})
	if err != nil {
		panic(err) // two strings always encode
	}
	return failed(id, b)
}

// pass copies the body of a response while the function writes it. If the function reports an error in the trailers,
// pass returns it.
func pass(w io.Writer, r *http.Request) error {
	if _, err := io.Copy(w, r.Body); err != nil {
		return err
	}
	if kind := r.Trailer.Get(trailerErrorType); kind != "" {
		detail, _ := base64.StdEncoding.DecodeString(r.Trailer.Get(trailerErrorBody))
		return fmt.Errorf("lambda: the function failed while it wrote: %s %s", kind, detail)
	}
	return nil
}

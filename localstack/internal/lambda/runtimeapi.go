package lambda

import (
	"encoding/json"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
)

// Names of the Runtime API, version 2018-06-01.
const (
	headerRequestID   = "Lambda-Runtime-Aws-Request-Id"
	headerDeadline    = "Lambda-Runtime-Deadline-Ms"
	headerFunctionARN = "Lambda-Runtime-Invoked-Function-Arn"
	headerTraceID     = "Lambda-Runtime-Trace-Id"
	trailerErrorType  = "Lambda-Runtime-Function-Error-Type"
	trailerErrorBody  = "Lambda-Runtime-Function-Error-Body"
	headerExtensionID = "Lambda-Extension-Identifier"
)

// maxErrorBody bounds what a function reports about an error.
const maxErrorBody = 256 << 10

func (i *instance) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", i.next)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", i.response)
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/error", i.error)
	mux.HandleFunc("POST /2018-06-01/runtime/init/error", i.initError)
	// A runtime that wants SIGTERM registers as an extension; see
	// lambda.WithEnableSIGTERM. Every process gets the signal here.
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

// next ends the last invocation and waits for another one.
func (i *instance) next(w http.ResponseWriter, r *http.Request) {
	i.finish()
	select {
	case call := <-i.work:
		deadline := i.begin(call)
		h := w.Header()
		h.Set(headerRequestID, call.id)
		h.Set(headerDeadline, strconv.FormatInt(deadline.UnixMilli(), 10))
		h.Set(headerFunctionARN, i.f.cfg.ARN)
		h.Set(headerTraceID, "Root=1-00000000-000000000000000000000000;Sampled=0")
		h.Set("Content-Type", "application/json")
		_, _ = w.Write(call.payload) // a process that cannot read it ends, and wait sees that
	case <-i.gone:
	case <-r.Context().Done():
	}
}

// begin starts the clock of a call.
func (i *instance) begin(call *invocation) time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.deadline.Stop()
	i.deadline = time.AfterFunc(i.f.cfg.Timeout, func() { i.expire(call) })
	return time.Now().Add(i.f.cfg.Timeout)
}

// finish returns the instance to the idle ones if it had a call.
func (i *instance) finish() {
	i.mu.Lock()
	if !i.ready {
		i.ready = true
		i.deadline.Stop()
		i.mu.Unlock()
		i.f.started(time.Since(i.started))
		return
	}
	call := i.call
	lost := call != nil && !call.answered
	if call == nil || i.dead || len(i.work) > 0 {
		i.mu.Unlock()
		return
	}
	i.deadline.Stop()
	i.call = nil
	call.answered = true
	i.mu.Unlock()
	if lost {
		// The runtime asks for the next without an answer to this one.
		i.f.count(func(s *Stats) { s.Errors++ })
		call.deliver(failure(call.id, "Runtime.NoResponse", "the function did not respond"))
	}
	i.f.idled(i)
	i.f.release()
}

// answer claims the call that the path names, once.
func (i *instance) answer(w http.ResponseWriter, r *http.Request, failed bool) *invocation {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.dead || i.call == nil || i.call.id != r.PathValue("id") || i.call.answered {
		reply(w, http.StatusBadRequest, functionError{Type: "InvalidRequestID", Message: "Invalid request ID"})
		return nil
	}
	i.call.answered, i.call.failed = true, failed
	return i.call
}

// response passes the body on while it is being written.
func (i *instance) response(w http.ResponseWriter, r *http.Request) {
	call := i.answer(w, r, false)
	if call == nil {
		return
	}
	body := &stream{request: r, closed: make(chan struct{})}
	if call.deliver(&Response{RequestID: call.id, ContentType: r.Header.Get("Content-Type"), Body: body}) {
		<-body.closed
	}
	// Whoever read it went away, or has read to the end; the function writes on.
	_, _ = io.Copy(io.Discard, r.Body)
	reply(w, http.StatusAccepted, map[string]string{"status": "OK"})
}

func (i *instance) error(w http.ResponseWriter, r *http.Request) {
	payload, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxErrorBody))
	if err != nil {
		reply(w, http.StatusRequestEntityTooLarge, functionError{Type: "RequestEntityTooLarge", Message: "the error is too large"})
		return
	}
	call := i.answer(w, r, true)
	if call == nil {
		return
	}
	i.f.count(func(s *Stats) { s.Errors++ })
	call.deliver(failed(call.id, payload))
	reply(w, http.StatusAccepted, map[string]string{"status": "OK"})
}

// initError keeps what the process says; the call fails with it when the process exits.
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
	_ = json.NewEncoder(w).Encode(v) // the process went away
}

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

// next ends an invocation that was answered and waits for another one.
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
		_, _ = w.Write(call.payload) // a process that cannot read it ends, and wait sees that
	case <-i.gone:
	case <-r.Context().Done():
	}
}

// begin starts the clock of a call.
func (i *instance) begin(call *invocation) time.Time {
	i.mu.Lock()
	defer i.mu.Unlock()
	call.deadline = time.AfterFunc(i.timeout, func() { i.expire(call) })
	return time.Now().Add(i.timeout)
}

// finish ends a call that the process has answered, and gives the instance its room
// back. Where several run at once it is not known which one a request for the next
// follows; it does not matter either.
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
		// The runtime asks for the next without an answer to this one.
		i.f.count(func(s *Stats) { s.Errors++ })
		call.deliver(failure(call.id, "Runtime.NoResponse", "the function did not respond"))
	}
	i.f.idled(i)
	call.limit.release()
}

// ending takes the call that a request for the next one ends: one that is over, or the
// only one that there can be.
func (i *instance) ending() *invocation {
	if len(i.over) > 0 {
		call := i.over[0]
		i.over = i.over[1:]
		return call
	}
	if i.f.atOnce == 1 && len(i.work) == 0 {
		for _, call := range i.calls {
			if call.deadline != nil { // begun
				return call
			}
		}
	}
	return nil
}

// answer claims the call that the path names, once. Late is true when its caller
// was notified already that its time was over.
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

// accept ends an answer.
func (i *instance) accept(w http.ResponseWriter, call *invocation) {
	i.mu.Lock()
	i.over = append(i.over, call)
	i.mu.Unlock()
	reply(w, http.StatusAccepted, map[string]string{"status": "OK"})
}

// response passes the body on while it is being written.
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
	// The reader went away, or has read to the end; the function writes on.
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

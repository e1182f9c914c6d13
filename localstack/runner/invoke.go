package runner

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
)

// maxAsync is the maximum number of running or waiting invocations of type Event.
const maxAsync = 100

func (s *Stack) invokeURL() string { return "http://" + s.invoke.String() }

// invokeAPI serves Lambda's Invoke, with which functions call each other through the AWS SDK, and the URL to which
// custom resources report.
func (s *Stack) invokeAPI() http.Handler {
	mux := http.NewServeMux()
	async := make(chan struct{}, maxAsync)
	mux.HandleFunc("POST /2015-03-31/functions/{name}/invocations", func(w http.ResponseWriter, r *http.Request) {
		fn := s.functionByName(r.PathValue("name"))
		if fn == nil {
			refuse(w, http.StatusNotFound, "ResourceNotFoundException", "Function not found: "+r.PathValue("name"))
			return
		}
		// A caller without a known name is an operator, who may invoke any function.
		want := access.Request{Action: "lambda:InvokeFunction", Resource: fn.ARN()}
		if app := application(r); s.function(app) != nil && !s.opts.Direct && !s.gate.allows(app, want) {
			s.gate.refuse(w, app, describe(want))
			return
		}
		payload, err := io.ReadAll(http.MaxBytesReader(w, r.Body, lambda.MaxPayload))
		if err != nil {
			refuse(w, http.StatusRequestEntityTooLarge, "RequestTooLargeException", "the payload is over 6 MiB")
			return
		}
		if len(payload) == 0 {
			payload = []byte("{}")
		}
		if !json.Valid(payload) {
			refuse(w, http.StatusBadRequest, "InvalidRequestContentException", "the payload is no JSON")
			return
		}
		switch kind := r.Header.Get("X-Amz-Invocation-Type"); kind {
		case "", "RequestResponse":
			invokeNow(r.Context(), w, fn, lambda.Invocation{Payload: payload, Trace: r.Header.Get(lambda.TraceHeader)})
		case "DryRun":
			w.WriteHeader(http.StatusNoContent)
		case "Event":
			select {
			case async <- struct{}{}:
			default:
				refuse(w, http.StatusTooManyRequests, "TooManyRequestsException", "Rate Exceeded.")
				return
			}
			trace := r.Header.Get(lambda.TraceHeader)
			s.serving.Go(func() {
				defer func() { <-async }()
				s.invokeLater(fn, lambda.Invocation{Payload: payload, Wait: true, Trace: trace})
			})
			w.Header().Set("X-Amzn-Requestid", uuid.NewString())
			w.WriteHeader(http.StatusAccepted)
		default:
			refuse(w, http.StatusBadRequest, "InvalidParameterValueException", "unknown invocation type "+kind)
		}
	})
	mux.HandleFunc("PUT /cloudformation/{token}", s.callbacks.serve)
	mux.HandleFunc("POST /cloudformation", s.describe)
	return mux
}

// functionByName finds a function by its name, its ARN, or the end of its ARN.
func (s *Stack) functionByName(name string) *function {
	name, _, _ = strings.Cut(strings.TrimSuffix(name, ":$LATEST"), "/")
	for _, fn := range s.all() {
		if name == fn.Name() || name == fn.ARN() || strings.HasSuffix(name, ":function:"+fn.Name()) {
			return fn
		}
	}
	return nil
}

func invokeNow(ctx context.Context, w http.ResponseWriter, fn *function, inv lambda.Invocation) {
	resp, err := fn.Invoke(ctx, inv)
	switch {
	case errors.Is(err, lambda.ErrRecursive):
		refuse(w, http.StatusBadRequest, "RecursiveInvocationException", "the function is invoked in a recursive loop")
		return
	case errors.Is(err, lambda.ErrThrottled):
		refuse(w, http.StatusTooManyRequests, "TooManyRequestsException", "Rate Exceeded.")
		return
	case err != nil:
		refuse(w, http.StatusInternalServerError, "ServiceException", err.Error())
		return
	}
	h := w.Header()
	h.Set("X-Amzn-Requestid", resp.RequestID)
	h.Set("X-Amz-Executed-Version", "$LATEST")
	b, err := resp.ReadAll()
	if err != nil {
		resp.FunctionError = "Unhandled"
		b, _ = json.Marshal(map[string]string{"errorType": "Runtime.ExitError", "errorMessage": err.Error()})
	}
	if resp.FunctionError != "" {
		h.Set("X-Amz-Function-Error", resp.FunctionError)
	}
	h.Set("Content-Type", "application/json")
	_, _ = w.Write(b) // fails if the caller has disconnected
}

// invokeLater runs an invocation of type Event. Unlike Lambda, it does not retry failures.
func (s *Stack) invokeLater(fn *function, inv lambda.Invocation) {
	ctx, cancel := context.WithTimeout(context.Background(), fn.Timeout()+time.Minute)
	defer cancel()
	resp, err := fn.Invoke(ctx, inv)
	if err == nil {
		_, err = resp.ReadAll()
	}
	if err != nil && !errors.Is(err, lambda.ErrClosed) {
		s.opts.Log.Warn("asynchronous invocation failed", "function", fn.Name(), "error", err)
	}
}

// refuse sends an error in the service's format, so that the SDK returns its typed error.
func refuse(w http.ResponseWriter, status int, kind, text string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Amzn-Errortype", kind)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"Type": "User", "Message": text}) // fails if the caller has disconnected
}

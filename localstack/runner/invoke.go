package runner

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/internal/access"
	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/internal/resource"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
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

// Call is a kind of request to AWS that a function sent, with the policy statement that allows it.
type Call struct {
	Function  string // logical id
	Statement string // Sid
	Action    string // e.g. dynamodb:PutItem
	Resource  string // logical id of a table, queue or function; otherwise an ARN
}

// Calls returns the permissions that the functions have used so far. It is empty with [Options.Direct].
func (s *Stack) Calls() []Call {
	s.gate.mu.RLock()
	defer s.gate.mu.RUnlock()
	return slices.SortedFunc(maps.Keys(s.gate.calls), func(a, b Call) int {
		return cmp.Or(cmp.Compare(a.Function, b.Function), cmp.Compare(a.Statement, b.Statement),
			cmp.Compare(a.Action, b.Action), cmp.Compare(a.Resource, b.Resource))
	})
}

// logical returns the logical id of the stack's resource with an ARN.
func (s *Stack) logical(arn string) string {
	name := arn[strings.LastIndexAny(arn, ":/")+1:]
	if id, ok := strings.CutPrefix(name, s.opts.Name+"-"); ok {
		id, _, _ = strings.Cut(strings.TrimSuffix(id, ".fifo"), "-") // a second name for a logical id ends with a number
		return id
	}
	return arn
}

// senders are the types of the resources with which other services send to queues.
var senders = []string{"AWS::SQS::QueuePolicy", "AWS::Events::Rule", "AWS::SNS::Subscription"}

func (s *scope) sender(r *template.Resource, name string) (*made, error) {
	switch r.Type {
	case "AWS::Events::Rule":
		var rule resource.Rule
		if err := s.tpl.Properties(r, s, &rule); err != nil {
			return nil, err
		}
		s.stack.progress("rule   %s", name)
		arn, err := rule.Create(s.ctx, s.clients, name)
		remove := func(ctx context.Context) error { return rule.Delete(ctx, s.clients, name) }
		// A rule on a different bus is a different rule.
		return &made{ref: rule.EventBusName + "|" + name, attributes: map[string]string{"Arn": arn}, remove: remove}, err
	case "AWS::SNS::Subscription":
		var subscription resource.Subscription
		if err := s.tpl.Properties(r, s, &subscription); err != nil {
			return nil, err
		}
		arn, err := subscription.Create(s.ctx, s.clients)
		return &made{ref: arn, remove: func(ctx context.Context) error { return resource.Unsubscribe(ctx, s.clients, arn) }}, err
	default:
		var policy resource.QueuePolicy
		if err := s.tpl.Properties(r, s, &policy); err != nil {
			return nil, err
		}
		return &made{ref: name, remove: func(ctx context.Context) error { return policy.Delete(ctx, s.clients) }}, policy.Create(s.ctx, s.clients)
	}
}

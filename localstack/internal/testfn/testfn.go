// Package testfn is the function that the local runner's tests run. The test binary starts itself again as a
// function, which reads instructions from its event and follows them.
//
// It uses the same Runtime API client as the real functions.
package testfn

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

// Variable is the environment variable that makes a test binary run as a function.
const Variable = "TESTFN"

// Call is an event that says what to do.
type Call struct {
	Do    string `json:"do"`
	Text  string `json:"text,omitempty"`
	Count int    `json:"count,omitempty"`
	// Gate is the URL of a [Gate] to pass before the response. A stream passes it after each write.
	Gate string `json:"gate,omitempty"`
}

// JSON encodes the event.
func (c Call) JSON() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(err) // strings and numbers always encode
	}
	return b
}

// Description is the response to "describe".
type Description struct {
	RequestID  string            `json:"requestId"`
	ARN        string            `json:"arn"`
	MillisLeft int64             `json:"millisLeft"`
	Env        map[string]string `json:"env"`
}

// Handler handles an event that is not a [Call].
type Handler func(ctx context.Context, event json.RawMessage) (any, error)

// Main is called by TestMain. In the test's own process it returns. In the process of a function it does not return.
// It passes events without "do" to the first handler in others, if there is one.
func Main(others ...Handler) {
	if os.Getenv(Variable) == "" {
		return
	}
	switch {
	case os.Getenv("TESTFN_EXIT_EARLY") != "":
		os.Exit(3)
	case os.Getenv("TESTFN_INIT_HANGS") != "":
		time.Sleep(time.Hour) // not an empty select, because the Go runtime would report a deadlock and exit
	case os.Getenv("TESTFN_INIT_ERROR") != "":
		url := "http://" + os.Getenv("AWS_LAMBDA_RUNTIME_API") + "/2018-06-01/runtime/init/error"
		if resp, err := http.Post(url, "application/json", strings.NewReader(`{"errorMessage":"no configuration"}`)); err == nil {
			resp.Body.Close()
		}
		os.Exit(1)
	case os.Getenv("TESTFN_IGNORE_SIGTERM") != "":
		signal.Ignore(syscall.SIGTERM)
	}
	var options []lambda.Option
	if mark := os.Getenv("TESTFN_ON_SIGTERM"); mark != "" {
		options = append(options, lambda.WithEnableSIGTERM(func() {
			if err := os.WriteFile(mark, []byte("terminated"), 0o600); err != nil {
				os.Exit(1)
			}
			os.Exit(0)
		}))
	}
	lambda.StartWithOptions(func(ctx context.Context, event json.RawMessage) (any, error) {
		var c Call
		if err := json.Unmarshal(event, &c); err != nil {
			return nil, err
		}
		// In a request to a Function URL, the call is in the body.
		var request events.LambdaFunctionURLRequest
		if err := json.Unmarshal(event, &request); err == nil && request.RequestContext.HTTP.Method == http.MethodPost {
			if err := json.Unmarshal([]byte(request.Body), &c); err != nil {
				return nil, err
			}
		}
		if c.Do == "" && len(others) > 0 {
			return others[0](ctx, event)
		}
		return c.run(ctx)
	}, options...)
}

func (c Call) run(ctx context.Context) (any, error) {
	if c.Gate != "" && c.Do != "stream" {
		pass(ctx, c.Gate)
	}
	switch c.Do {
	case "pid":
		return os.Getpid(), nil
	case "describe":
		return describe(ctx), nil
	case "error":
		return nil, errors.New(c.Text)
	case "panic":
		panic(c.Text)
	case "exit":
		os.Exit(7)
	case "tick":
		go tick()
		<-rounds
		return os.Getpid(), nil
	case "pause":
		<-rounds // skip this round, which may have ended before the process was frozen
		return <-rounds, nil
	case "hang":
		select {} // ignore the deadline
	case "dynamodb":
		return dynamodb(ctx, c.Text)
	case "print":
		fmt.Fprint(os.Stderr, c.Text)
		return "printed", nil
	case "large":
		return strings.NewReader(strings.Repeat("x", c.Count)), nil
	case "stream":
		r, w := io.Pipe()
		go func() {
			for n := range c.Count {
				fmt.Fprintf(w, "data: %d\n\n", n)
				pass(ctx, c.Gate)
			}
			w.Close()
		}()
		return &events.LambdaFunctionURLStreamingResponse{Body: r, Headers: map[string]string{"Content-Type": "text/event-stream"}}, nil
	case "stream-error":
		r, w := io.Pipe()
		go func() {
			fmt.Fprint(w, "begun")
			w.CloseWithError(errors.New(c.Text))
		}()
		return &events.LambdaFunctionURLStreamingResponse{Body: r}, nil
	}
	return nil, fmt.Errorf("the test function cannot %q", c.Do)
}

// rounds receives, after each round for which an invocation waits, the longest time in milliseconds between two
// rounds of [tick].
var rounds = make(chan int64)

// tick works in the background, even after the response to its invocation.
func tick() {
	last, longest := time.Now(), int64(0)
	for {
		time.Sleep(time.Millisecond)
		now := time.Now()
		longest = max(longest, now.Sub(last).Milliseconds())
		last = now
		select {
		case rounds <- longest:
		default:
		}
	}
}

// dynamodb sends "Operation {body}" to DynamoDB and returns the response.
func dynamodb(ctx context.Context, text string) (string, error) {
	operation, body, _ := strings.Cut(text, " ")
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, os.Getenv("AWS_ENDPOINT_URL_DYNAMODB"), strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.0")
	req.Header.Set("X-Amz-Target", "DynamoDB_20120810."+operation)
	req.Header.Set("X-Amz-Security-Token", os.Getenv("AWS_SESSION_TOKEN"))
	// DynamoDB Local requires a well-formed signature, but does not verify it.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+os.Getenv("AWS_ACCESS_KEY_ID")+"/20261120/"+os.Getenv("AWS_REGION")+"/dynamodb/aws4_request, SignedHeaders=host, Signature=0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return fmt.Sprintf("%d %s", resp.StatusCode, b), err
}

func describe(ctx context.Context) Description {
	d := Description{Env: map[string]string{}}
	if lc, ok := lambdacontext.FromContext(ctx); ok {
		d.RequestID, d.ARN = lc.AwsRequestID, lc.InvokedFunctionArn
	}
	if deadline, ok := ctx.Deadline(); ok {
		d.MillisLeft = time.Until(deadline).Milliseconds()
	}
	for _, kv := range os.Environ() {
		k, v, _ := strings.Cut(kv, "=")
		d.Env[k] = v
	}
	return d
}

// pass waits at the gate, even beyond its deadline. A gate that no longer exists is open.
func pass(ctx context.Context, gate string) {
	if gate == "" {
		return
	}
	req, err := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, gate, nil)
	if err != nil {
		return
	}
	if resp, err := http.DefaultClient.Do(req); err == nil {
		resp.Body.Close()
	}
}

// Gate blocks function processes until a test lets them pass.
type Gate struct {
	URL string

	arrived chan struct{}
	pass    chan struct{}
	open    chan struct{}
	once    sync.Once
}

// NewGate returns a gate that opens at the end of the test.
func NewGate(t *testing.T) *Gate {
	g := &Gate{arrived: make(chan struct{}, 1000), pass: make(chan struct{}), open: make(chan struct{})}
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		g.arrived <- struct{}{}
		select {
		case <-g.pass:
		case <-g.open:
		case <-r.Context().Done():
		}
	}))
	g.URL = s.URL
	t.Cleanup(func() {
		g.Open()
		s.Close()
	})
	return g
}

// Arrived waits until a process has arrived at the gate.
func (g *Gate) Arrived(t *testing.T) {
	t.Helper()
	select {
	case <-g.arrived:
	case <-time.After(20 * time.Second):
		t.Fatal("no process arrived at the gate in time")
	}
}

// Pass lets one process pass.
func (g *Gate) Pass() { g.pass <- struct{}{} }

// Open lets all processes pass from now on.
func (g *Gate) Open() { g.once.Do(func() { close(g.open) }) }

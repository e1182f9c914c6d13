package furl_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/mcp-events/mcpevents/localstack/internal/furl"
	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/test/expect"
)

// function responds to every invocation with a given function.
type function func(events.LambdaFunctionURLRequest) (*lambda.Response, error)

func (f function) Name() string { return "fn" }

func (f function) Invoke(_ context.Context, inv lambda.Invocation) (*lambda.Response, error) {
	var event events.LambdaFunctionURLRequest
	if err := json.Unmarshal(inv.Payload, &event); err != nil {
		return nil, err
	}
	return f(event)
}

func respond(contentType, body string) (*lambda.Response, error) {
	return &lambda.Response{RequestID: "r-1", ContentType: contentType, Body: io.NopCloser(strings.NewReader(body))}, nil
}

func serve(t *testing.T, mode furl.Mode, f function) string {
	s := httptest.NewServer(furl.Handler{Function: f, Mode: mode})
	t.Cleanup(s.Close)
	return s.URL
}

func TestTheEventOfARequest(t *testing.T) {
	tests := map[string]struct {
		contentType, body string
		want              string // the body in the event
		base64            bool
	}{
		"JSON is text":           {"application/json; charset=utf-8", `{"a":"ü"}`, `{"a":"ü"}`, false},
		"CloudEvents is text":    {"application/cloudevents+json", `{}`, `{}`, false},
		"an empty body is text":  {"", "", "", false},
		"other types are base64": {"application/octet-stream", "abc", base64.StdEncoding.EncodeToString([]byte("abc")), true},
		"broken UTF-8 is base64": {"application/json", "\xff", base64.StdEncoding.EncodeToString([]byte("\xff")), true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := httptest.NewRequest("POST", "http://example.com/mcp/a%2Fb?x=1&x=2&y", strings.NewReader(tc.body))
			r.Header.Set("Content-Type", tc.contentType)
			r.Header.Add("X-Two", "one")
			r.Header.Add("X-Two", "two")
			r.Header.Set("Cookie", "a=1; b=2")
			r.Header.Set("User-Agent", "test")
			got := furl.Request(r, []byte(tc.body), time.UnixMilli(1_700_000_000_000))
			expect.Equal(t, "the body", got.Body, tc.want)
			expect.Equal(t, "whether it is base64", got.IsBase64Encoded, tc.base64)
			if got.Version != "2.0" || got.RawPath != "/mcp/a%2Fb" || got.RawQueryString != "x=1&x=2&y" || got.QueryStringParameters["x"] != "1,2" {
				t.Errorf("got %+v", got)
			}
			if got.Headers["x-two"] != "one,two" || got.Headers["host"] != "example.com" || got.Headers["cookie"] != "" {
				t.Errorf("got headers %v", got.Headers)
			}
			expect.Equal(t, "the cookies", strings.Join(got.Cookies, "|"), "a=1|b=2")
			c := got.RequestContext
			if c.HTTP.Method != "POST" || c.HTTP.SourceIP != "192.0.2.1" || c.HTTP.UserAgent != "test" || c.TimeEpoch != 1_700_000_000_000 || c.Time != "14/Nov/2023:22:13:20 +0000" {
				t.Errorf("got context %+v", c)
			}
		})
	}
}

func TestResponses(t *testing.T) {
	const nul = "\x00\x00\x00\x00\x00\x00\x00\x00"
	const failed = `{"Message":"Internal Server Error"}` + "\n"
	type header = map[string]string
	answers := func(contentType, body string) function {
		return func(events.LambdaFunctionURLRequest) (*lambda.Response, error) { return respond(contentType, body) }
	}
	tests := map[string]struct {
		mode       furl.Mode
		answer     function
		status     int
		body       string
		wantHeader header
	}{
		"buffered": {
			furl.Buffered, answers("", `{"statusCode":202,"headers":{"Content-Type":"text/plain","X-A":"b"},"body":"hi","cookies":["c=d"]}`),
			202, "hi",
			header{"Content-Type": "text/plain", "X-A": "b", "Set-Cookie": "c=d", "X-Amzn-Requestid": "r-1"},
		},
		"buffered base64":           {furl.Buffered, answers("", `{"statusCode":200,"body":"aGk=","isBase64Encoded":true}`), 200, "hi", nil},
		"buffered without a status": {furl.Buffered, answers("", `{"a":1}`), 200, `{"a":1}`, header{"Content-Type": "application/json"}},
		"buffered garbage":          {furl.Buffered, answers("", `{"a"`), 502, failed, nil},
		"streamed with a prelude": {
			furl.Stream, answers(lambda.HTTPIntegration, `{"statusCode":418,"headers":{"Content-Type":"text/event-stream","Content-Length":"7"}}`+nul+"data"),
			418, "data",
			header{"Content-Type": "text/event-stream"},
		},
		"streamed without one":           {furl.Stream, answers("application/octet-stream", "raw"), 200, "raw", header{"Content-Type": "application/octet-stream"}},
		"streamed with a broken prelude": {furl.Stream, answers(lambda.HTTPIntegration, `{"statusCode":418}`), 502, failed, nil},
		"a function error": {
			furl.Stream,
			func(events.LambdaFunctionURLRequest) (*lambda.Response, error) {
				return &lambda.Response{FunctionError: "Unhandled", Body: io.NopCloser(strings.NewReader(`{"errorMessage":"secret"}`))}, nil
			},
			502, failed, nil,
		},
		"throttled": {
			furl.Buffered,
			func(events.LambdaFunctionURLRequest) (*lambda.Response, error) { return nil, lambda.ErrThrottled },
			429, `{"Message":"Rate Exceeded."}` + "\n", nil,
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			resp := expect.Value(http.Post(serve(t, tc.mode, tc.answer), "application/json", strings.NewReader("{}")))(t)
			defer resp.Body.Close()
			b := expect.Value(io.ReadAll(resp.Body))(t)
			expect.Equal(t, "the status", resp.StatusCode, tc.status)
			expect.Equal(t, "the body", string(b), tc.body)
			for k, want := range tc.wantHeader {
				expect.Equal(t, "the header "+k, resp.Header.Get(k), want)
			}
		})
	}
}

func TestAStreamArrivesAsItIsWritten(t *testing.T) {
	r, w := io.Pipe()
	url := serve(t, furl.Stream, func(events.LambdaFunctionURLRequest) (*lambda.Response, error) {
		return &lambda.Response{ContentType: lambda.HTTPIntegration, Body: r}, nil
	})
	written := make(chan error, 1)
	go func() {
		// The prelude arrives in two pieces, before any byte of the body.
		_, err := io.WriteString(w, `{"statusCode":200,"head`)
		if err == nil {
			_, err = io.WriteString(w, `ers":{"Content-Type":"text/event-stream"}}`+strings.Repeat("\x00", 8))
		}
		written <- err
	}()
	resp := expect.Value(http.Get(url))(t)
	defer resp.Body.Close()
	expect.OK(t, <-written)
	lines := bufio.NewReader(resp.Body)
	for _, want := range []string{"one\n", "two\n"} {
		expect.OK(t, expect.ErrOf(io.WriteString(w, want)))
		expect.Equal(t, "the line", expect.Value(lines.ReadString('\n'))(t), want)
	}
	// The client must be able to tell a stream that broke off from a complete one.
	w.CloseWithError(errors.New("killed"))
	if _, err := lines.ReadString('\n'); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("got error %v, want an unexpected end", err)
	}
}

func TestARequestThatIsTooLarge(t *testing.T) {
	url := serve(t, furl.Buffered, func(events.LambdaFunctionURLRequest) (*lambda.Response, error) { return respond("", "{}") })
	resp := expect.Value(http.Post(url, "application/json", strings.NewReader(strings.Repeat("x", 5<<20))))(t)
	defer resp.Body.Close()
	expect.Equal(t, "the status", resp.StatusCode, http.StatusRequestEntityTooLarge)
}

func TestHeadersThatAFunctionURLRenames(t *testing.T) {
	fn := function(func(events.LambdaFunctionURLRequest) (*lambda.Response, error) {
		return respond("", `{"statusCode":401,"headers":{"www-authenticate":"Bearer","X-Own":"1"},"body":""}`)
	})
	for name, tc := range map[string]struct {
		remap bool
		want  string
	}{
		"as AWS does":        {true, "x-amzn-remapped-www-authenticate"},
		"behind a front not": {false, "www-authenticate"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(furl.Handler{Function: fn, Remap: tc.remap})
			defer s.Close()
			resp := expect.Value(http.Get(s.URL))(t)
			resp.Body.Close()
			if resp.Header.Get(tc.want) != "Bearer" || resp.Header.Get("X-Own") != "1" || tc.remap && resp.Header.Get("Www-Authenticate") != "" {
				t.Errorf("got headers %v", resp.Header)
			}
		})
	}
}

package parameters

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/test/expect"
)

// reference parses the value of a header in a configuration.
func reference(t *testing.T, text string) secret.Value {
	t.Helper()
	c := expect.Value(config.Parse([]byte("backends:\n  - {name: b, url: 'https://b.example.com/mcp', headers: {Authorization: '" + text + "'}}\n")))(t)
	return c.Backends[0].Headers["Authorization"]
}

func started(t *testing.T, endpoint string) *Store {
	t.Helper()
	for name, value := range map[string]string{
		"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "token", "AWS_ENDPOINT_URL_SSM": endpoint,
	} {
		t.Setenv(name, value)
	}
	cfg := expect.Value(awsx.Load())(t)
	return New(cfg, slog.New(slog.DiscardHandler))
}

// GWN-19: a secret is read with a signed request, decrypted, and cached for some minutes. During an outage the old
// value is used, but not after the parameter was deleted.
func TestSecretsOfParameterStore(t *testing.T) {
	var (
		asked  atomic.Int32
		answer atomic.Value
	)
	answer.Store("200 v1")
	ssm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.Header.Get("X-Amz-Target") != "AmazonSSM.GetParameter" ||
			r.Header.Get("Content-Type") != "application/x-amz-json-1.1" || r.Header.Get("X-Amz-Security-Token") != "token" {
			t.Errorf("got the request %s %v", r.Method, r.Header)
		}
		expect.Equal(t, "the body", string(body), `{"Name":"/mcp-events/b","WithDecryption":true}`)
		signature := r.Header.Get("Authorization")
		if !strings.HasPrefix(signature, "AWS4-HMAC-SHA256 Credential=AKID/") || !strings.Contains(signature, "/eu-central-1/ssm/aws4_request") || !strings.Contains(signature, "x-amz-target") {
			t.Errorf("got the signature %q", signature)
		}
		var status int
		var what string
		fmt.Sscan(answer.Load().(string), &status, &what)
		w.WriteHeader(status)
		if status == 200 {
			fmt.Fprintf(w, `{"Parameter":{"Name":"/mcp-events/b","Type":"SecureString","Value":%q,"Version":1}}`, what)
			return
		}
		fmt.Fprintf(w, `{"__type":%q,"message":"no"}`, what)
	}))
	defer ssm.Close()
	s, v := started(t, ssm.URL), reference(t, "ssm:/mcp-events/b")
	now := time.Now()
	s.now = func() time.Time { return now }
	for _, step := range []struct {
		name, answer string
		later        time.Duration
		want         string
		asked        int32
	}{
		{"first", "200 v1", 0, "v1", 1},
		{"kept", "200 v2", keep - time.Second, "v1", 0},
		{"read again", "200 v2", 2 * time.Second, "v2", 1},
		{"over an outage", "500 InternalServerError", keep, "v2", tries},
		{"which is not hammered on", "500 InternalServerError", time.Second, "v2", 0},
		{"throttled", "400 ThrottlingException", keepFault, "v2", tries},
		{"deleted", "400 ParameterNotFound", keepFault, "", 1},
		{"which is not hammered on, either", "400 ParameterNotFound", time.Second, "", 0},
		{"not ours", "400 AccessDeniedException", keepFault, "", 1},
		{"created again", "200 v3", keepFault, "v3", 1},
		{"a long outage", "503 x", keepStale, "", tries},
	} {
		before := asked.Load()
		answer.Store(step.answer)
		now = now.Add(step.later)
		got, err := s.Secret(t.Context(), v)
		if got != step.want || (err == nil) != (step.want != "") {
			t.Errorf("%s: got %q, %v", step.name, got, err)
		}
		expect.Equal(t, step.name+": the requests", asked.Load()-before, step.asked)
		if err != nil && (strings.Contains(err.Error(), "v1") || !strings.Contains(err.Error(), "/mcp-events/b")) {
			t.Errorf("%s: %v", step.name, err)
		}
	}
}

// GWN-19: references to the environment work too. Without AWS, a reference to Parameter Store is refused with a clear
// message.
func TestOtherReferences(t *testing.T) {
	s := started(t, "http://127.0.0.1:1")
	t.Setenv("PARAMETERS_TEST", "x")
	expect.Equal(t, "the value", expect.Value(s.Secret(t.Context(), reference(t, "env:PARAMETERS_TEST")))(t), "x")
	_, err := reference(t, "ssm:/a").Resolve(func(string) (string, bool) { return "x", true })
	expect.Fault(t, "the error", err, fault.Invalid, "ssm:/a")
}

// The endpoint is the one that the SDK's clients use.
func TestTheEndpointIsThatOfTheSDK(t *testing.T) {
	s := started(t, "")
	expect.Equal(t, "the endpoint", s.endpoint, "https://ssm.eu-central-1.amazonaws.com/")
	if base := sqs.NewFromConfig(s.aws).Options().BaseEndpoint; base != nil {
		t.Errorf("the other clients have %s", *base)
	}
}

// GWN-19: if more and more parameters are read, those in use are kept and others are dropped.
func TestParametersOutOfUseAreForgotten(t *testing.T) {
	var asked atomic.Int32
	ssm := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, `{"Parameter":{"Value":"v"}}`)
	}))
	defer ssm.Close()
	s := started(t, ssm.URL)
	look := func(from, to int) (requests int32) {
		before := asked.Load()
		for i := from; i < to; i++ {
			if v, err := s.Secret(t.Context(), reference(t, fmt.Sprintf("ssm:/p/%d", i))); v != "v" || err != nil {
				t.Fatal(v, err)
			}
		}
		return asked.Load() - before
	}
	const n = maxHeld + maxHeld/2
	expect.Equal(t, "the requests for all parameters", look(0, n), n)
	expect.Equal(t, "the requests for the last parameters", look(n-maxHeld/4, n), 0)
	expect.Equal(t, "the requests for the first parameters", look(0, maxHeld/4), maxHeld/4)
}

package functions_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// received is a received webhook.
type received struct {
	header http.Header
	body   []byte
}

// endpoint starts a webhook endpoint. It responds with answer, or with 200 if answer is nil.
func endpoint(t *testing.T, answer func(http.ResponseWriter, *http.Request, []byte)) (url string, got <-chan received) {
	hooks := make(chan received, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		hooks <- received{r.Header, b}
		if answer != nil {
			answer(w, r, b)
		}
	}))
	t.Cleanup(srv.Close)
	return srv.URL, hooks
}

// echo answers challenges of events/subscribe.
func echo(w http.ResponseWriter, _ *http.Request, body []byte) {
	var challenge struct{ Type, Challenge string }
	if json.Unmarshal(body, &challenge) == nil && challenge.Type == "verification" {
		fmt.Fprintf(w, `{"challenge":%q}`, challenge.Challenge)
	}
}

// post sends a JSON body and decodes the response.
func post(t *testing.T, url, body string, header map[string]string, answer any) *http.Response {
	t.Helper()
	req := expect.Value(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body)))(t)
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	defer resp.Body.Close()
	b := expect.Value(io.ReadAll(resp.Body))(t)
	if answer != nil {
		expect.OK(t, json.Unmarshal(b, answer), resp.StatusCode, b)
	}
	return resp
}

// rpc calls a method with revision 2026-07-28 and returns its result.
func rpc(t *testing.T, base, method, params string) json.RawMessage {
	t.Helper()
	body, header := request(method, params)
	if uri, ok := strings.CutPrefix(params, `"uri":"`); ok && method == "resources/read" {
		header["Mcp-Name"] = strings.TrimSuffix(uri, `"`)
	}
	var answer struct {
		Result, Error json.RawMessage
	}
	post(t, base+"/mcp", body, header, &answer)
	if answer.Error != nil {
		t.Fatalf("%s: %s", method, answer.Error)
	}
	return answer.Result
}

func request(method, params string) (body string, header map[string]string) {
	const meta = `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}`
	if params != "" {
		params += ","
	}
	return `{"jsonrpc":"2.0","id":1,"method":"` + method + `","params":{` + params + meta + `}}`, map[string]string{
		"Mcp-Protocol-Version": "2026-07-28", "Mcp-Method": method, "Accept": "application/json, text/event-stream",
	}
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	harness.Eventually(t, harness.Patience, what, f)
}

// listen opens a stream with revision 2026-07-28.
func listen(ctx context.Context, t *testing.T, base, params string) <-chan string {
	t.Helper()
	body, header := request("subscriptions/listen", params)
	req := expect.Value(http.NewRequestWithContext(ctx, http.MethodPost, base+"/mcp", strings.NewReader(body)))(t)
	return open(t, req, header)
}

// open sends a request for a stream and returns a channel with its data lines, which is closed when the stream ends.
func open(t *testing.T, req *http.Request, header map[string]string) <-chan string {
	t.Helper()
	req.Header.Set("Content-Type", "application/json")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp := expect.Value(http.DefaultClient.Do(req))(t)
	if got := resp.Header.Get("Content-Type"); got != "text/event-stream" {
		b, _ := io.ReadAll(resp.Body)
		t.Fatalf("got %d %s %s", resp.StatusCode, got, b)
	}
	data := make(chan string, 100)
	go func() {
		defer close(data)
		defer resp.Body.Close()
		scan := bufio.NewScanner(resp.Body)
		for scan.Scan() {
			if text, ok := strings.CutPrefix(scan.Text(), "data: "); ok && text != "" {
				data <- text
			}
		}
	}()
	return data
}

// called has the calls to AWS that the functions made in the stacks of this package's tests.
var called struct {
	sync.Mutex
	calls map[runner.Call]bool
}

// noteCalls adds a stack's calls when the test ends.
func noteCalls(t *testing.T, stack *runner.Stack) {
	t.Cleanup(func() {
		called.Lock()
		defer called.Unlock()
		if called.calls == nil {
			called.calls = map[runner.Call]bool{}
		}
		for _, c := range stack.Calls() {
			if strings.HasPrefix(c.Resource, "arn:") {
				c.Resource = ""
			}
			called.calls[c] = true
		}
	})
}

// compareCalls compares the calls with tools/permissions/calls.tsv, which lists the calls that the code does not show
// (AWS-10). It expects all of them only if all tests ran.
func compareCalls() (differences []string) {
	text, err := os.ReadFile("../tools/permissions/calls.tsv")
	if err != nil {
		return []string{err.Error()}
	}
	listed := map[runner.Call]bool{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), "\t"); len(f) == 4 {
			listed[runner.Call{Function: f[0], Statement: f[1], Action: f[2], Resource: f[3]}] = true
		}
	}
	if flag.Lookup("test.run").Value.String() == "" && flag.Lookup("test.list").Value.String() == "" {
		for c := range listed {
			one := c // of several keys; the store reads a single key with another operation
			one.Action = strings.Replace(c.Action, "BatchGetItem", "GetItem", 1)
			if !called.calls[c] && !called.calls[one] {
				differences = append(differences, fmt.Sprintf("no test made the call %+v", c))
			}
		}
	}
	for c := range called.calls {
		shown := strings.HasPrefix(c.Action, "dynamodb:") || strings.HasPrefix(c.Action, "sqs:")
		if !shown && !listed[c] {
			differences = append(differences, fmt.Sprintf("the call %+v is missing", c))
		}
	}
	return differences
}

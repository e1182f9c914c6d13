package functions_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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

func wait[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	return expect.Receive(t, what, c)
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
		if err := json.Unmarshal(b, answer); err != nil {
			t.Fatalf("%d %s: %v", resp.StatusCode, b, err)
		}
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

package mcp

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// listRequest is a request for a list in the revision of the session, which is empty for 2026-07-28.
func (f *fixture) listRequest(method, session, params string, headers ...string) *http.Request {
	if session == "" {
		return f.request("POST", alice, statelessBody("1", method, params), append(statelessHeaders(method, params), headers...)...)
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":%q,"params":{%s}}`, method, params)
	return f.request("POST", alice, body, append(headers, "Mcp-Session-Id: "+session)...)
}

// streamed reads the response of an answer that has to be a stream.
func streamed(t *testing.T, r reply) (out reply) {
	t.Helper()
	if r.Status != http.StatusOK || r.Header.Get("Content-Type") != sse.ContentType {
		t.Fatalf("status %d, %s: %s", r.Status, r.Header.Get("Content-Type"), r.Body)
	}
	events := sse.NewReader(strings.NewReader(r.Body), 1<<20)
	e, err := events.Next()
	must(t, err)
	if _, err := events.Next(); err != io.EOF {
		t.Errorf("behind the response: %v", err)
	}
	return reply{Status: r.Status, Header: r.Header, Body: string(e.Data)}
}

var listMethods = []string{spec.MethodToolsList, spec.MethodPromptsList, spec.MethodResources, spec.MethodTemplates}

// GWN-01: a list that backends are slow with begins as a stream before it is there, keeps the
// connection alive, and ends with the result; one that is there at once is JSON.
func TestSlowListsAreStreams(t *testing.T) {
	l := startLister(t, "b", true, "a")
	f := behindGateway(t, func(o *Options) { o.AnswerStreamAfter, o.Heartbeat = 20*time.Millisecond, 5*time.Millisecond }, l)
	for _, session := range []string{"", f.session(alice, spec.V20251125)} {
		for _, method := range listMethods {
			goOn := make(chan struct{})
			l.set(func() { l.hold = goOn })
			time.Sleep(2 * time.Millisecond) // no list is fresh any more
			res, err := f.server.Client().Do(f.listRequest(method, session, ""))
			must(t, err)
			if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != sse.ContentType {
				t.Fatalf("%s: status %d, %v", method, res.StatusCode, res.Header)
			}
			lines := bufio.NewReader(res.Body)
			for comments := 0; comments < 3; {
				line, err := lines.ReadString('\n')
				must(t, err)
				if strings.HasPrefix(line, ":") {
					comments++
				} else if strings.TrimSpace(line) != "" {
					t.Fatalf("%s: before the response: %q", method, line)
				}
			}
			close(goOn)
			e, err := sse.NewReader(lines, 1<<20).Next()
			must(t, err)
			var p backendPage
			reply{Status: 200, Body: string(e.Data)}.result(t, &p)
			if n := len(p.Tools) + len(p.Prompts) + len(p.Resources) + len(p.ResourceTemplates); n == 0 {
				t.Errorf("%s: %s", method, e.Data)
			}
			must(t, res.Body.Close())
		}
	}
	l.set(func() { l.hold = nil })
	f = behindGateway(t, nil, l)
	for _, session := range []string{"", f.session(alice, spec.V20251125)} {
		for _, method := range listMethods {
			if r := f.answer(f.listRequest(method, session, "")); r.Status != 200 || r.Header.Get("Content-Type") != "application/json" {
				t.Errorf("%s at once: %d, %s", method, r.Status, r.Header.Get("Content-Type"))
			}
		}
	}
}

// GWN-01: with --answer-stream-after 0 each list that backends take part in is a stream. What is
// wrong with a request is in its status as before; what is found out later, on the stream.
func TestListsThatAreStreamsAtOnce(t *testing.T) {
	l := startLister(t, "b", true, "a", "b", "c")
	f := behindGateway(t, func(o *Options) { o.AnswerStreamAfter, o.PageSize = 0, 2 }, l)
	session := f.session(alice, spec.V20251125)
	for _, revision := range []string{"", session} {
		for _, method := range listMethods {
			streamed(t, f.answer(f.listRequest(method, revision, ""))).rpc(t)
			if r := f.answer(f.listRequest(method, revision, "", "Accept:", "Accept: application/json")); r.Status != 200 || r.rpc(t).Error != nil {
				t.Errorf("%s without streams: %d %s", method, r.Status, r.Body)
			}
			r := f.answer(f.listRequest(method, revision, `"cursor":"!"`))
			if want := map[bool]int{true: 400, false: 200}[revision == ""]; r.Status != want || r.code(t) != -32602 {
				t.Errorf("%s, no cursor: %d %s", method, r.Status, r.Body)
			}
		}
		gone := `"cursor":"` + opaque.Encode([]byte("btools gone 0 a")) + `"`
		if r := streamed(t, f.answer(f.listRequest(spec.MethodToolsList, revision, gone))); r.code(t) != -32602 {
			t.Errorf("a cursor of a backend that is gone: %s", r.Body)
		}
	}
	if r := f.do("POST", alice, statelessBody("1", spec.MethodToolsList, ""), "Mcp-Protocol-Version: 2026-07-28", "Mcp-Method: x"); r.Status != 400 {
		t.Errorf("a wrong header: %d %s", r.Status, r.Body)
	}
	if r := f.answer(f.listRequest(spec.MethodEvents, "", "")); r.Status != 200 || r.Header.Get("Content-Type") != "application/json" {
		t.Errorf("a list of our own: %d %s", r.Status, r.Body)
	}
	// 2025-03-26 has batches, whose answer is one array.
	old := f.session(alice, spec.V20250326)
	r := f.do("POST", alice, `[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","id":2,"method":"ping"}]`, "Mcp-Session-Id: "+old)
	var answers []struct{ ID int }
	if err := json.Unmarshal([]byte(r.Body), &answers); err != nil || len(answers) != 2 {
		t.Errorf("a batch: %d %s", r.Status, r.Body)
	}
}

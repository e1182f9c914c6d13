package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// asker is a backend whose tool asks the user, and tells what came of it; or waits until it is cancelled.
type asker struct {
	*lister
	answers   chan json.RawMessage // to its question
	waiting   chan json.RawMessage // the ids of calls that wait
	cancelled chan json.RawMessage // the notifications
}

const question = `"method":"elicitation/create","params":{"message":"Name?","requestedSchema":{"type":"object","properties":{}}}`

func startAsker(t *testing.T, stateless bool) *asker {
	t.Helper()
	a := &asker{
		lister: startLister(t, "b", stateless, "ask"), answers: make(chan json.RawMessage, 1),
		waiting: make(chan json.RawMessage, 1), cancelled: make(chan json.RawMessage, 1),
	}
	a.lister.Server = httptest.NewServer(a)
	t.Cleanup(a.lister.Server.Close)
	return a
}

func (a *asker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id, method := jsonrpc.Member(body, "id"), jsonrpc.Member(body, "method")
	switch {
	case string(method) == `"notifications/cancelled"`:
		a.cancelled <- body
		w.WriteHeader(http.StatusAccepted)
	case string(method) == `"tools/call"` && bytes.Contains(body, []byte("wait")):
		a.waiting <- id
		<-r.Context().Done()
	case string(method) == `"tools/call"`:
		a.call(w, r, id)
	case method == nil:
		a.answers <- body
		w.WriteHeader(http.StatusAccepted)
	default:
		r.Body = io.NopCloser(bytes.NewReader(body))
		a.lister.ServeHTTP(w, r)
	}
}

func (a *asker) call(w http.ResponseWriter, r *http.Request, id json.RawMessage) {
	if a.stateless {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"name":{%s}}}}`, id, question)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":\"q\",%s}\n\n", question)
	w.(http.Flusher).Flush()
	select {
	case answer := <-a.answers:
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{\"content\":[],\"structuredContent\":%s}}\n\n", id, answer)
	case <-r.Context().Done():
	}
}

// capable is the header of a new session of a client that could answer.
func (f *fixture) capable(v spec.Version) string {
	f.t.Helper()
	return "Mcp-Session-Id: " + f.initialize(alice, v, `{"elicitation":{}}`).Header.Get(spec.HeaderSession)
}

// capableInDialect is the same of the named-event dialect.
func (f *fixture) capableInDialect() string {
	f.t.Helper()
	const params = `"protocolVersion":"2025-06-18","capabilities":{"elicitation":{}},"clientInfo":{"name":"t","version":"1"}`
	return "Mcp-Session-Id: " + f.dialect(alice, rpcText("0", spec.MethodInitialize, params), jsonOnly).Header.Get(spec.HeaderSession)
}

// GWN-10, GWN-14: within a call whose client takes no event stream no elicitation is possible. So a backend of the earlier
// revisions gets an error for its question and goes on, and a call to one of 2026-07-28 ends; neither waits.
func TestNobodyIsAskedWithoutAStream(t *testing.T) {
	call := rpcText("1", spec.MethodToolsCall, `"name":"b_ask","arguments":{}`)
	for _, stateless := range []bool{false, true} {
		f := behindGateway(t, nil, startAsker(t, stateless).lister)
		for name, ask := range map[string]func() reply{
			"JSON only": func() reply {
				return f.do("POST", alice, call, "Accept:", jsonOnly, f.capable(spec.V20251125))
			},
			"a batch": func() reply {
				r := f.do("POST", alice, "["+call+"]", f.capable(spec.V20250326))
				r.Body = strings.Trim(r.Body, "[]")
				return r
			},
			"the dialect": func() reply { return f.dialect(alice, call, jsonOnly, f.capableInDialect()) },
		} {
			r := ask()
			if r.Status != 200 {
				t.Errorf("%s, 2026 %v: %+v", name, stateless, r)
			}
			var got struct {
				StructuredContent struct{ Error *struct{ Code int } }
			}
			if stateless {
				if r.code(t) != jsonrpc.InvalidRequest {
					t.Errorf("%s: the call ended with %s", name, r.Body)
				}
			} else if r.result(t, &got); got.StructuredContent.Error == nil || got.StructuredContent.Error.Code != jsonrpc.MethodNotFound {
				t.Errorf("%s: the backend was answered %s", name, r.Body)
			}
		}
	}
}

// GWN-11: an answer is taken from a batch, too; one to nothing is an error there, and keeps nothing from the others.
func TestAnswersInABatch(t *testing.T) {
	f := behindGateway(t, nil, startAsker(t, false).lister)
	session := f.capable(spec.V20250326)
	o := f.open(f.request("POST", alice, rpcText("1", spec.MethodToolsCall, `"name":"b_ask","arguments":{}`), session))
	id := o.next().ID
	r := f.do("POST", alice, `[{"jsonrpc":"2.0","id":"gw_other","result":{}},{"jsonrpc":"2.0","id":`+string(id)+`,"result":{"action":"decline"}}]`, session)
	if r.Status != 200 || strings.Count(r.Body, `"error"`) != 1 {
		t.Errorf("%+v", r)
	}
	if m := o.event(); !strings.Contains(string(m.Data), `"action":"decline"`) {
		t.Errorf("the call ended with %s", m.Data)
	}
	if r := f.do("POST", alice, `[{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}]`, session); r.Status != 202 {
		t.Errorf("%+v", r)
	}
}

// GWN-13: a call within a session of the named-event dialect is cancelled as in the revisions that it stands for.
func TestCancellationInTheDialect(t *testing.T) {
	a := startAsker(t, false)
	f := behindGateway(t, nil, a.lister)
	session := f.capableInDialect()
	req := f.request("POST", alice, rpcText("7", spec.MethodToolsCall, `"name":"b_ask","arguments":{"wait":true}`), session)
	req.URL.Path = dialectPath
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := f.server.Client().Do(req.WithContext(ctx)); err == nil {
			_ = res.Body.Close()
		}
	}()
	id := <-a.waiting
	if r := f.dialect(alice, `{"jsonrpc":"2.0","id":"gw_x","result":{}}`, session); r.Status != 202 {
		t.Errorf("an answer to nothing: %+v", r)
	}
	if r := f.dialect(alice, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`, session); r.Status != 202 {
		t.Errorf("%+v", r)
	}
	select {
	case m := <-a.cancelled:
		if got := jsonrpc.Member(jsonrpc.Member(m, "params"), "requestId"); string(got) != string(id) {
			t.Errorf("%s was cancelled, want %s", got, id)
		}
	case <-time.After(patience):
		t.Error("the cancellation does not reach the backend")
	}
	cancel()
	a.CloseClientConnections()
	<-done
}

package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream/lease"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// keep returns an option that allows n streams per principal. If refuse is set, the endpoint refuses one more stream;
// otherwise it ends the principal's oldest stream. The tests of [lease] show that a single process and a fleet count alike.
func keep(n int, refuse bool) func(*Options) {
	return func(o *Options) {
		o.Leases = lease.NewLocal(func(context.Context, auth.Principal) int { return n }, refuse)
	}
}

// oneStream stands for the leases of a fleet with room for only one stream.
type oneStream struct{ taken atomic.Bool }

func (o *oneStream) Take(context.Context, auth.Principal, func()) (release func(), err error) {
	if o.taken.Swap(true) {
		return nil, fault.New(fault.Unavailable, "there is one already").AtLimit("streams", 1)
	}
	return func() { o.taken.Store(false) }, nil
}

func TestStreamsOfAPrincipal(t *testing.T) {
	run(t, "AUT-07 SUB-06 the oldest listen over the quota is completed", keep(2, false), func(t *testing.T, f *fixture) {
		listen := func(key, id string) *open {
			return f.listening(key, id, `{"resourceSubscriptions":["event://ci/deploy"]}`)
		}
		oldest, second, other, third := listen(alice, "1"), listen(alice, "2"), listen(bob, "1"), listen(alice, "3")
		oldest.brings("complete")
		oldest.end()
		f.publish(deploy, `{"n":1}`)
		for _, l := range []*open{second, other, third} {
			l.brings(deploy + ` {"n":1}`)
		}
	})
	run(t, "AUT-07 SSE-02 so is a stream of the dialect", keep(2, false), func(t *testing.T, f *fixture) {
		first, _ := f.dialectStream(alice)
		f.listening(alice, "1", `{}`)
		f.listening(alice, "2", `{}`)
		first.lifecycle("streamClosed", "superseded")
	})
	run(t, "AUT-07 a fleet without room says so, and calls get through", func(o *Options) { o.Leases = &oneStream{} }, func(t *testing.T, f *fixture) {
		f.listening(alice, "1", `{}`)
		r := f.stateless(reader, spec.MethodListen, `"notifications":{}`)
		r.is(t, "listen", 503, method.CodeUnavailable, `"limit":"streams"`)
		r.hasHeader(t, "Retry-After", "")
		f.stateless(reader, spec.MethodResources, "").is(t, "a list", 200, 0)
	})
	run(t, "AUT-07 EVX-16 a stream over the quota is refused where the operator wants that", keep(2, true), func(t *testing.T, f *fixture) {
		f.listening(alice, "1", `{}`)
		f.push(alice, "2", "ci.deploy", `{}`, "")
		session := f.session(alice, spec.V20251125)
		for what, c := range map[string]struct {
			reply
			status, code int
		}{
			"push":   {f.stateless(alice, spec.MethodEventsStream, pollParams("ci.deploy", `{}`, "")), 200, -32013},
			"listen": {f.stateless(alice, spec.MethodListen, `"notifications":{}`), 200, method.CodeExhausted},
			"GET":    {f.do("GET", alice, "", "Accept:", "Accept: text/event-stream", "Mcp-Session-Id: "+session), 429, method.CodeExhausted},
		} {
			c.is(t, what, c.status, c.code, `"limit":"streams","max":2`)
		}
	})
}

const readDeploys = `"uri":"event://ci/deploy"`

// large publishes events with a total size of almost 1 MiB, the most that resources/read returns.
func large(f *fixture) {
	for i := range 4 {
		f.publish("event://ci/deploy", fmt.Sprintf(`{"n":%d,"x":"%s"}`, i, strings.Repeat("x", 230<<10)))
	}
}

func TestABatchOfLargeAnswers(t *testing.T) {
	f := newFixture(t, nil)
	large(f)
	var batch []string
	for i := range maxBatch {
		batch = append(batch, rpcText(fmt.Sprint(i), spec.MethodRead, readDeploys))
	}
	r := f.do("POST", alice, "["+strings.Join(batch, ",")+"]", "Mcp-Session-Id: "+f.session(alice, spec.V20250326))
	var answers []struct {
		Result, Error json.RawMessage
	}
	if err := json.Unmarshal([]byte(r.Body), &answers); err != nil || len(answers) != maxBatch {
		t.Fatalf("got %d answers (%v), want %d: %.200s", len(answers), err, maxBatch, r.Body)
	}
	if size := len(r.Body); size > 2*maxBatchBytes {
		t.Errorf("AUT-06 the answer has %d bytes, want at most %d", size, 2*maxBatchBytes)
	}
	if answers[0].Result == nil {
		t.Errorf("AUT-06 the first request got %.200s, want a result", answers[0].Error)
	}
	if last := string(answers[maxBatch-1].Error); !strings.Contains(last, `"limit":"batchBytes"`) {
		t.Errorf("AUT-06 the last request got %.200s, want the limit batchBytes", last)
	}
}

// unread is a response whose writes block until the connection is closed, because its client does not read.
type unread struct {
	*httptest.ResponseRecorder
	writing chan<- bool
	closed  <-chan bool
}

func (u unread) Write(p []byte) (int, error) {
	u.writing <- true
	<-u.closed
	return 0, http.ErrHandlerTimeout
}

func TestAnswersThatAreNotRead(t *testing.T) {
	f := newFixture(t, nil)
	large(f)
	request := func(key string) *http.Request { return f.statelessRequest(key, spec.MethodRead, readDeploys) }
	writing, closed, ended := make(chan bool), make(chan bool), make(chan bool)
	const answers = 100
	for range answers {
		go func() {
			f.endpoint.ServeHTTP(unread{httptest.NewRecorder(), writing, closed}, request(alice))
			ended <- true
		}()
	}
	for range answers {
		<-writing // Each request writes an answer or a refusal.
	}
	f.answer(request(alice)).is(t, "AUT-07 one more of alice, who does not read many answers", 200, method.CodeExhausted, `"limit":"answerBytes"`)
	f.answer(request(bob)).is(t, "AUT-07 bob's", 200, 0)
	close(closed)
	for range answers {
		<-ended
	}
	f.answer(request(alice)).is(t, "AUT-07 alice's after that", 200, 0)
}

func TestContentLengthIsNotBelieved(t *testing.T) {
	allocated := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.TotalAlloc
	}
	const requests = 100
	before := allocated()
	for range requests {
		_, _ = readBody(&http.Request{ContentLength: maxBody, Body: io.NopCloser(strings.NewReader("{"))})
	}
	if used := (allocated() - before) / requests; used > 4*firstRead {
		t.Errorf("AUT-06 %d bytes are allocated for a body that does not arrive, want at most %d", used, 4*firstRead)
	}
}

func TestRepeatedParamsAreRejected(t *testing.T) {
	f := newFixture(t, nil)
	for method, params := range map[string]string{
		spec.MethodEventsPoll: `"name":"ci.build_finished","arguments":{},"cursor":null,"name":"chat.message"`,
		spec.MethodRead:       `"uri":"event://ci/build-finished","uri":"event://ci"`,
	} {
		t.Run("AUT-06 "+method, func(t *testing.T) {
			if got := f.stateless(alice, method, params); !strings.Contains(got.Body, `"code":-32602`) || !strings.Contains(got.Body, "twice") {
				t.Errorf("got %d %s, want the code -32602 for params with a member twice", got.Status, got.Body)
			}
		})
	}
}

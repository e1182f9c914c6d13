package mcp

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

const readDeploys = `"uri":"event://ci/deploy"`

// large publishes events of almost a MiB, which is what resources/read returns at most.
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
		batch = append(batch, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":{%s}}`, i, spec.MethodRead, readDeploys))
	}
	r := f.do("POST", alice, "["+strings.Join(batch, ",")+"]", "Mcp-Session-Id: "+f.session(alice, spec.V20250326))
	var answers []struct {
		Result, Error json.RawMessage
	}
	if err := json.Unmarshal([]byte(r.Body), &answers); err != nil || len(answers) != maxBatch {
		t.Fatalf("%d answers, %v: %.200s", len(answers), err, r.Body)
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

// unread is a connection whose client reads nothing until it is closed.
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
		<-writing // of the answer, or of its refusal
	}
	if r := f.answer(request(alice)); r.code(t) != method.CodeExhausted || !strings.Contains(r.Body, `"limit":"answerBytes"`) {
		t.Errorf("AUT-07 given many answers that alice does not read, the next one got %d %.200s, want the limit answerBytes", r.Status, r.Body)
	}
	if r := f.answer(request(bob)); r.Status != 200 {
		t.Errorf("AUT-07 bob got %d %.200s, want 200", r.Status, r.Body)
	}
	close(closed)
	for range answers {
		<-ended
	}
	if r := f.answer(request(alice)); r.Status != 200 {
		t.Errorf("AUT-07 after that, alice got %d %.200s, want 200", r.Status, r.Body)
	}
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

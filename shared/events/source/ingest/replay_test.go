package ingest_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// In each of these sources, the id of the event is in a header that is not signed.
const replayedFile = `sources:
  - name: linear
    verify: {scheme: hmac, secrets: ["env:KEY"], header: X-Sig}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
  - name: timed
    verify: {scheme: hmac, secrets: ["env:KEY"], header: X-Sig, signed: "{timestamp}.{body}", timestamp: X-At}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
  - name: other
    verify: {scheme: hmac, secrets: ["env:KEY"], header: X-Sig, signed: "{header:x-other}.{body}"}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
  - name: stripe
    verify: {scheme: stripe, secrets: ["env:KEY", "env:STANDARD"]}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
  - name: standard
    verify: {scheme: standard-webhooks, secrets: ["env:STANDARD"]}
    events: [{name: cloudwatch.alarm, id: /headers/x-delivery}]
`

const standardKey = "0123456789abcdef0123456789abcdef"

func replayed(t *testing.T) *fixture {
	t.Helper()
	f, _, _ := newFixtureOf(t, catalogFile, replayedFile, map[string]string{
		"env:KEY": sharedSecret, "env:STANDARD": "whsec_" + base64.StdEncoding.EncodeToString([]byte(standardKey)),
	})
	t.Cleanup(f.close)
	return f
}

// signedRequest returns a request that is signed as the source's provider would at the given time, in seconds.
func signedRequest(source, delivery, body string, at int64) *http.Request {
	r := httptest.NewRequest("POST", "http://127.0.0.1/sources/"+source, strings.NewReader(body))
	r.Header.Set("X-Delivery", delivery)
	timed := fmt.Sprintf("%d.%s", at, body)
	switch source {
	case "linear":
		r.Header.Set("X-Sig", signature(sharedSecret, body))
	case "timed":
		r.Header.Set("X-At", fmt.Sprint(at))
		r.Header.Set("X-Sig", signature(sharedSecret, timed))
	case "other":
		r.Header.Set("X-Other", "o")
		r.Header.Set("X-Sig", signature(sharedSecret, "o."+body))
	case "stripe":
		r.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at, signature(sharedSecret, timed)))
	case "standard":
		h := hmac.New(sha256.New, []byte(standardKey))
		fmt.Fprintf(h, "msg_1.%s", timed)
		r.Header.Set("Webhook-Id", "msg_1")
		r.Header.Set("Webhook-Timestamp", fmt.Sprint(at))
		r.Header.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
	}
	return r
}

func TestReplays(t *testing.T) {
	for _, name := range []string{"linear", "timed", "other", "stripe", "standard"} {
		t.Run("SRC-02 "+name+": a replay under another id does not become a second event", func(t *testing.T) {
			f := replayed(t)
			at := f.now.Unix()
			f.wants(t, signedRequest(name, "d-1", `{"a":1}`, at), 202, `"d-1"`, ingest.Accepted)
			f.wants(t, signedRequest(name, "d-2", `{"a":1}`, at), 202, `"d-1"`, ingest.Duplicate)
			f.wants(t, signedRequest(name, "d-3", `{"a":2}`, at), 202, `"d-3"`, ingest.Accepted)
		})
		t.Run("SRC-04 "+name+": a redelivery that is signed again is the same event", func(t *testing.T) {
			f := replayed(t)
			at := f.now.Unix()
			f.wants(t, signedRequest(name, "d-1", `{"a":1}`, at), 202, `"d-1"`, ingest.Accepted)
			f.wants(t, signedRequest(name, "d-1", `{"a":1}`, at+60), 202, `"d-1"`, ingest.Duplicate)
		})
		t.Run("SRC-04 "+name+": a replay of an unfit document does not become a second dead letter, nor a second event later", func(t *testing.T) {
			f := replayed(t)
			for i := range f.Sources.(sources) {
				f.Sources.(sources)[i].Events[0].Data, _ = parseValue(`"/body/none"`)
			}
			at := f.now.Unix()
			for _, id := range []string{"d-1", "d-2"} {
				f.wants(t, signedRequest(name, id, `{"a":1}`, at), 422, ``, ingest.Unfit)
			}
			expect.Equal(t, "dead letters", len(f.sent[queue.Dead]), 1)
			_, body := f.letter(t, 0)
			for i := range f.Sources.(sources) {
				f.Sources.(sources)[i].Events[0].Data, _ = parseValue(`"/body"`)
			}
			f.read(t, body)
			f.wants(t, signedRequest(name, "d-3", `{"a":1}`, at), 202, `"d-1"`, ingest.Duplicate)
			f.wantEvents(t, "d-1")
		})
	}
	t.Run("SRC-02 a replay with another spelling of the signed time is still a replay", func(t *testing.T) {
		f := replayed(t)
		at := f.now.Unix()
		f.wants(t, signedRequest("standard", "d-1", `{"a":1}`, at), 202, `"d-1"`, ingest.Accepted)
		r := signedRequest("standard", "d-2", `{"a":1}`, at)
		r.Header.Set("Webhook-Timestamp", fmt.Sprintf("00%d", at))
		f.wants(t, r, 202, `"d-1"`, ingest.Duplicate)
	})
	t.Run("SRC-02 a replay with only one of two signatures is still a replay", func(t *testing.T) {
		f := replayed(t)
		at := f.now.Unix()
		timed := fmt.Sprintf("%d.%s", at, `{"a":1}`)
		standard := "whsec_" + base64.StdEncoding.EncodeToString([]byte(standardKey))
		for i, key := range []string{sharedSecret, standard} {
			r := signedRequest("stripe", fmt.Sprint("d-", i), `{"a":1}`, at)
			r.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at, signature(key, timed)))
			f.wants(t, r, 202, `"d-0"`, []ingest.Kind{ingest.Accepted, ingest.Duplicate}[i])
		}
	})
}

// meanwhile is a publisher that runs a function during its first call.
type meanwhile struct {
	ingest.Publisher
	then func()
}

func (m *meanwhile) Accept(ctx context.Context, p auth.Principal, in []publish.Input) ([]publish.Accepted, error) {
	if then := m.then; then != nil {
		m.then = nil
		then()
	}
	return m.Publisher.Accept(ctx, p, in)
}

// shared makes a store behave as if several processes shared it.
type shared struct{ store.DB }

func (shared) Stamps() bool { return false }
func (shared) Local() bool  { return false }

func TestConcurrentReplays(t *testing.T) {
	const body = `{"a":1}`
	for name, other := range map[string]func(f *fixture){
		"by this process": func(*fixture) {},
		"by another":      func(f *fixture) { f.Seen = ingest.NewSeen(f.Seen.DB) },
	} {
		// begun runs a function while a request is being accepted.
		begun := func(t *testing.T, then func(f *fixture, at int64)) (f *fixture, at int64) {
			f = replayed(t)
			f.Seen = ingest.NewSeen(shared{f.Seen.DB})
			at = f.now.Unix()
			first := f.Seen
			f.Publisher = &meanwhile{f.Publisher, func() {
				other(f)
				then(f, at)
				f.Seen = first
			}}
			return f, at
		}
		t.Run("SRC-02 a replay "+name+" does not become a second event", func(t *testing.T) {
			f, at := begun(t, func(f *fixture, at int64) {
				f.wants(t, signedRequest("timed", "d-2", body, at), 503, `is being accepted under another id`, ingest.Unavailable)
			})
			if code, answer := f.answer(t, signedRequest("timed", "d-1", body, at)); code != 202 {
				t.Errorf("got %d %s", code, answer)
			}
			other(f)
			f.wants(t, signedRequest("timed", "d-2", body, at), 202, `"d-1"`, ingest.Duplicate)
			f.wantEvents(t, "d-1")
		})
		t.Run("SRC-04 a redelivery "+name+" is accepted, and the queue drops it", func(t *testing.T) {
			f, at := begun(t, func(f *fixture, at int64) {
				f.wants(t, signedRequest("timed", "d-1", body, at), 202, `"d-1"`, ingest.Accepted)
			})
			if code, answer := f.answer(t, signedRequest("timed", "d-1", body, at)); code != 202 {
				t.Errorf("got %d %s", code, answer)
			}
			if sent := f.sent[queue.Events]; len(sent) != 2 || sent[0].Dedup != sent[1].Dedup {
				t.Errorf("sent %+v", sent)
			}
		})
		t.Run("SRC-05 after a failure "+name+", the request is accepted again", func(t *testing.T) {
			f, at := begun(t, func(f *fixture, _ int64) { f.down = true })
			f.wants(t, signedRequest("timed", "d-1", body, at), 503, ``, ingest.Unavailable)
			f.down = false
			other(f)
			f.wants(t, signedRequest("timed", "d-1", body, at), 202, `"d-1"`, ingest.Accepted)
		})
	}
	t.Run("SRC-05 given a process that died while accepting a request, another process accepts it again, and its replays a minute later", func(t *testing.T) {
		f := replayed(t)
		at := f.now.Unix()
		f.Seen = ingest.NewSeen(shared{f.Seen.DB})
		f.Publisher = &meanwhile{f.Publisher, func() {
			f.Seen = ingest.NewSeen(f.Seen.DB)
			f.wants(t, signedRequest("timed", "d-2", body, at), 503, ``, ingest.Unavailable)
			f.now = f.now.Add(2 * time.Minute)
			f.wants(t, signedRequest("timed", "d-2", body, at), 202, `"d-2"`, ingest.Accepted)
			f.down = true
		}}
		if code, answer := f.answer(t, signedRequest("timed", "d-1", body, at)); code != 503 {
			t.Errorf("got %d %s", code, answer)
		}
		f.Seen, f.down = ingest.NewSeen(f.Seen.DB), false
		f.wants(t, signedRequest("timed", "d-1", body, at), 202, `"d-2"`, ingest.Duplicate) // the first request kept the key that the other one had recorded
	})
	t.Run("SRC-02 a replay of a redelivery does not become a second event", func(t *testing.T) {
		f := replayed(t)
		at := f.now.Unix()
		f.wants(t, signedRequest("timed", "d-1", body, at), 202, `"d-1"`, ingest.Accepted)
		f.wants(t, signedRequest("timed", "d-1", body, at+1), 202, `"d-1"`, ingest.Duplicate)
		f.wants(t, signedRequest("timed", "d-2", body, at+1), 202, `"d-1"`, ingest.Duplicate)
		f.wants(t, signedRequest("timed", "d-2", `{"a":2}`, at+1), 202, `"d-2"`, ingest.Accepted) // so its own id is still free
	})
}

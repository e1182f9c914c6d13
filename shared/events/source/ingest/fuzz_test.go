package ingest_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/provider"
)

// everyScheme returns a configuration with one source per scheme, named after it.
func everyScheme() string {
	var b strings.Builder
	b.WriteString("sources:\n")
	for _, s := range provider.Schemes() {
		b.WriteString(s.Source("github.pull_request_at"))
	}
	return b.String()
}

const anyCatalog = `events:
  - {name: github.pull_request_at, uri: event://any/thing, payloadSchema: {type: object, properties: {action: {type: string}}}}
`

// newSchemes returns a fixture with the sources of everyScheme.
func newSchemes(tb testing.TB) (*fixture, *catalog.Catalog, []source.Source) {
	tb.Helper()
	secrets := map[string]string{}
	for _, s := range provider.Schemes() {
		secrets["env:"+s.Env] = s.Secret
	}
	return newFixtureOf(tb, anyCatalog, everyScheme(), secrets)
}

// parseHeaders parses lines of headers. It skips headers that net/http would refuse.
func parseHeaders(text string) http.Header {
	h := http.Header{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimRight(line, "\n"), ":")
		if ok && !strings.ContainsAny(value, "\x00\r\n") {
			h.Add(name, strings.TrimSpace(value))
		}
	}
	return h
}

var answered = map[int]bool{200: true, 202: true, 400: true, 401: true, 403: true, 404: true, 405: true, 413: true, 415: true, 422: true, 429: true}

// FuzzHandler sends arbitrary headers, queries and bodies to sources of all schemes, with and without a signature.
func FuzzHandler(f *testing.F) {
	all := provider.Schemes()
	for i := range all {
		f.Add(uint8(i), true, "d-1", "Content-Type: application/json\n", "a=b", []byte(`{"action":"opened"}`))
		f.Add(uint8(i), true, "é", "Content-Type: application/x-www-form-urlencoded\n", "", []byte(`payload=%7B%22action%22%3A1%7D`))
		f.Add(uint8(i), false, "d-1", "Stripe-Signature: t=1,v1=00,v1=\nX-Sig: s=00 s=\nWebhook-Signature: v1,AA==\n", "%zz", []byte("\x1f\x8b"))
		f.Add(uint8(i), true, "d", "Content-Encoding: gzip\nOrigin: https://evil.example\n", "", []byte("\x1f\x8b\x08\x00"))
	}
	var fix *fixture
	n := 0
	f.Fuzz(func(t *testing.T, scheme uint8, sign bool, id, headers, query string, body []byte) {
		if n++; fix == nil || n%20_000 == 0 {
			if fix != nil {
				fix.close()
			}
			fix, _, _ = newSchemes(t)
		}
		fix.sent, fix.outcomes = map[queue.Name][]queue.Outgoing{}, nil
		s := all[int(scheme)%len(all)]
		r := httptest.NewRequest("POST", "http://127.0.0.1"+s.Path(s.Name), bytes.NewReader(body))
		r.URL.RawQuery = query
		r.Header = parseHeaders(headers)
		if sign {
			for name, values := range s.Headers(strings.TrimSpace(strings.Map(visible, id)), body, fix.now) {
				if name != "Content-Type" {
					r.Header[name] = values
				}
			}
		}
		status, answer := fix.answer(t, r)
		if !answered[status] || !json.Valid([]byte(answer)) {
			t.Fatalf("%s: %d %s", s.Name, status, answer)
		}
		expect.Lacks(t, s.Name+": the response", answer, s.Secret)
		events := fix.events(t)
		if !sign && s.Credential != "" && (len(events) > 0 || len(fix.sent[queue.Dead]) > 0) {
			t.Fatalf("%s: an unsigned request became %+v", s.Name, fix.sent)
		}
		if len(events) > 1 || len(events) == 1 && (status != 202 || !strings.Contains(answer, events[0].ID)) {
			t.Fatalf("%s: %d %s for %+v", s.Name, status, answer, events)
		}
		for _, out := range fix.sent[queue.Dead] {
			letter, err := queue.ParseDeadLetter(out.Body)
			if err != nil || len(out.Body) > queue.MaxBody || strings.Contains(letter.Body, s.Secret) {
				t.Fatalf("%s: the dead letter %.300s, %v", s.Name, out.Body, err)
			}
			expect.OK(t, expect.ErrOf(fix.inbox.Handle(t.Context(), []queue.Message{{ID: "m", Outgoing: queue.Outgoing{Body: []byte(letter.Body)}}})))
		}
	})
}

// visible removes characters that a header cannot hold.
func visible(r rune) rune {
	if r < ' ' || r == 0x7f {
		return -1
	}
	return r
}

// FuzzTry runs arbitrary input through a source of each scheme and of each bus.
func FuzzTry(f *testing.F) {
	f.Add([]byte("POST /sources/github?x=1 HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 2\r\nX-GitHub-Delivery: d\r\n\r\n{}\r\n"))
	f.Add([]byte("x-id: 1\n\n{\"a\":1}"))
	f.Add([]byte(" HTTP/1.1\n\n"))
	f.Add([]byte(`{"version":"0","id":"e-1","detail-type":"Alarm","source":"aws.cloudwatch","detail":{}}`))
	f.Add([]byte(`{"Records":[{"eventSource":"aws:s3"},{"eventSource":"aws:s3"}]}`))
	fix, cat, all := newSchemes(f)
	fix.close()
	buses, err := config.Parse([]byte(`sources:
  - {name: a, from: eventbridge, events: [{name: github.pull_request_at, id: /id, time: /time}]}
  - {name: b, from: sns, events: [{name: github.pull_request_at, data: /Message}]}
  - {name: c, from: s3, events: [{name: github.pull_request_at}]}
`))
	if err != nil {
		f.Fatal(err)
	}
	all = append(all, buses.Sources...)
	now := time.Unix(1_795_424_400, 0)
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, s := range all {
			trials, err := ingest.Try(t.Context(), cat, s, raw, now, secret.FromEnvironment)
			if err != nil {
				if k := fault.KindOf(err); k == fault.Internal || len(trials) > 0 {
					t.Fatalf("%s: %v with %d trials", s.Name, err, len(trials))
				}
				continue
			}
			for _, tr := range trials {
				expect.OK(t, expect.ErrOf(json.Marshal(tr)), s.Name)
				if tr.Kind != ingest.Accepted {
					continue
				}
				e := expect.Value(publish.Check(cat, publish.Input{URI: tr.URI, ID: tr.ID, Data: tr.Data}))(t)
				expect.MustEqual(t, s.Name+": the URI", e.URI, tr.URI)
			}
		}
	})
}

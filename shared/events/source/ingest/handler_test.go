package ingest_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

const sharedSecret = "It's a Secret to Everybody"

const catalogFile = `events:
  - name: github.pull_request
    uriTemplate: event://github/{owner}/{repo}/pull_request
    payloadSchema: {type: object, required: [action], properties: {action: {enum: [opened, closed]}}}
  - {name: cloudwatch.alarm, uri: event://cloudwatch/alarm}
`

const configFile = `sources:
  - name: github
    verify: {scheme: github, secrets: ["env:OLD", "env:NEW"]}
    events:
      - match: {headers: {x-github-event: [pull_request]}}
        name: github.pull_request
        variables: {owner: /body/repository/owner, repo: /body/repository/name}
        id: /headers/x-github-delivery
        data: {action: /body/action}
  - name: open
    verify: {scheme: none, secrets: ["env:PATH_KEY"]}
    events: [{name: cloudwatch.alarm}]
  - name: slack
    verify: {scheme: slack, secrets: ["env:NEW"]}
    events: [{match: {body: {type: [event_callback]}}, name: cloudwatch.alarm}]
  - name: alarms
    from: eventbridge
    events: [{match: {detail-type: [Alarm]}, name: cloudwatch.alarm, id: /id, time: /time, data: /detail}]
`

// fixture is a handler with its own store. It keeps the messages that the handler queues.
type fixture struct {
	*ingest.Handler
	inbox *publish.Inbox
	now   time.Time
	close func()

	mu       sync.Mutex
	sent     map[queue.Name][]queue.Outgoing
	outcomes []ingest.Outcome
	down     bool
}

func (f *fixture) Send(_ context.Context, q queue.Name, out ...queue.Outgoing) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return fault.New(fault.Unavailable, "the queue is down")
	}
	f.sent[q] = append(f.sent[q], out...)
	return nil
}

func (f *fixture) Record(_ context.Context, o ingest.Outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.outcomes = append(f.outcomes, o)
}

type sources []source.Source

func (s sources) Sources(context.Context) ([]source.Source, error) { return s, nil }

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f, _, _ := newFixtureOf(t, catalogFile, configFile, map[string]string{
		"env:OLD": "a secret of yesterday", "env:NEW": sharedSecret, "env:PATH_KEY": "0123456789abcdef0123456789abcdef",
	})
	t.Cleanup(f.close)
	return f
}

// newFixtureOf creates a fixture like newFixture, with other files and secrets, and also returns the parsed catalog and sources.
func newFixtureOf(tb testing.TB, catalogFile, configFile string, secrets map[string]string) (*fixture, *catalog.Catalog, []source.Source) {
	tb.Helper()
	cat := expect.Value(catalog.Parse([]byte(catalogFile)))(tb)
	cfg := expect.Value(config.Parse([]byte(configFile)))(tb)
	f := &fixture{sent: map[queue.Name][]queue.Outgoing{}, now: time.Date(2026, 11, 23, 9, 0, 0, 0, time.UTC)}
	clock := func() time.Time { return f.now }
	db := expect.Value(sqlite.Open(":memory:", sqlite.Options{Engine: engine.Options{Now: clock}}))(tb)
	f.close = func() { _ = db.Close() }
	catalogs := catalog.NewStatic(cat)
	service := &publish.Service{Catalog: catalogs, Queue: f, Now: clock}
	documents := ingest.Documents{
		Sources: sources(cfg.Sources), Catalogs: catalogs, Publisher: service, Seen: ingest.NewSeen(db), Queue: f, Recorder: f, Now: clock,
	}
	f.Handler = &ingest.Handler{
		Documents: documents,
		Guard:     auth.NewGuard(nil, nil, nil),
		Secrets:   func(_ context.Context, v secret.Value) (string, error) { return secrets[v.String()], nil },
	}
	f.inbox = &publish.Inbox{Service: service, Documents: &ingest.Bus{Documents: documents}}
	return f, cat, cfg.Sources
}

// pull returns a signed pull_request webhook of GitHub.
func pull(delivery, body string) *http.Request {
	r := httptest.NewRequest("POST", "http://127.0.0.1/sources/github", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-GitHub-Event", "pull_request")
	r.Header.Set("X-GitHub-Delivery", delivery)
	r.Header.Set("X-Hub-Signature-256", "sha256="+signature(sharedSecret, body))
	return r
}

func signature(key, text string) string {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(text))
	return hex.EncodeToString(h.Sum(nil))
}

func zip(text string) string {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return zipped.String()
}

func (f *fixture) mux() *http.ServeMux {
	mux := http.NewServeMux()
	f.Mount(mux)
	return mux
}

func (f *fixture) answer(t *testing.T, r *http.Request) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	f.mux().ServeHTTP(w, r)
	return w.Code, strings.TrimSpace(w.Body.String())
}

func (f *fixture) wants(t *testing.T, r *http.Request, status int, text string, kind ingest.Kind) {
	t.Helper()
	before := len(f.outcomes)
	code, body := f.answer(t, r)
	expect.Equal(t, "the code", code, status)
	expect.Contains(t, "the body", body, text)
	switch {
	case kind == "" && len(f.outcomes) != before:
		t.Errorf("recorded %+v, want no outcome", f.outcomes[before])
	case kind != "" && (len(f.outcomes) != before+1 || f.outcomes[before].Kind != kind):
		t.Errorf("recorded %+v, want %s", f.outcomes[before:], kind)
	}
}

func (f *fixture) events(t *testing.T) []event.Event {
	t.Helper()
	var all []event.Event
	for _, out := range f.sent[queue.Events] {
		var e event.Event
		expect.OK(t, json.Unmarshal(out.Body, &e))
		all = append(all, e)
	}
	return all
}

const opened = `{"action":"opened","repository":{"owner":"acme","name":"site"}}`

func TestHandler(t *testing.T) {
	t.Run("SRC-04 a signed request becomes an event", func(t *testing.T) {
		f := newFixture(t)
		f.wants(t, pull("d-1", opened), 202, `{"accepted":[{"id":"d-1","uri":"event://github/acme/site/pull_request"}]}`, ingest.Accepted)
		all := f.events(t)
		if len(all) != 1 || all[0].ID != "d-1" || all[0].Workspace != "default" || string(all[0].Data) != `{"action":"opened"}` || !all[0].Time.Equal(f.now) {
			t.Errorf("got %+v", all)
		}
	})
	t.Run("SRC-04 a redelivery is one event for three days", func(t *testing.T) {
		f := newFixture(t)
		f.wants(t, pull("d-1", opened), 202, `"d-1"`, ingest.Accepted)
		f.now = f.now.Add(71 * time.Hour)
		f.wants(t, pull("d-1", opened), 202, `{"accepted":[{"id":"d-1","uri":"event://github/acme/site/pull_request"}]}`, ingest.Duplicate)
		expect.Equal(t, "events", len(f.events(t)), 1)
		f.wants(t, pull("d-1", strings.Replace(opened, "site", "shop", 1)), 202, `acme/site`, ingest.Duplicate)
		expect.Equal(t, "the URI in the outcome of another request with the id", f.outcomes[2].URI, f.outcomes[0].URI)
	})
	t.Run("SRC-04 a new process knows the ids that another has accepted", func(t *testing.T) {
		f := newFixture(t)
		f.wants(t, pull("d-1", opened), 202, `"d-1"`, ingest.Accepted)
		db := f.Seen.DB // the record joins the next commit, which is this one
		expect.OK(t, db.Write(t.Context(), store.Put(store.Item{Key: store.Key{Table: store.Deliveries, Partition: "test", Sort: "commit"}})))
		f.Seen = ingest.NewSeen(db)
		f.wants(t, pull("d-1", opened), 202, `"d-1"`, ingest.Duplicate)
		f.wants(t, pull("d-2", opened), 202, `"d-1"`, ingest.Duplicate)
	})
	t.Run("SRC-02 a refused sender is told to use a webhook signature, not a bearer token", func(t *testing.T) {
		f := newFixture(t)
		w := httptest.NewRecorder()
		r := pull("d-1", opened)
		r.Header.Del("X-Hub-Signature-256")
		f.mux().ServeHTTP(w, r)
		if got := w.Header().Values("WWW-Authenticate"); w.Code != 401 || len(got) != 1 || got[0] != `Webhook realm="github"` {
			t.Errorf("got %d %q", w.Code, got)
		}
	})
	t.Run("SRC-03 an unmatched request is answered with an empty list and not kept", func(t *testing.T) {
		f := newFixture(t)
		r := pull("d-1", opened)
		r.Header.Set("X-GitHub-Event", "ping")
		f.wants(t, r, 202, `{"accepted":[]}`, ingest.Unmatched)
		expect.Len(t, "the messages", f.sent, 0)
	})
	t.Run("SRC-02 with the scheme none the path has the secret", func(t *testing.T) {
		f := newFixture(t)
		post := func(path string) *http.Request {
			return httptest.NewRequest("POST", "http://127.0.0.1/sources/open"+path, strings.NewReader(`{}`))
		}
		f.wants(t, post("/0123456789abcdef0123456789abcdef"), 202, `sha256_`, ingest.Accepted)
		f.wants(t, post("/0123456789abcdef0123456789abcdee"), 401, ``, ingest.Unverified)
		f.wants(t, post(""), 404, ``, "")
	})
	t.Run("SRC-02 Slack's URL verification is answered with the challenge", func(t *testing.T) {
		f := newFixture(t)
		body := `{"type":"url_verification","challenge":"abc"}`
		r := httptest.NewRequest("POST", "http://127.0.0.1/sources/slack", strings.NewReader(body))
		r.Header.Set("X-Slack-Request-Timestamp", "1795424400")
		r.Header.Set("X-Slack-Signature", "v0="+signature(sharedSecret, "v0:1795424400:"+body))
		f.wants(t, r, 200, `{"challenge":"abc"}`, ingest.Verified)
		f.wants(t, httptest.NewRequest("POST", "http://127.0.0.1/sources/slack", strings.NewReader(body)), 401, ``, ingest.Unverified)
	})
	t.Run("SRC-05 a GZIP body may be signed before or after compression", func(t *testing.T) {
		f := newFixture(t)
		zipped := zip(opened)
		for id, signed := range map[string]string{"d-1": opened, "d-2": zipped} {
			f := newFixture(t)
			r := pull(id, zipped)
			r.Header.Set("Content-Encoding", "gzip")
			r.Header.Set("X-Hub-Signature-256", "sha256="+signature(sharedSecret, signed))
			f.wants(t, r, 202, id, ingest.Accepted)
		}
		r := pull("d-3", zip(strings.Repeat(" ", publish.MaxBody+1))) // a zip bomb
		r.Header.Set("Content-Encoding", "gzip")
		f.wants(t, r, 413, `"limit":"body"`, ingest.Invalid)
	})
	t.Run("SRC-05 a flood is limited", func(t *testing.T) {
		f := newFixture(t)
		f.Rate = quota.NewRate("publishRate", "events", quota.FixedLimit(1), func(float64) float64 { return 1 })
		f.wants(t, pull("d-1", opened), 202, `"d-1"`, ingest.Accepted)
		r := pull("d-2", opened)
		r.Header.Set("X-Hub-Signature-256", "sha256=00")
		f.wants(t, r, 401, ``, ingest.Unverified) // and does not count
		w := httptest.NewRecorder()
		f.mux().ServeHTTP(w, pull("d-3", opened))
		expect.Equal(t, "the code", w.Code, 429)
		expect.Equal(t, "the header Retry-After", w.Header().Get("Retry-After"), "1")
		expect.Equal(t, "the outcome", f.outcomes[2].Kind, ingest.Limited)
		open := httptest.NewRequest("POST", "http://127.0.0.1/sources/open/0123456789abcdef0123456789abcdef", strings.NewReader(`{}`))
		f.wants(t, open, 202, `sha256_`, ingest.Accepted) // another source has its own limit
	})
	t.Run("SRC-05 a request fails until its event is durable, so that the provider sends it again", func(t *testing.T) {
		f := newFixture(t)
		f.down = true
		f.wants(t, pull("d-1", opened), 503, ``, ingest.Unavailable)
		f.down = false
		f.wants(t, pull("d-1", opened), 202, `"d-1"`, ingest.Accepted)
	})
	t.Run("requests with other methods and paths are refused", func(t *testing.T) {
		f := newFixture(t)
		f.wants(t, httptest.NewRequest("GET", "http://127.0.0.1/sources/github", nil), 405, ``, "")
		f.wants(t, httptest.NewRequest("POST", "http://127.0.0.1/sources/other", nil), 404, ``, "")
		for _, path := range []string{"alarms", "github/", "open/", "github/a/b", ""} {
			f.wants(t, httptest.NewRequest("POST", "http://127.0.0.1/sources/"+path, nil), 404, `"kind":"not found"`, "")
		}
		f.wants(t, pull("d", strings.Repeat(" ", publish.MaxBody+1)), 413, ``, ingest.Invalid)
		f.wants(t, pull("d", `{`), 400, `not JSON`, ingest.Invalid)
		r := pull("d", opened)
		r.Header.Set("Content-Encoding", "br")
		f.wants(t, r, 415, `allowed: gzip`, ingest.Invalid)
	})
}

func TestBus(t *testing.T) {
	f := newFixture(t)
	alarm := `{"version":"0","id":"e-1","detail-type":"Alarm","source":"aws.cloudwatch","time":"2026-11-23T08:00:00Z","detail":{"state":"ALARM"}}`
	f.read(t, alarm)
	all := f.events(t)
	if len(all) != 1 || all[0].ID != "e-1" || all[0].Time.Hour() != 8 || string(all[0].Data) != `{"state":"ALARM"}` || all[0].URI != "event://cloudwatch/alarm" {
		t.Errorf("SRC-01 got %+v", all)
	}
	f.read(t, strings.Replace(alarm, `"Alarm"`, `"Other"`, 1))
	if len(f.events(t)) != 1 || len(f.sent[queue.Dead]) > 0 || f.outcomes[1].Kind != ingest.Unmatched {
		t.Errorf("SRC-03 an unmatched message: %+v %+v", f.sent, f.outcomes)
	}
	f.read(t, `{"uri":"event://cloudwatch/alarm","data":{}}`)
	expect.Equal(t, "SRC-01 events after that of a direct sender", len(f.events(t)), 2)
	f.read(t, `{"Type":"Notification","TopicArn":"arn","Message":"x"}`)
	expect.Equal(t, "SRC-01 the number of events", len(f.events(t)), 2)
	expect.Equal(t, "SRC-01 the number of dead letters", len(f.sent[queue.Dead]), 1)
	letter, _ := f.letter(t, 0)
	expect.Contains(t, "SRC-01 the reason for a message without a source", letter.Reason, "no source with from: sns")
	f.read(t, `{"Service":"Amazon S3","Event":"s3:TestEvent","Time":"2026-11-23T08:00:00Z","Bucket":"b"}`)
	expect.Equal(t, "SRC-01 dead letters after S3's test message", len(f.sent[queue.Dead]), 1)
}

func TestChecksHaveLines(t *testing.T) {
	cat := expect.Value(catalog.Parse([]byte(catalogFile)))(t)
	cfg := expect.Value(config.Parse([]byte(`sources:
  - name: mixed
    verify: {scheme: github, secrets: ["env:MISSING"]}
    events:
      - {name: github.unknown, match: {body: {a: [1]}}}
      - {name: cloudwatch.alarm, match: {body: {a: [2]}}}
      - {name: github.pull_request, match: {body: {a: [3]}}, variables: {owner: /body/o}}
      - {name: cloudwatch.alarm, variables: {owner: /body/o}}
`)))(t)
	t.Run("SRC-01 a mapping that does not fit the catalog is reported with its line", func(t *testing.T) {
		err := ingest.CheckCatalog(cat, cfg.Sources[0])
		for _, want := range []string{
			"line 5: source mixed: github.unknown is not an event type", "line 7: source mixed: github.pull_request: the variable repo is missing",
			"line 8: source mixed: cloudwatch.alarm: the event type does not have owner (it has: none); delete it from variables",
		} {
			expect.Fault(t, "the error", err, fault.Invalid, want)
		}
		expect.Lacks(t, "the error without the mapping that fits", err.Error(), "line 6")
	})
	t.Run("SRC-01 SRC-02 a missing secret is reported with its line", func(t *testing.T) {
		err := ingest.CheckSecrets(t.Context(), cfg.Sources, func(context.Context, secret.Value) (string, error) {
			return "", fault.New(fault.Invalid, "env:MISSING is not set")
		})
		expect.Fault(t, "the error", err, fault.Invalid, "line 2: source mixed")
	})
}

func parseValue(text string) (source.Value, error) {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return source.Value{}, err
	}
	return source.ParseValue(v)
}

package conversation

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

// marker is in every message and context of these tests.
const marker = "periwinkle"

// source is a configuration that can be replaced.
type source struct {
	atomic.Pointer[rules.Conversation]
}

func (s *source) Conversation(context.Context) (*rules.Conversation, error) { return s.Load(), nil }

// rig is a service whose providers behave as a test says, in a synctest bubble.
type rig struct {
	*Service
	t       *testing.T
	source  *source
	log     *expect.Buffer
	answers map[string]func(*http.Request) (*http.Response, error) // by the host of the URL

	mu        sync.Mutex
	asked     []string // hosts, in the order of the requests
	published []publish.Input
	publish   func(context.Context) error
}

func newRig(t *testing.T, src string, change ...func(*Options)) *rig {
	t.Helper()
	r := &rig{t: t, log: new(expect.Buffer), answers: map[string]func(*http.Request) (*http.Response, error){}}
	r.source = &source{}
	r.source.Store(parseRules(t, src))
	o := Options{
		Source: r.source, DB: &memory{items: map[store.Key]store.Item{}}, Key: make([]byte, 32),
		Catalogs: catalog.NewStatic(mustCatalog(t, conversationCatalog)), Publisher: r, HTTP: &http.Client{Transport: r},
		Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&o)
	}
	var err error
	r.Service, err = New(o)
	expect.OK(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.Close(ctx); err != nil {
			t.Errorf("work is still running: %v", err)
		}
		expect.Lacks(t, "CNV-08 the log", r.log.String(), marker)
	})
	return r
}

// inBubble runs a test of a service in a synctest bubble.
func inBubble(t *testing.T, src string, test func(*testing.T, *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, newRig(t, src)) })
}

const conversationCatalog = `
events:
  - name: conversation.user_message
    uri: event://conversation/user-message
    description: Said by a user.
    payloadSchema: {type: object}
    access: {scopes: [conversation]}
  - name: conversation.assistant_response
    uri: event://conversation/assistant-response
    description: Said by an assistant.
    payloadSchema: {type: object}
    access: {scopes: [conversation]}
`

func parseRules(t *testing.T, src string) *rules.Conversation {
	t.Helper()
	c := expect.Value(config.Parse([]byte(src)))(t)
	return &c.Conversation
}

// RoundTrip answers for the providers.
func (r *rig) RoundTrip(req *http.Request) (*http.Response, error) {
	r.mu.Lock()
	r.asked = append(r.asked, req.URL.Host)
	answer := r.answers[req.URL.Host]
	r.mu.Unlock()
	if answer == nil {
		r.t.Errorf("%s was asked", req.URL.Host)
		return nil, io.EOF
	}
	return answer(req)
}

func (r *rig) Publish(ctx context.Context, _ auth.Principal, in publish.Input) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.published = append(r.published, in)
	if r.publish != nil {
		return r.publish(ctx)
	}
	return nil
}

// on sets the response of a host.
func (r *rig) on(host string, answer func(*http.Request) (*http.Response, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[host] = answer
}

// calls returns how often a host was asked so far.
func (r *rig) calls(host string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, h := range r.asked {
		if h == host {
			n++
		}
	}
	return n
}

// says responds with a context after a delay.
func says(text string, after time.Duration) func(*http.Request) (*http.Response, error) {
	return answers(http.StatusOK, "application/json", `{"context":"`+text+`"}`, after)
}

func answers(status int, media, body string, after time.Duration) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		if after > 0 { // see golang.org/issue/78156: timers that are already due when they are set
			select {
			case <-time.After(after):
			case <-req.Context().Done():
				return nil, req.Context().Err()
			}
		}
		return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {media}}, Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
	}
}

var ann = auth.Principal{ID: "ann", Workspace: auth.DefaultWorkspace, Scopes: []string{auth.ScopeRead}}

// consent gives ann's consent to the named providers.
func (r *rig) consent(names ...string) {
	r.t.Helper()
	for _, name := range names {
		_, err := r.Consent(r.t.Context(), ann, name, "ann", true)
		expect.OK(r.t, err)
	}
}

// say forwards a message from ann.
func (r *rig) say() *Context {
	r.t.Helper()
	return expect.Value(r.sayAs(ann, UserMessage))(r.t)
}

// saysWithin forwards a message from ann, and checks how long that takes and the context.
func (r *rig) saysWithin(took time.Duration, text string) {
	r.t.Helper()
	began := time.Now()
	if got := r.say(); got.Text != text || time.Since(began) != took {
		r.t.Errorf("after %v got %q, want %q after %v", time.Since(began), got.Text, text, took)
	}
}

// counted checks the reasons that are counted for a provider.
func (r *rig) counted(provider, want string) {
	r.t.Helper()
	expect.Equal(r.t, fmt.Sprint("the counts of ", provider), fmt.Sprint(r.FailureCounts()["default/"+provider]), "map["+want+"]")
}

// wasAsked checks how often a host was asked so far.
func (r *rig) wasAsked(host string, want int) {
	r.t.Helper()
	expect.Equal(r.t, fmt.Sprintf("calls of %s", host), r.calls(host), want)
}

// sayAs forwards a message of the given kind.
func (r *rig) sayAs(p auth.Principal, kind Kind) (*Context, error) {
	return r.Forward(r.t.Context(), api.Client{Principal: p}, &Message{Kind: kind, ID: "m", Content: marker})
}

// memory implements the parts of a store that consents need, without goroutines.
type memory struct {
	store.DB
	mu    sync.Mutex
	items map[store.Key]store.Item
	fail  error
}

func (m *memory) Query(_ context.Context, q store.Query) (page store.Page, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, it := range m.items {
		if it.Table == q.Table && it.Partition == q.Partition && !q.Eventual {
			page.Items = append(page.Items, it)
		}
	}
	slices.SortFunc(page.Items, func(a, b store.Item) int { return strings.Compare(a.Sort, b.Sort) })
	return page, m.fail
}

func (m *memory) Write(_ context.Context, ops ...store.Op) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, op := range ops {
		m.items[op.Item.Key] = op.Item
	}
	return m.fail
}

func mustCatalog(t *testing.T, src string) *catalog.Catalog {
	t.Helper()
	return expect.Value(catalog.Parse([]byte(src)))(t)
}

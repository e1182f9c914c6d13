package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// said is in every message of these tests.
const said = "larkspur"

// talk is a service with one provider, which repeats what it gets.
type talk struct {
	*conversation.Service
	mu    sync.Mutex
	asked int
}

// configured is a configuration that does not change.
type configured struct{ rules *rules.Conversation }

func (c configured) Conversation(context.Context) (*rules.Conversation, error) { return c.rules, nil }

func (k *talk) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

func newTalk(t *testing.T, db store.DB, section string, change ...func(*conversation.Options)) *talk {
	t.Helper()
	k := &talk{}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct{ Content string }
		body, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(body, &m)
		k.mu.Lock()
		k.asked++
		k.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]string{"context": m.Content})
	}))
	t.Cleanup(provider.Close)
	c, err := config.Parse([]byte("conversation:\n  " + section + "\n  budget: 5s\n  maxContext: 1024\n  providers: [{name: echo, url: '" + provider.URL + "'}]\n"))
	must(t, err)
	o := conversation.Options{
		Source: configured{&c.Conversation}, DB: db, Key: bytes.Repeat([]byte{3}, 32), Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&o)
	}
	k.Service, err = conversation.New(o)
	must(t, err)
	for _, p := range []auth.Principal{{ID: "alice", Workspace: auth.DefaultWorkspace}, {ID: "bob", Workspace: auth.DefaultWorkspace}} {
		if !k.Enabled(t.Context()) {
			break // no user can consent to what is off
		}
		_, err := k.Consent(t.Context(), p, "echo", p.ID, true)
		must(t, err)
	}
	return k
}

// talking are two instances over one store.
func talking(t *testing.T, section string) (k *talk, one, two *fixture) {
	t.Helper()
	one = newFixture(t, func(o *Options) {
		k = newTalk(t, o.Sessions, section)
		o.Conversation = k
	})
	return k, one, one.instance()
}

func message(id string) string { return `"messageId":"` + id + `","content":"` + said + ` ` + id + `"` }

// notify sends a message by a notification; session is empty in 2026-07-28.
func (f *fixture) notify(key, session, method, params string) reply {
	f.t.Helper()
	if session == "" {
		return f.do("POST", key, `{"jsonrpc":"2.0","method":"`+method+`","params":{`+params+`}}`, "Mcp-Protocol-Version: 2026-07-28")
	}
	return f.do("POST", key, `{"jsonrpc":"2.0","method":"`+method+`","params":{`+params+`}}`, "Mcp-Session-Id: "+session)
}

// inEachWay is a message of alice's with the params, as a request and as a notification of both kinds of revisions.
func (f *fixture) inEachWay(params string) map[string]reply {
	f.t.Helper()
	session := f.session(alice, spec.V20251125)
	return map[string]reply{
		"2026 request": f.stateless(alice, spec.MethodUserMessage, params), "2025 request": f.sessionBased(alice, session, spec.MethodUserMessage, params),
		"2026 notification": f.notify(alice, "", spec.MethodUserMessage, params), "2025 notification": f.notify(alice, session, spec.MethodUserMessage, params),
	}
}

type contextParams struct {
	MessageID, Context string
	Meta               map[string]json.RawMessage `json:"_meta"`
}

// context waits for the next conversation/context.
func (o *open) context() (p contextParams) {
	o.t.Helper()
	for {
		var m struct {
			Method string
			Params json.RawMessage
		}
		if e := o.event(); len(e.Data) > 0 {
			must(o.t, json.Unmarshal(e.Data, &m))
		}
		if m.Method == spec.NoteContext {
			must(o.t, json.Unmarshal(m.Params, &p))
			return p
		}
	}
}

// CNV-01: the capability is there when it is switched on, and only what is switched on.
func TestConversationCapability(t *testing.T) {
	for section, want := range map[string]string{
		"userMessages: true":                             `{"onUserMessage":true}`,
		"assistantResponses: true":                       `{"onAssistantResponse":true}`,
		"userMessages: true\n  assistantResponses: true": `{"onUserMessage":true,"onAssistantResponse":true}`,
		"userMessages: false":                            ``,
	} {
		_, f, _ := talking(t, section)
		init := f.initialize(alice, spec.V20251125, `{}`)
		for revision, r := range map[string]reply{"2026": f.stateless(alice, spec.MethodDiscover, ""), "2025": init, "elsewhere": f.stateless(foreign, spec.MethodDiscover, "")} {
			var got struct {
				CacheScope   string
				Capabilities struct {
					ConversationEvents, None json.RawMessage
					Extensions               map[string]json.RawMessage
				}
			}
			r.result(t, &got)
			expected := want
			if revision == "elsewhere" {
				expected = "" // no client is there to notify
			}
			if string(got.Capabilities.ConversationEvents) != expected || string(got.Capabilities.Extensions[spec.ConversationExtension]) != expected {
				t.Errorf("%s, %s: got %s, want %s", section, revision, got.Capabilities.ConversationEvents, expected)
			}
			if revision == "2026" && (got.CacheScope == method.Private) != (want != "") {
				t.Errorf("%s: the cache scope is %s", section, got.CacheScope)
			}
		}
		for name, there := range map[string]bool{spec.MethodUserMessage: strings.Contains(want, "User"), spec.MethodAssistant: strings.Contains(want, "Assistant")} {
			r := f.stateless(alice, name, message("m"))
			if got := r.code(t) != -32601; got != there || r.Status == 404 == there {
				t.Errorf("%s: %s is there: %v, %+v", section, name, got, r)
			}
		}
	}
}

// CNV-02: a message in a notification at one instance has its context on the listens of its
// principal that asked for it, wherever they are open, and nowhere else.
func TestContextOnListens(t *testing.T) {
	k, one, two := talking(t, "userMessages: true")
	first, second := two.listen(alice, `"a"`, `{"conversationContext":true}`), one.listen(alice, `2`, `{"conversationContext":true,"resourcesListChanged":true}`)
	silent, other := two.listen(alice, `3`, `{"resourcesListChanged":true}`), two.listen(bob, `4`, `{"conversationContext":true}`)
	for o, want := range map[*open]bool{first: true, second: true, silent: false, other: true} {
		if ack := o.next(); strings.Contains(string(ack.Params.Notifications), `"conversationContext":true`) != want {
			t.Errorf("acknowledged %s", ack.Params.Notifications)
		}
	}
	if r := one.notify(alice, "", spec.MethodUserMessage, message("m1")); r.Status != 202 || r.Body != "" {
		t.Errorf("got %+v", r)
	}
	for o, id := range map[*open]string{first: `"a"`, second: `2`} {
		p := o.context()
		if p.MessageID != "m1" || p.Context != "Context from echo:\n> "+said+" m1" || string(p.Meta[spec.MetaSubscription]) != id || p.Meta[spec.MetaCursor] == nil {
			t.Errorf("got %+v", p)
		}
	}
	// What comes behind it shows that nothing came before.
	one.notify(bob, "", spec.MethodUserMessage, message("m2"))
	if p := other.context(); p.MessageID != "m2" {
		t.Errorf("bob got %+v", p)
	}
	if n := k.count(); n != 2 {
		t.Errorf("the provider was asked %d times", n)
	}
	// A long one is cut, and says so.
	one.notify(alice, "", spec.MethodUserMessage, `"messageId":"m3","content":"`+strings.Repeat("long ", 1000)+`"`)
	if p := first.context(); p.MessageID != "m3" || len(p.Context) > 1024 || string(p.Meta[spec.MetaContextCut]) != "true" || string(p.Meta[spec.MetaSubscription]) != `"a"` {
		t.Errorf("got %+v", p)
	}
	select {
	case e := <-silent.events:
		t.Errorf("the stream that did not ask got %s", e.Data)
	default:
	}
}

// CNV-02: in a session the context comes on its GET stream, wherever that is open; also behind a
// gap, by the id of the last event. Other sessions of the principal get nothing.
func TestContextInSessions(t *testing.T) {
	for _, v := range []spec.Version{spec.V20250326, spec.V20250618, spec.V20251125} {
		t.Run(string(v), func(t *testing.T) {
			_, one, two := talking(t, "userMessages: true")
			session, another := one.session(alice, v), one.session(alice, v)
			o, foreign := two.stream(alice, session, ""), two.stream(alice, another, "")
			if r := one.notify(alice, session, spec.MethodUserMessage, message("m1")); r.Status != 202 {
				t.Errorf("got %+v", r)
			}
			if p := o.context(); p.MessageID != "m1" || p.Context != "Context from echo:\n> "+said+" m1" {
				t.Errorf("got %+v", p)
			}
			two.notify(alice, another, spec.MethodUserMessage, message("m2"))
			if p := foreign.context(); p.MessageID != "m2" {
				t.Errorf("another session got %+v", p)
			}
			if v == spec.V20250326 {
				batch := `[{"jsonrpc":"2.0","method":"` + spec.MethodUserMessage + `","params":{` + message("m3") + `}},{"jsonrpc":"2.0","id":1,"method":"ping"}]`
				if r := one.do("POST", alice, batch, "Mcp-Session-Id: "+session); r.Status != 200 || !strings.Contains(r.Body, `"id":1`) {
					t.Errorf("got %+v", r)
				}
				if p := o.context(); p.MessageID != "m3" {
					t.Errorf("of a batch got %+v", p)
				}
			}
			o.cancel()
			<-o.ended
		})
	}
}

// CNV-02: a context that came while a stream was cut off is there when it goes on.
func TestContextBehindAGap(t *testing.T) {
	_, one, two := talking(t, "userMessages: true")
	session := one.session(alice, spec.V20251125)
	o := one.stream(alice, session, "")
	last := o.event().ID
	o.cancel()
	<-o.ended
	two.notify(alice, session, spec.MethodUserMessage, message("m1"))
	if p := two.stream(alice, session, last).context(); p.MessageID != "m1" {
		t.Errorf("got %+v", p)
	}
}

// CNV-02: in the named-event dialect as well.
func TestContextInTheDialect(t *testing.T) {
	_, one, two := talking(t, "userMessages: true")
	o, session := one.dialectStream(alice)
	note := `{"jsonrpc":"2.0","method":"` + spec.MethodUserMessage + `","params":{` + message("m1") + `}}`
	if r := two.dialect(alice, note, jsonOnly, "Mcp-Session-Id: "+session); r.Status != 202 {
		t.Errorf("got %+v", r)
	}
	if p := o.context(); p.MessageID != "m1" {
		t.Errorf("got %+v", p)
	}
}

// CNV-02: a notification without a listener is taken all the same. What waits in the log for a
// stream is sealed, and not for long.
func TestContextWithoutAStream(t *testing.T) {
	_, one, _ := talking(t, "userMessages: true")
	if r := one.notify(alice, "", spec.MethodUserMessage, message("m1")); r.Status != 202 {
		t.Errorf("got %+v", r)
	}
	page, err := one.db.Query(t.Context(), store.Query{Table: store.Log, Partition: "n#default#" + stream.TopicConversation("alice")})
	must(t, err)
	if len(page.Items) != 1 || strings.Contains(string(page.Items[0].Value), said) || time.Until(page.Items[0].Expires) > streams.ContextLife+time.Second {
		t.Errorf("in the log is %+v", page.Items)
	}
}

// CNV-08: what is malformed is -32602, also of a notification; what is over a limit names it; and who may
// not read is refused.
func TestMalformedMessages(t *testing.T) {
	k, f, _ := talking(t, "userMessages: true")
	long := `"messageId":"m","content":"` + strings.Repeat("x", conversation.MaxContent+1) + `"`
	for params, want := range map[string]string{`"content":"` + said + `"`: "messageId", `"messageId":"` + said + `","content":{}`: "content", long: "limit content of 65536"} {
		for what, r := range f.inEachWay(params) {
			m := r.rpc(t)
			if m.Error == nil || m.Error.Code != -32602 || !strings.Contains(m.Error.Message, want) || strings.Contains(r.Body, said) {
				t.Errorf("%s: got %d %s", what, r.Status, r.Body)
			}
			if status := map[bool]int{true: 200, false: 400}[what == "2025 request"]; r.Status != status || (m.ID == nil) != strings.Contains(what, "notification") {
				t.Errorf("%s: got %d %s", what, r.Status, r.Body)
			}
		}
	}
	if n := k.count(); n != 0 {
		t.Errorf("the provider was asked %d times", n)
	}
}

// CNV-01: without the capability a message in a notification goes nowhere, as any that is unknown.
func TestNotificationsThatNobodyAskedFor(t *testing.T) {
	k, f, _ := talking(t, "assistantResponses: true")
	if r := f.notify(alice, "", spec.MethodUserMessage, message("m")); r.Status != 202 || k.count() != 0 {
		t.Errorf("got %+v, sent %d times", r, k.count())
	}
	if r := f.notify(alice, "", spec.MethodAssistant, message("m")); r.Status != 202 || k.count() != 1 {
		t.Errorf("got %+v, sent %d times", r, k.count())
	}
}

// AUT-07: who sends more than its rate gets a clear error: which limit, and when to come again.
func TestMoreMessagesThanTheRate(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Conversation = newTalk(t, o.Sessions, "userMessages: true", func(o *conversation.Options) {
			o.Rate = quota.New("conversationRate", "messages", quota.Same(0.01), func(float64) float64 { return 1 })
		})
	})
	if r := f.stateless(alice, spec.MethodUserMessage, message("m1")); r.code(t) != 0 {
		t.Fatalf("%+v", r)
	}
	for what, r := range f.inEachWay(message("m2")) {
		m := r.rpc(t)
		if m.Error == nil || m.Error.Code != method.CodeExhausted || !strings.HasPrefix(string(m.Error.Data), `{"limit":"conversationRate","max":0.01,"retryAfterSeconds":`) {
			t.Errorf("%s: got %+v", what, r)
		}
		if notified := strings.Contains(what, "notification"); notified != (r.Status == http.StatusTooManyRequests) || notified != (r.Header.Get("Retry-After") != "") {
			t.Errorf("%s: got %+v", what, r)
		}
	}
	if r := f.stateless(bob, spec.MethodUserMessage, message("m3")); r.code(t) != 0 {
		t.Errorf("another principal: %+v", r)
	}
}

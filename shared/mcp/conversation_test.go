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
	"github.com/mcp-events/mcpevents/test/expect"
)

// said is a word that every message in these tests contains.
const said = "larkspur"

// talk is a service with one provider. The provider returns the message's content as its context.
type talk struct {
	*conversation.Service
	mu    sync.Mutex
	asked int
}

// configured is a source whose configuration never changes.
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
	c := expect.Value(config.Parse([]byte("conversation:\n  " + section + "\n  budget: 5s\n  maxContext: 1024\n  providers: [{name: echo, url: '" + provider.URL + "'}]\n")))(t)
	o := conversation.Options{
		Source: configured{&c.Conversation}, DB: db, Key: bytes.Repeat([]byte{3}, 32), Log: slog.New(slog.DiscardHandler),
	}
	for _, f := range change {
		f(&o)
	}
	k.Service = expect.Value(conversation.New(o))(t)
	for _, p := range []auth.Principal{{ID: "alice", Workspace: auth.DefaultWorkspace}, {ID: "bob", Workspace: auth.DefaultWorkspace}} {
		if !k.Enabled(t.Context()) {
			break // Users cannot consent while the feature is off.
		}
		expect.OK(t, expect.ErrOf(k.Consent(t.Context(), p, "echo", p.ID, true)))
	}
	return k
}

// talking starts two instances over one store, with the settings in section.
func talking(t *testing.T, section string) (k *talk, one, two *fixture) {
	t.Helper()
	one = newFixture(t, func(o *Options) {
		k = newTalk(t, o.Sessions, section)
		o.Conversation = k
	})
	return k, one, one.instance()
}

func message(id string) string { return `"messageId":"` + id + `","content":"` + said + ` ` + id + `"` }

// notify sends a message as a notification in the session, or in 2026-07-28 if session is empty.
func (f *fixture) notify(key, session, method, params string) reply {
	f.t.Helper()
	header := "Mcp-Session-Id: " + session
	if session == "" {
		header = "Mcp-Protocol-Version: 2026-07-28"
	}
	return f.do("POST", key, `{"jsonrpc":"2.0","method":"`+method+`","params":{`+params+`}}`, header)
}

// inEachWay sends alice's message as a request and as a notification, in both kinds of revisions. It returns the replies.
func (f *fixture) inEachWay(params string) map[string]reply {
	f.t.Helper()
	session := f.session(alice, spec.V20251125)
	return map[string]reply{
		"2026 request": f.stateless(alice, spec.MethodUserMessage, params), "2025 request": f.sessionBased(alice, session, spec.MethodUserMessage, params),
		"2026 notification": f.notify(alice, "", spec.MethodUserMessage, params), "2025 notification": f.notify(alice, session, spec.MethodUserMessage, params),
	}
}

// context waits for the next conversation/context and checks that it belongs to the message with this id. Unless text is
// empty, it also checks that the context is exactly this text.
func (o *open) context(id, text string) (meta map[string]json.RawMessage) {
	o.t.Helper()
	var m struct {
		Method string
		Params struct {
			MessageID, Context string
			Meta               map[string]json.RawMessage `json:"_meta"`
		}
	}
	for m.Method != spec.NoteContext {
		if e := o.event(); len(e.Data) > 0 {
			expect.OK(o.t, json.Unmarshal(e.Data, &m))
		}
	}
	if p := m.Params; p.MessageID != id || len(p.Context) > 1024 || text != "" && p.Context != "Context from echo:\n> "+text {
		o.t.Errorf("got the context %.2000q of %s, want %q of %s, and at most 1024 bytes", p.Context, p.MessageID, text, id)
	}
	return m.Params.Meta
}

// CNV-01: the capability is advertised with exactly the features that are switched on.
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
				expected = "" // The provider is in the default workspace.
			}
			if c := got.Capabilities; string(c.ConversationEvents) != expected || string(c.Extensions[spec.ConversationExtension]) != expected ||
				revision == "2026" && (got.CacheScope == method.Private) != (want != "") {
				t.Errorf("%s, %s: got %+v, want %s, and private if it is there", section, revision, got, expected)
			}
		}
		for name, there := range map[string]bool{spec.MethodUserMessage: strings.Contains(want, "User"), spec.MethodAssistant: strings.Contains(want, "Assistant")} {
			r := f.stateless(alice, name, message("m"))
			if got := r.code(t) != -32601; got != there || r.Status == 404 == there {
				t.Errorf("%s: %s is there: %v, want %v: %+v", section, name, got, there, r)
			}
		}
	}
}

// CNV-02: if a client notifies one instance of a message, the context is sent on the principal's listens that subscribed
// to it, at any instance. Other streams do not get it.
func TestContextOnListens(t *testing.T) {
	k, one, two := talking(t, "userMessages: true")
	first, second := two.listen(alice, `"a"`, `{"conversationContext":true}`), one.listen(alice, `2`, `{"conversationContext":true,"resourcesListChanged":true}`)
	silent, other := two.listen(alice, `3`, `{"resourcesListChanged":true}`), two.listen(bob, `4`, `{"conversationContext":true}`)
	for o, want := range map[*open]bool{first: true, second: true, silent: false, other: true} {
		ack := string(o.next().Params.Notifications)
		expect.Deep(t, "conversationContext in "+ack, strings.Contains(ack, `"conversationContext":true`), want)
	}
	one.notify(alice, "", spec.MethodUserMessage, message("m1")).isPlain(t, "m1", 202)
	for o, id := range map[*open]string{first: `"a"`, second: `2`} {
		if meta := o.context("m1", said+" m1"); string(meta[spec.MetaSubscription]) != id || meta[spec.MetaCursor] == nil {
			t.Errorf("got %v, want the subscription %s and a cursor", meta, id)
		}
	}
	// The next context on bob's stream is his own, so the first one was not sent there.
	one.notify(bob, "", spec.MethodUserMessage, message("m2"))
	other.context("m2", said+" m2")
	expect.Deep(t, "requests to the provider", k.count(), 2)
	// A context that is too long is cut and marked as cut.
	one.notify(alice, "", spec.MethodUserMessage, `"messageId":"m3","content":"`+strings.Repeat("long ", 1000)+`"`)
	if meta := first.context("m3", ""); string(meta[spec.MetaContextCut]) != "true" || string(meta[spec.MetaSubscription]) != `"a"` {
		t.Errorf("got %v, want that it is cut, and the subscription", meta)
	}
	silent.isQuiet("the stream that did not ask")
}

// CNV-02: for a message in a session, the context is sent on the session's GET stream, at any instance. The principal's
// other sessions do not get it.
func TestContextInSessions(t *testing.T) {
	for _, v := range []spec.Version{spec.V20250326, spec.V20250618, spec.V20251125} {
		t.Run(string(v), func(t *testing.T) {
			_, one, two := talking(t, "userMessages: true")
			session, another := one.session(alice, v), one.session(alice, v)
			o, foreign := two.stream(alice, session, ""), two.stream(alice, another, "")
			one.notify(alice, session, spec.MethodUserMessage, message("m1")).isPlain(t, "m1", 202)
			o.context("m1", said+" m1")
			two.notify(alice, another, spec.MethodUserMessage, message("m2"))
			foreign.context("m2", said+" m2")
			if v == spec.V20250326 {
				batch := `[{"jsonrpc":"2.0","method":"` + spec.MethodUserMessage + `","params":{` + message("m3") + `}},{"jsonrpc":"2.0","id":1,"method":"ping"}]`
				one.do("POST", alice, batch, "Mcp-Session-Id: "+session).isPlain(t, "a batch", 200, `"id":1`)
				o.context("m3", said+" m3")
			}
		})
	}
}

// CNV-02: a client that resumes its stream by the id of the last event gets the contexts that it missed.
func TestContextBehindAGap(t *testing.T) {
	_, one, two := talking(t, "userMessages: true")
	c := one.follow(bySession)
	c.close()
	two.notify(alice, c.session, spec.MethodUserMessage, message("m1"))
	two.stream(alice, c.session, c.position).context("m1", said+" m1")
}

// CNV-02: the context is also sent on streams of the named-event dialect.
func TestContextInTheDialect(t *testing.T) {
	_, one, two := talking(t, "userMessages: true")
	o, session := one.dialectStream(alice)
	note := `{"jsonrpc":"2.0","method":"` + spec.MethodUserMessage + `","params":{` + message("m1") + `}}`
	two.dialect(alice, note, jsonOnly, "Mcp-Session-Id: "+session).isPlain(t, "m1", 202)
	o.context("m1", said+" m1")
}

// CNV-02: the endpoint accepts a notification even if no stream is open. The context waits in the log, where it is
// encrypted and soon expires.
func TestContextWithoutAStream(t *testing.T) {
	_, one, _ := talking(t, "userMessages: true")
	one.notify(alice, "", spec.MethodUserMessage, message("m1")).isPlain(t, "m1", 202)
	page := expect.Value(one.db.Query(t.Context(), store.Query{Table: store.Log, Partition: "n#default#" + stream.TopicConversation("alice")}))(t)
	if len(page.Items) != 1 || strings.Contains(string(page.Items[0].Value), said) || time.Until(page.Items[0].Expires) > streams.ContextLife+time.Second {
		t.Errorf("in the log is %+v, want one sealed item that expires within %v", page.Items, streams.ContextLife)
	}
}

// CNV-08: a malformed message is refused with -32602, even in a notification. If a message exceeds a limit, the error names
// the limit. Errors do not repeat the message.
func TestMalformedMessages(t *testing.T) {
	k, f, _ := talking(t, "userMessages: true")
	long := `"messageId":"m","content":"` + strings.Repeat("x", conversation.MaxContent+1) + `"`
	for params, want := range map[string]string{`"content":"` + said + `"`: "messageId", `"messageId":"` + said + `","content":{}`: "content", long: "limit content of 65536"} {
		for what, r := range f.inEachWay(params) {
			r.is(t, what, map[bool]int{true: 200, false: 400}[what == "2025 request"], -32602, want)
			if strings.Contains(r.Body, said) || (r.rpc(t).ID == nil) != strings.Contains(what, "notification") {
				t.Errorf("%s: got %s, want no part of the message, and an id for a request", what, r.Body)
			}
		}
	}
	expect.Deep(t, "requests to the provider", k.count(), 0)
}

// CNV-01: without the capability the endpoint ignores a message in a notification, like any unknown notification.
func TestNotificationsThatNobodyAskedFor(t *testing.T) {
	k, f, _ := talking(t, "assistantResponses: true")
	for want, method := range []string{spec.MethodUserMessage, spec.MethodAssistant} {
		f.notify(alice, "", method, message("m")).isPlain(t, method, 202)
		expect.Deep(t, "requests to the provider", k.count(), want)
	}
}

// AUT-07: a client that sends messages faster than its rate gets an error that names the limit and the time to wait.
func TestMoreMessagesThanTheRate(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Conversation = newTalk(t, o.Sessions, "userMessages: true", func(o *conversation.Options) {
			o.Rate = quota.NewRate("conversationRate", "messages", quota.FixedLimit(0.01), func(float64) float64 { return 1 })
		})
	})
	f.stateless(alice, spec.MethodUserMessage, message("m1")).is(t, "m1", 200, 0)
	for what, r := range f.inEachWay(message("m2")) {
		notified := strings.Contains(what, "notification")
		r.is(t, what, map[bool]int{true: http.StatusTooManyRequests, false: 200}[notified], method.CodeExhausted, `{"limit":"conversationRate","max":0.01,"retryAfterSeconds":`)
		expect.Deep(t, what+": is there a Retry-After", r.Header.Get("Retry-After") != "", notified)
	}
	f.stateless(bob, spec.MethodUserMessage, message("m3")).is(t, "another principal", 200, 0)
}

package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

const three = `
conversation:
  userMessages: true
  providers:
    - {name: fast, url: "http://fast/"}
    - {name: slow, url: "http://slow/"}
    - {name: bad, url: "http://bad/"}
`

// CNV-03: all providers are asked concurrently. What arrives within the budget is merged. The rest is canceled, left
// out, logged with name and reason, and counted.
func TestTellWithinTheBudget(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		cancelled := make(chan error, 1)
		r.on("fast", says("quick", 400*time.Millisecond))
		r.on("slow", func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			cancelled <- req.Context().Err()
			return nil, req.Context().Err()
		})
		r.on("bad", answers(http.StatusInternalServerError, "application/json", `{"context":"`+marker+`"}`, 300*time.Millisecond))
		r.consent("fast", "slow", "bad")
		r.saysWithin(500*time.Millisecond, "Context from fast:\n> quick")
		expect.Is(t, "the end of the late provider's request", <-cancelled, context.DeadlineExceeded)
		for name, want := range map[string]string{"fast": "", "slow": "timeout:1", "bad": "refused:1"} {
			r.counted(name, want)
		}
		log := r.log.String()
		for _, want := range []string{"workspace=default provider=slow reason=timeout count=1", "workspace=default provider=bad reason=refused count=1"} {
			expect.Contains(t, "the log", log, want)
		}
		// The service does not wait for a provider that ignores the cancellation.
		r.on("slow", func(*http.Request) (*http.Response, error) {
			time.Sleep(5 * time.Second)
			return nil, errors.New(marker)
		})
		r.saysWithin(500*time.Millisecond, "Context from fast:\n> quick")
		r.counted("slow", "timeout:2")
		r.on("slow", says("now", 0))
		r.on("bad", says("too", 0))
		r.saysWithin(400*time.Millisecond, "Context from fast:\n> quick\n\nContext from slow:\n> now\n\nContext from bad:\n> too")
	})
}

// CNV-03: a malformed answer is left out.
func TestAnswersAreNotTrusted(t *testing.T) {
	for name, tc := range map[string]struct {
		answer  func(*http.Request) (*http.Response, error)
		counted string
	}{
		"HTML":         {answers(200, "text/html", `{}`, 0), "malformed:1"},
		"no JSON":      {answers(200, "application/json", marker, 0), "malformed:1"},
		"deep":         {answers(200, "application/json", strings.Repeat(`[`, 100)+strings.Repeat(`]`, 100), 0), "malformed:1"},
		"a number":     {answers(200, "application/json", `{"context":7}`, 0), "malformed:1"},
		"too large":    {answers(200, "application/json", `{"context":"`+strings.Repeat("x", maxAnswer)+`"}`, 0), "too large:1"},
		"a redirect":   {answers(302, "application/json", `{"context":"x"}`, 0), "refused:1"},
		"an error":     {answers(400, "application/json", marker, 0), "refused:1"},
		"unreachable":  {func(*http.Request) (*http.Response, error) { return nil, errors.New(marker) }, "unreachable:1"},
		"a 204":        {answers(204, "", "", 0), ""},
		"JSON, spaced": {answers(200, "Application/JSON; charset=utf-8", " {\"structuredContext\":null,\"context\":null} \n", 0), ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, three, func(t *testing.T, r *rig) {
				r.on("bad", tc.answer)
				r.consent("bad")
				expect.Equal(t, "the context", string(r.say().Members()), "")
				r.counted("bad", tc.counted)
			})
		})
	}
}

// CNV-03: a caller that disconnects ends the requests, which is not counted against the provider.
func TestACallerThatGoesAway(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		r.on("slow", says("late", time.Hour))
		r.consent("slow")
		for range 2 * tripAfter {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			began := time.Now()
			if _, err := r.Forward(ctx, api.Client{Principal: ann}, &Message{Kind: UserMessage, ID: "m"}); err != nil || time.Since(began) != 100*time.Millisecond {
				t.Errorf("after %v got %v, want no error after 100 ms", time.Since(began), err)
			}
			cancel()
		}
		r.counted("slow", "abandoned:10")
	})
}

// CNV-05: after five consecutive timeouts a provider is not asked for a while, so that callers do not wait for it.
// Then one message is let through, whose result decides.
func TestAProviderRests(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		slow := says("back", time.Hour)
		r.on("slow", func(req *http.Request) (*http.Response, error) { return slow(req) })
		r.consent("slow")
		say := func() *Context {
			c := r.say()
			synctest.Wait() // until the breaker has the result
			return c
		}
		for range tripAfter - 1 {
			say()
		}
		r.on("slow", says("once", 0)) // resets the count
		say()
		r.on("slow", slow)
		for range tripAfter {
			say()
		}
		began := time.Now()
		asked := r.calls("slow")
		for range 10 {
			say()
		}
		if took := time.Since(began); took != 0 || r.calls("slow") != asked || asked != 2*tripAfter {
			t.Errorf("while its breaker was open it was asked %d times more, %d before, and callers waited %v", r.calls("slow")-asked, asked, took)
		}
		time.Sleep(restFor + time.Millisecond)
		say() // still too slow
		say()
		expect.Equal(t, "calls after the pause", r.calls("slow")-asked, 1)
		time.Sleep(restFor + time.Millisecond)
		r.on("slow", says("back", 0))
		for range 3 {
			expect.Contains(t, "the context", say().Text, "back")
		}
		r.counted("slow", "resting:11 timeout:10")
	})
}

// CNV-05: a provider's breaker stays open over an unrelated change of the configuration, but a provider with a new
// address has a new breaker.
func TestRestingOverAChange(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		r.on("slow", says("late", time.Hour))
		r.on("moved", says("moved", 0))
		r.consent("slow")
		for range tripAfter {
			r.say()
			synctest.Wait()
		}
		r.source.Store(parseRules(t, strings.Replace(three, "userMessages: true", "userMessages: true\n  budget: 400ms", 1)))
		r.say()
		r.wasAsked("slow", tripAfter)
		r.source.Store(parseRules(t, strings.Replace(three, "http://slow/", "http://moved/", 1)))
		r.consent("slow")
		r.saysWithin(0, "Context from slow:\n> moved")
	})
}

// CNV-05: errors do not open the breaker. Otherwise one caller's messages could silence a provider for all.
func TestErrorsAreNoReasonToRest(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		r.on("bad", answers(http.StatusBadRequest, "", "", 0))
		r.consent("bad")
		for range 3 * tripAfter {
			r.say()
		}
		r.wasAsked("bad", 3*tripAfter)
	})
}

// CNV-06: a consent is for one principal and one provider. It applies from the response to the request that gives it until
// it is revoked. The decision is stored with its time and the principal who made it.
func TestConsent(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		r.on("fast", says("x", 0))
		expect.Equal(t, "the context without consent", string(r.say().Members()), "")
		r.consent("fast")
		for _, p := range []auth.Principal{{ID: "bob", Workspace: ann.Workspace}, {ID: "ann", Workspace: "other"}} {
			expect.OK(t, expect.ErrOf(r.sayAs(p, UserMessage)))
		}
		r.wasAsked("fast", 0)
		r.say()
		r.wasAsked("fast", 1)
		time.Sleep(time.Hour)
		v, err := r.Consent(t.Context(), ann, "fast", "operator", false)
		if err != nil || v.Consented || v.Consent.Given || v.Consent.By != "operator" || !v.Consent.At.Equal(time.Now().UTC().Truncate(time.Millisecond)) {
			t.Errorf("got %+v, %v, want that the operator revoked it now", v, err)
		}
		r.say()
		r.wasAsked("fast", 1)
		for _, given := range []bool{true, false} {
			expect.Fault(t, "a consent for no provider", expect.ErrOf(r.Consent(t.Context(), ann, "none", "ann", given)), fault.NotFound)
		}
	})
}

// CNV-06: a consent is for the provider as it was: it does not cover another address under the same name, or a kind
// of message that the provider did not receive then.
func TestConsentIsForWhatItWasGivenFor(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		r.on("fast", says("x", 0))
		r.on("elsewhere", says("x", 0))
		r.consent("fast")
		r.source.Store(parseRules(t, strings.ReplaceAll(three, "http://fast/", "http://elsewhere/")))
		r.say()
		views, err := r.listViews(t.Context(), ann)
		if err != nil || r.calls("elsewhere") != 0 || views[0].Name != "fast" || views[0].Consented || !views[0].Consent.Given {
			t.Errorf("with another URL: %d calls, %+v, %v", r.calls("elsewhere"), views, err)
		}
		r.source.Store(parseRules(t, "keys: []\n"))
		expect.Fault(t, "a consent for a removed provider", expect.ErrOf(r.Consent(t.Context(), ann, "fast", "ann", true)), fault.NotFound)
		r.source.Store(parseRules(t, three))
		r.say()
		r.wasAsked("fast", 1) // the same provider added again is covered
		r.source.Store(parseRules(t, strings.Replace(three, "userMessages: true", "userMessages: true\n  assistantResponses: true", 1)))
		respond := func() {
			expect.OK(t, expect.ErrOf(r.sayAs(ann, assistantResponse)))
		}
		respond()
		r.wasAsked("fast", 1)
		r.say()
		r.wasAsked("fast", 2) // the user's messages are still covered
		r.consent("fast")
		respond()
		r.wasAsked("fast", 3)
		backend := func(src string) string { return r.newSet(parseRules(t, src)).providers[0].to }
		expect.Differ(t, "a backend at another URL", backend(withBackend), backend(strings.ReplaceAll(withBackend, "http://notes/", "http://elsewhere/")))
	})
}

// CNV-06: no message is sent while consents cannot be read.
func TestWithoutTheStoreNothingIsSent(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		r.consent("fast")
		r.options.DB.(*memory).fail = fault.New(fault.Unavailable, "down")
		expect.Fault(t, "a message while the store fails", expect.ErrOf(r.sayAs(ann, UserMessage)), fault.Unavailable)
	})
}

// CNV-06: a consent is stored in a table that keeps its items, and does not expire.
func TestConsentsAreKept(t *testing.T) {
	r := newRig(t, three)
	r.consent("fast")
	for key, item := range r.options.DB.(*memory).items {
		if key.Table != store.Subscriptions || !item.Expires.IsZero() || !strings.Contains(string(item.Value), `"pr":"ann"`) {
			t.Errorf("got %+v: %s, want one of ann in the table of subscriptions that does not expire", key, item.Value)
		}
	}
}

// CNV-06: the single principal of --auth none cannot consent for all callers.
func TestAnonymousCallersCannotConsent(t *testing.T) {
	anonymous := ann
	anonymous.Anonymous = true
	for _, allowed := range []bool{false, true} {
		r := newRig(t, three, func(o *Options) { o.AllowAnonymous = allowed })
		r.on("fast", says("x", 0))
		r.consent("fast") // as if it had been allowed before
		expect.OK(t, expect.ErrOf(r.sayAs(anonymous, UserMessage)))
		expect.Equal(t, "the call of the provider", r.calls("fast") == 1, allowed)
		expect.Equal(t, "the offers", r.Offers(t.Context(), anonymous).Any(), allowed)
	}
}

// CNV-01: clients are asked only for messages that are enabled and that some provider could receive.
func TestOffers(t *testing.T) {
	other := auth.Principal{ID: "ann", Workspace: "other"}
	for src, want := range map[string]string{
		"keys: []\n": "{false false} {false false}",
		three:        "{true false} {false false}",
		strings.Replace(three, "userMessages", "assistantResponses", 1):                                     "{false true} {false false}",
		strings.Replace(three, "true", "false", 1):                                                          "{false false} {false false}",
		"conversation: {userMessages: true}\n":                                                              "{false false} {false false}",
		"conversation: {userMessages: true, events: {userMessage: true, workspace: other}}\n":               "{false false} {true false}",
		strings.ReplaceAll(three, `fast/"`, `fast/", workspace: other`):                                     "{true false} {true false}",
		"conversation: {userMessages: true, assistantResponses: true, events: {assistantResponse: true}}\n": "{false true} {false false}",
	} {
		r := newRig(t, src)
		expect.Equal(t, src, fmt.Sprint(r.Offers(t.Context(), ann), " ", r.Offers(t.Context(), other)), want)
	}
}

// CNV-04: providers are ordered by priority, not by the order of their answers.
func TestPriority(t *testing.T) {
	inBubble(t, strings.ReplaceAll(three, `bad/"`, `bad/", priority: 1`), func(t *testing.T, r *rig) {
		r.on("fast", says("f", 0))
		r.on("slow", says("s", 100*time.Millisecond))
		r.on("bad", says("b", 200*time.Millisecond))
		r.consent("fast", "slow", "bad")
		r.saysWithin(200*time.Millisecond, "Context from bad:\n> b\n\nContext from fast:\n> f\n\nContext from slow:\n> s")
	})
}

// CNV-07: a message becomes one event of the caller, even if it is sent repeatedly. The event does not contain the
// history.
func TestEvents(t *testing.T) {
	const both = "conversation: {userMessages: true, assistantResponses: true, events: {userMessage: true, assistantResponse: true}}\n"
	r := newRig(t, both)
	r.say()
	expect.Len(t, "the published events", r.published, 0)
	r.consent(rules.EventsProvider)
	bob := auth.Principal{ID: "bob", Workspace: ann.Workspace}
	_, err := r.Consent(t.Context(), bob, rules.EventsProvider, "bob", true)
	expect.OK(t, err)
	for _, said := range []struct {
		who  auth.Principal
		kind Kind
	}{{ann, UserMessage}, {ann, UserMessage}, {ann, assistantResponse}, {bob, UserMessage}} {
		expect.OK(t, expect.ErrOf(r.Forward(t.Context(), api.Client{Principal: said.who}, &Message{Kind: said.kind, ID: "m", Content: marker, History: []Turn{{"user", "before"}}})))
	}
	p := r.published
	if len(p) != 4 || p[0].URI != userMessageURI || string(p[0].Data) != `{"messageId":"m","content":"`+marker+`","principal":"ann"}` || p[2].URI != assistantResponseURI {
		t.Fatalf("got %+v, want ann's message twice, her assistant's response and bob's message", p)
	}
	if p[0].ID != p[1].ID || p[2].ID == p[0].ID || p[3].ID == p[0].ID {
		t.Errorf("got the ids %s, %s, %s and %s, want the first two the same and the others different", p[0].ID, p[1].ID, p[2].ID, p[3].ID)
	}
	r.publish = func(context.Context) error { return fault.New(fault.Unprocessable, marker) }
	r.say()
	r.counted("events", "refused:1")
}

// CNV-07: the catalog must declare the events, with an access rule.
func TestEventsNeedARule(t *testing.T) {
	for src, want := range map[string]string{
		conversationCatalog: "",
		strings.ReplaceAll(conversationCatalog, "    access: {scopes: [conversation]}\n", ""): "needs an access rule",
		strings.ReplaceAll(conversationCatalog, "user-message", "message"):                    "declares no event type with the URI event://conversation/user-message",
	} {
		cat := mustCatalog(t, src)
		err := CheckCatalog(cat, rules.Events{UserMessage: true})
		if (err == nil) != (want == "") || err != nil && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
		r := newRig(t, "conversation: {userMessages: true, events: {userMessage: true}}\n", func(o *Options) { o.Catalogs = catalog.NewStatic(cat) })
		r.consent(rules.EventsProvider)
		if r.say(); len(r.published) == 1 != (want == "") {
			t.Errorf("%q: published %d events", want, len(r.published))
		}
	}
}

// AUT-07: a principal that exceeds its quota gets an error that says when to try again. Its message is not sent, and
// other principals are not affected.
func TestTheRateOfAPrincipal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, three, func(o *Options) { o.Rate = NewRate(quota.FixedLimit(1)) })
		r.on("fast", says("x", 0))
		r.consent("fast")
		for range minBurst {
			r.say()
		}
		_, err := r.sayAs(ann, UserMessage)
		expect.Fault(t, "the error", err, fault.Exhausted)
		expect.Equal[any](t, "the error's data", fault.DataOf(err), (quota.RetryAfter{Limit: fault.Limit{Limit: "conversationRate", Max: 1}, Seconds: 1}))
		r.wasAsked("fast", minBurst)
		bob := auth.Principal{ID: "bob", Workspace: ann.Workspace}
		expect.OK(t, expect.ErrOf(r.sayAs(bob, UserMessage)), "another principal")
		time.Sleep(time.Second)
		r.say()
		r.wasAsked("fast", minBurst+1)
	})
}

// CNV-06: a consent that cannot be decoded counts as missing. Messages are not sent because of it, and other consents
// still apply.
func TestAnUndecodableConsentIsNone(t *testing.T) {
	inBubble(t, three, func(t *testing.T, r *rig) {
		r.on("fast", says("x", 0))
		r.on("slow", says("y", 0))
		r.consent("fast", "slow")
		m := r.options.DB.(*memory)
		for key, item := range m.items {
			if strings.HasSuffix(key.Sort, "slow") {
				item.Value = []byte(`{"v":`)
				m.items[key] = item
			}
		}
		r.say()
		r.wasAsked("fast", 1)
		r.wasAsked("slow", 0)
		expect.Equal(t, "broken items that were counted", r.broken.Count("consent"), 1)
	})
}

// unready is a backend that answers only after it was prepared.
type unready struct {
	takes    time.Duration
	prepared atomic.Int32
	ready    atomic.Bool
}

func (*unready) Backends(context.Context, auth.Principal) []string { return []string{"notes"} }

func (u *unready) Converse(ctx context.Context, _ api.Client, _, _ string, _ json.RawMessage) (json.RawMessage, error) {
	if !u.ready.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return json.RawMessage(`{"context":"x"}`), nil
}

func (u *unready) Prepare(ctx context.Context, _ api.Client, name string) error {
	u.prepared.Add(1)
	select {
	case <-time.After(u.takes):
		u.ready.Store(name == "notes")
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), errors.New("not ready"))
	}
}

const withBackend = `
backends: [{name: notes, url: "http://notes/"}]
conversation:
  userMessages: true
  providers: [{name: notes, backend: notes}]
`

// CNV-03: a backend that exceeded the budget is prepared after the response, once at a time, so that a later message
// gets its context. Without Prepares it is not.
func TestABackendIsPreparedAfterTheResponse(t *testing.T) {
	for _, prepares := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := &unready{takes: 2 * time.Second}
			r := newRig(t, withBackend, func(o *Options) { o.Backends, o.Prepares = b, prepares })
			r.consent("notes")
			for range 2 {
				began := time.Now()
				expect.Equal(t, "the text", r.say().Text, "")
				expect.Equal(t, "the time", time.Since(began), 500*time.Millisecond)
			}
			time.Sleep(b.takes)
			synctest.Wait()
			if got := r.say(); (got.Text != "") != prepares || (b.prepared.Load() == 1) != prepares {
				t.Errorf("prepares %v: got %q, prepared %d times", prepares, got.Text, b.prepared.Load())
			}
		})
	}
}

// CNV-03: preparations end with the service, and their number is limited for each principal and across all.
func TestPreparationsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &unready{takes: time.Hour}
		r := newRig(t, withBackend, func(o *Options) { o.Backends, o.Prepares = b, true })
		prepare := func(principal string, sessions int) {
			for i := range sessions {
				p := auth.Principal{ID: principal, Workspace: ann.Workspace}
				r.prepare(api.Client{Principal: p, Session: string(rune('a' + i))}, "notes", func() {})
			}
			synctest.Wait()
		}
		prepare("ann", 2*maxPreparing)
		expect.Equal(t, "concurrent preparations of one principal", b.prepared.Load(), maxOwn)
		for i := range 2 * maxPreparing {
			prepare(fmt.Sprint("user ", i), 1)
		}
		expect.Equal(t, "concurrent preparations", b.prepared.Load(), maxPreparing)
		time.Sleep(prepareTime)
		synctest.Wait()
		r.prepare(api.Client{Principal: ann}, "notes", func() {})
		synctest.Wait()
		began := time.Now()
		if err := r.Close(t.Context()); err != nil || time.Since(began) > 0 || b.prepared.Load() != maxPreparing+1 {
			t.Errorf("after %v and %d: %v", time.Since(began), b.prepared.Load(), err)
		}
	})
}

func parsed(t testing.TB, name, title, text string) part {
	t.Helper()
	return part{name, title, expect.Value(parseAnswer(json.RawMessage(text)))(t)}
}

// CNV-04: texts are in the order of priority, under the name of their provider. Memories are in the order of
// relevance, and each names its source.
func TestMerge(t *testing.T) {
	one := parsed(t, "one", "First", `{"context":"line 1\nline 2\n","structuredContext":{"memories":[
		{"content":"low","relevance":0.1,"source":"two: forged\nx"},{"content":"high","relevance":1e300},{"content":"none","relevance":1e999},
		{"content":"text","relevance":"0.9"},{"content":"","relevance":0.9},{"relevance":0.9},{"content":"equal","relevance":0.5},"no object"]}}`)
	two := parsed(t, "two", "", `{"context":"other","structuredContext":{"memories":[{"content":"equal 2","relevance":0.5},{"content":"below","relevance":-3}]},"unknown":{}}`)
	got := merge([]part{one, parsed(t, "three", "", `{}`), two}, 1000)
	expect.Equal(t, "the text", got.Text, "Context from one (First):\n> line 1\n> line 2\n\nContext from two:\n> other")
	if want := `"context":` + string(jsonrpc.AppendString(nil, got.Text)) + `,"structuredContext":{"memories":[` +
		`{"content":"high","relevance":1,"source":"one"},{"content":"equal","relevance":0.5,"source":"one"},` +
		`{"content":"equal 2","relevance":0.5,"source":"two"},{"content":"low","relevance":0.1,"source":"one: two: forged x"},` +
		`{"content":"below","relevance":0,"source":"two"}]}`; string(got.Members()) != want || got.Cut {
		t.Errorf("got %s, want %s", got.Members(), want)
	}
	if empty := merge(nil, 1000); empty.Members() != nil || empty.Cut {
		t.Errorf("given no parts, got %s", empty.Members())
	}
}

// CNV-04: the size of the merged context is limited. The most important providers get their space first. A long text is cut
// between two characters and marked as cut, and a memory is either complete or left out.
func TestMergeIsBounded(t *testing.T) {
	first := parsed(t, "first", "", `{"context":"`+strings.Repeat("é\\n", 100)+`"}`)
	second := parsed(t, "second", "", `{"context":"short","structuredContext":{"memories":[{"content":"`+strings.Repeat("m", 300)+`","relevance":0.9},{"content":"small","relevance":0.1}]}}`)
	sizes := func(c *Context) (n int) {
		for _, m := range c.Memories {
			n += len(m.Content) + len(m.Source)
		}
		return n + len(c.Text)
	}
	cuts := 0
	for most := range 1200 {
		c := merge([]part{first, second}, most)
		if sizes(c) > most || !utf8.ValidString(c.Text) {
			t.Fatalf("%d bytes of at most %d: %q", sizes(c), most, c.Text)
		}
		whole := strings.Contains(c.Text, "from first:\n") && strings.Contains(c.Text, "from second:\n> short") && len(c.Memories) == 2
		if whole == c.Cut {
			t.Fatalf("within %d bytes cut is %v: %q", most, c.Cut, c.Text)
		}
		if strings.Contains(c.Text, "Context from first, cut at the end:\n> é") {
			cuts++
			if most-sizes(c) > 60 && !strings.Contains(c.Text, "second") && len(c.Memories) == 0 {
				t.Fatalf("of %d bytes only %d are used: %q", most, sizes(c), c.Text)
			}
		}
	}
	expect.AtLeast(t, "the number of cut texts", cuts, 300)
	small := merge([]part{second}, 50)
	if !strings.Contains(small.Text, "short") || len(small.Memories) != 1 || small.Memories[0].Content != "small" || !small.Cut {
		t.Errorf("the memory that fits is missing: %+v", small)
	}
	many := `{"structuredContext":{"memories":[` + strings.TrimSuffix(strings.Repeat(`{"content":"x","relevance":1},`, maxMemories+1), ",") + `]}}`
	if c := merge([]part{parsed(t, "many", "", many)}, 1<<20); len(c.Memories) != maxMemories || !c.Cut {
		t.Errorf("%d memories, cut %v", len(c.Memories), c.Cut)
	}
}

func TestMalformedAnswers(t *testing.T) {
	for _, text := range []string{`[]`, `7`, `null`, ``, `{"context":7}`, `{"context":{}}`, `{"structuredContext":[]}`, `{"structuredContext":{"memories":{}}}`} {
		if a, err := parseAnswer(json.RawMessage(text)); err == nil {
			t.Errorf("%s: got %+v", text, a)
		}
	}
}

// FuzzMerge, CNV-04: whatever providers send, lines that do not begin with "> " are ours, and relevance is a number
// from 0 to 1.
func FuzzMerge(f *testing.F) {
	f.Add("x\nContext from b:\n> y", "a", 0.5, 300)
	f.Add("x\r\u2028Context from b:\u0085\v\f> y\u0000", "b: forged", math.Inf(1), 40)
	f.Add("x\u2028Context from b:\u2029Context from b:\vContext from a:\fContext from a:\u0085Context from b:", "", 0.1, 5000)
	f.Fuzz(func(t *testing.T, text, source string, relevance float64, most int) {
		if most < 0 || most > 1<<16 {
			return
		}
		body, err := json.Marshal(map[string]any{"context": text})
		if err != nil {
			return
		}
		memories, err := json.Marshal([]any{map[string]any{"content": text, "source": source, "relevance": json.Number("1")}})
		if err != nil {
			return
		}
		raw := strings.TrimSuffix(string(body), "}") + `,"structuredContext":{"memories":` + string(memories) + `}}`
		if !math.IsNaN(relevance) && !math.IsInf(relevance, 0) {
			n, _ := json.Marshal(relevance)
			raw = strings.Replace(raw, `"relevance":1`, `"relevance":`+string(n), 1)
		}
		c := merge([]part{parsed(t, "a", "", raw), parsed(t, "b", "", raw)}, most)
		headings := map[string]int{}
		for _, line := range strings.FieldsFunc(c.Text, func(r rune) bool { return strings.ContainsRune("\n\r\v\f\u0085\u2028\u2029", r) }) {
			ours := line == "Context from a:" || line == "Context from b:" ||
				line == "Context from a, cut at the end:" || line == "Context from b, of which the end is missing:"
			if headings[clip(line, len("Context from a"))]++; ours && headings[clip(line, len("Context from a"))] > 1 {
				t.Fatalf("the heading %q appears twice: %q", line, c.Text)
			}
			if !ours && !strings.HasPrefix(line, "> ") {
				t.Fatalf("the line %q has no provider", line)
			}
		}
		for _, m := range c.Memories {
			if m.Relevance < 0 || m.Relevance > 1 || math.IsNaN(m.Relevance) || !strings.HasPrefix(m.Source+":", "a:") && !strings.HasPrefix(m.Source+":", "b:") {
				t.Fatalf("got %+v", m)
			}
		}
		if members := c.Members(); members != nil && !json.Valid([]byte("{"+string(members)+"}")) {
			t.Fatalf("got %s", members)
		}
	})
}

// sessionBased is a backend that answers immediately in the session "ready". It answers in no other session.
type sessionBased struct{ unready }

func (b *sessionBased) Converse(ctx context.Context, c api.Client, _, _ string, _ json.RawMessage) (json.RawMessage, error) {
	if c.Session == "ready" {
		return json.RawMessage(`{"context":"x"}`), nil
	}
	<-ctx.Done()
	return nil, errors.Join(ctx.Err(), api.ErrNoSession)
}

// CNV-05: messages whose sessions with a backend are not ready do not open the breaker. Otherwise a few new sessions would silence the
// backend for everyone. But if the sessions cannot begin, it opens.
func TestSessionsThatStartAreNoReasonToRest(t *testing.T) {
	for _, hangs := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := &sessionBased{unready: unready{takes: prepareTime / 2}}
			if hangs {
				b.takes = time.Hour
			}
			r := newRig(t, withBackend, func(o *Options) { o.Backends, o.Prepares = b, true })
			r.consent("notes")
			say := func(session string) string {
				c := api.Client{Principal: ann, Session: session}
				return expect.Value(r.Forward(t.Context(), c, &Message{Kind: UserMessage, ID: "m", Content: marker}))(t).Text
			}
			for i := range 2 * tripAfter {
				expect.Equal(t, "the context in a new session", say(fmt.Sprint(i)), "")
			}
			expect.Equal(t, "whether there is a context in the session that is ready", say("ready") != "", true)
			r.counted("notes", "timeout:10")
			time.Sleep(prepareTime)
			synctest.Wait()
			expect.Equal(t, "whether there is a context after the preparations", say("ready") != "", !hangs)
		})
	}
}

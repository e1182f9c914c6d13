package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/stream/lease"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools/logsource"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// described is the result of initialize or server/discover.
type described struct {
	ProtocolVersion   string
	SupportedVersions []string
	ResultType        string
	TTLMs             *int
	CacheScope        string
	ServerInfo        Implementation
	Instructions      string
	Capabilities      map[string]json.RawMessage
	Meta              map[string]json.RawMessage `json:"_meta"`
}

func (f *fixture) describeBoth() (initialize, discover described) {
	f.t.Helper()
	f.initialize(alice, spec.V20251125, `{}`).result(f.t, &initialize)
	f.stateless(alice, spec.MethodDiscover, "").result(f.t, &discover)
	return initialize, discover
}

func sameJSON(t testing.TB, got json.RawMessage, want string) {
	t.Helper()
	var a, b any
	if json.Unmarshal(got, &a) != nil || json.Unmarshal([]byte(want), &b) != nil || !reflect.DeepEqual(a, b) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestCapabilities(t *testing.T) {
	t.Run("EVS-01_every_revision_advertises_event_subscriptions", func(t *testing.T) {
		initialize, discover := newFixture(t, nil).describeBoth()
		const both = `"resources":{"events":true,"subscribe":true,"listChanged":true,"subscription":["notification","webhook"]},
			"extensions":{"` + spec.OwnExtension + `":{"events":true,"subscription":["notification","webhook"]},"` + spec.EventsExtension + `":{"listChanged":true}},
			"events":{"listChanged":true},"completions":{}` // Tools and prompts are missing because they are not served.
		sameJSON(t, jsonrpc.Encode(discover.Capabilities), `{`+both+`}`)
		sameJSON(t, jsonrpc.Encode(initialize.Capabilities), `{`+both+`,"logging":{},"experimental":{"`+spec.OwnExtension+`":{"events":true,"subscription":["notification","webhook"]}}}`)
	})
	run(t, "EVX-01_EVX-22_both_shapes_in_every_revision_and_a_client_that_declares_nothing_is_served", nil, func(t *testing.T, f *fixture) {
		served := func(in string) {
			t.Helper()
			for _, m := range []string{spec.MethodEvents, spec.MethodEventsPoll, spec.MethodEventsSub, spec.MethodEventsUnsub} {
				f.in(alice, in, m, `"name":"ci.build",`+callback).is(t, m, 200, 0)
			}
		}
		const shapes = `"` + spec.EventsExtension + `":{"listChanged":true}`
		for _, v := range []spec.Version{spec.V20250326, spec.V20250618, spec.V20251125} {
			r := f.initialize(alice, v, `{}`)
			r.is(t, string(v), 200, 0, shapes, `"events":{"listChanged":true}`)
			served(r.Header.Get(spec.HeaderSession))
		}
		f.stateless(alice, spec.MethodDiscover, "").is(t, "2026-07-28", 200, 0, shapes, `"events":{"listChanged":true}`)
		served("") // The clientCapabilities are {}.
		f.push(alice, "1", "ci.build", `{}`, "")
	})
	t.Run("SUB-09_discover_names_versions_identity_and_caching", func(t *testing.T) {
		initialize, d := newFixture(t, nil).describeBoth()
		expect.Deep(t, "the versions", d.SupportedVersions, []string{"2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"})
		sameJSON(t, d.Meta[spec.MetaServer], `{"name":"mcp-events","version":"1.2.3"}`)
		if d.ResultType != "complete" || d.TTLMs == nil || d.CacheScope != method.Public {
			t.Errorf("got %+v, want complete, a ttl and public", d)
		}
		if initialize.ProtocolVersion != "2025-11-25" || initialize.ServerInfo.Name != "mcp-events" || initialize.ResultType != "" {
			t.Errorf("got %+v, want 2025-11-25, the server, and no result type", initialize)
		}
	})
}

// EVS-01: the instructions are about the event tools and about the backends' tools.
func TestInstructions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Options)
		want   string
	}{
		"without backends": {func(o *Options) {}, ""},
		"of a backend":     {func(o *Options) { o.Gateway = newFakeGateway() }, "Read first."},
		"for event tools":  {withEventTools, eventtools.Instructions},
		"for both": {func(o *Options) {
			withEventTools(o)
			o.Gateway = newFakeGateway()
		}, eventtools.Instructions + "\n\nRead first."},
	} {
		t.Run(name, func(t *testing.T) {
			initialize, discover := newFixture(t, c.change).describeBoth()
			expect.Equal(t, "the instructions in initialize", initialize.Instructions, c.want)
			expect.Equal(t, "the instructions in server/discover", discover.Instructions, c.want)
		})
	}
}

// TestSwitchedOff removes parts of an endpoint. The methods of a missing part must be unknown, and the endpoint must not
// advertise its capabilities.
func TestSwitchedOff(t *testing.T) {
	for _, tc := range []struct {
		name     string
		change   func(*Options)
		unknown  []string
		resource string // the resources capability in discover
		events   string
	}{
		{
			name:     "no webhooks",
			change:   func(o *Options) { o.Registrar, o.Deregistrar, o.Subscriptions = nil, nil, nil },
			unknown:  []string{spec.MethodRegister, spec.MethodDeregister, spec.MethodEventsSub, spec.MethodEventsUnsub},
			resource: `{"events":true,"subscribe":true,"listChanged":true,"subscription":["notification"]}`, events: `{"listChanged":true}`,
		},
		{
			name: "only register, as the function of that name",
			change: func(o *Options) {
				*o = Options{Auth: o.Auth, Catalogs: o.Catalogs, Registrar: o.Registrar, Logger: o.Logger}
			},
			unknown: []string{
				spec.MethodListen, spec.MethodSubscribe, spec.MethodDeregister, spec.MethodEventsUnsub, spec.MethodResources, spec.MethodTemplates,
				spec.MethodRead, spec.MethodEvents, spec.MethodInitialize,
			},
		},
	} {
		run(t, "EVS-01_"+tc.name, tc.change, func(t *testing.T, f *fixture) {
			for _, m := range tc.unknown {
				f.stateless(alice, m, `"uri":"event://x"`).is(t, m, http.StatusNotFound, -32601)
			}
			var d described
			f.stateless(alice, spec.MethodDiscover, "").result(t, &d)
			if tc.resource == "" {
				if d.Capabilities["resources"] != nil || d.Capabilities["events"] != nil {
					t.Errorf("got %s, want no resources and no events", d.Capabilities)
				}
				return
			}
			sameJSON(t, d.Capabilities["resources"], tc.resource)
			sameJSON(t, d.Capabilities["events"], tc.events)
			s := f.session(alice, spec.V20251125)
			for _, m := range tc.unknown {
				f.sessionBased(alice, s, m, "").is(t, m+" in 2025-11-25", http.StatusOK, -32601)
			}
		})
	}
}

func always(profile spec.Profile) func(context.Context, auth.Principal) spec.Profile {
	return func(context.Context, auth.Principal) spec.Profile { return profile }
}

// TestProfile checks that the configuration and the client choose the profile of each request and each subscription.
func TestProfile(t *testing.T) {
	f := newFixture(t, func(o *Options) {
		o.Profile = func(_ context.Context, p auth.Principal) spec.Profile {
			if p.ID == "bob" {
				return spec.Final
			}
			return spec.Released
		}
		o.EventsRevisions = map[string]spec.Profile{"2026-11-01": spec.Final, "2026-10-01": spec.Released}
	})
	callOf := func(f *fixture, key, method, params, settings string) reply {
		body := strings.Replace(statelessBody("1", method, params), `Capabilities":{}`, `Capabilities":{"extensions":{"`+spec.EventsExtension+`":`+settings+`}}`, 1)
		return f.do("POST", key, body, statelessHeaders(method, "")...)
	}
	call := func(key, method, params, settings string) reply { return callOf(f, key, method, params, settings) }
	const known, unknownEvent = `"name":"ci.build",` + callback, `"name":"no.such",` + callback
	nothing := strings.Replace(known, "/hook", "/nothing", 1)
	for _, tc := range []struct {
		name, key, settings string
		code                int // the error code for an unknown event type
		unsubscribe         int // the error code for an unknown subscription
		stored              spec.Profile
	}{
		{"EVX-25 EVX-22 the default, with empty settings", alice, `{}`, -32011, 0, spec.Released},
		{"EVX-25 a principal that is configured", bob, `{}`, -32023, -32023, spec.Final},
		{"EVX-25 a revision that the client declares", alice, `{"revision":"2026-11-01"}`, -32023, -32023, spec.Final},
		{"EVX-25 the client's revision takes precedence", bob, `{"revision":"2026-10-01"}`, -32011, 0, spec.Released},
	} {
		t.Run(tc.name, func(t *testing.T) {
			expect.Deep(t, "EVX-15 the code of an unknown subscription", call(tc.key, spec.MethodEventsUnsub, nothing, tc.settings).code(t), tc.unsubscribe)
			expect.Deep(t, "EVX-16 the code of an unknown event type", call(tc.key, spec.MethodEventsSub, unknownEvent, tc.settings).code(t), tc.code)
			call(tc.key, spec.MethodEventsSub, known, tc.settings).is(t, "events/subscribe", 200, 0)
			principal := map[string]string{alice: "alice", bob: "bob"}[tc.key]
			var subs []*subscription.Subscription
			expect.OK(t, (&subscription.Lists{DB: f.db}).Each(t.Context(), "default", principal, func(sub *subscription.Subscription) error {
				subs = append(subs, sub)
				return nil
			}))
			if len(subs) != 1 || subs[0].Profile != tc.stored || subs[0].Subscriber().Profile != tc.stored {
				t.Errorf("the subscription has %+v, want the profile %s", subs, tc.stored)
			}
		})
	}
	t.Run("EVX-25 an unknown revision is an error that names the known ones", func(t *testing.T) {
		for _, method := range []string{spec.MethodEvents, spec.MethodEventsPoll, spec.MethodEventsSub, spec.MethodEventsUnsub} {
			r := call(alice, method, nothing, `{"revision":"2031-01-01"}`)
			r.fails(t, method, -32014, `{"feature":"revision","value":"2031-01-01","supported":["2026-10-01","2026-11-01"]}`)
			expect.Contains(t, method+": the message", r.rpc(t).Error.Message, "2026-10-01, 2026-11-01")
		}
		call(bob, spec.MethodEvents, `"cursor":null`, `{"revision":"2031-01-01"}`).fails(t, "a principal of the final profile", -32026, "")
		call(alice, spec.MethodEvents, `"cursor":null`, `{"revision":1}`).fails(t, "a revision that is no text", -32602, "")
	})
	t.Run("EVX-25 other methods do not look at it", func(t *testing.T) {
		call(alice, spec.MethodResources, `"cursor":null`, `{"revision":"2031-01-01"}`).is(t, "resources/list", 200, 0)
	})
	t.Run("EVX-25 while no revision is defined, none may be declared", func(t *testing.T) {
		r := callOf(newFixture(t, nil), alice, spec.MethodEvents, `"cursor":null`, `{"revision":"1"}`)
		r.fails(t, "events/list", -32014, `{"feature":"revision","value":"1","supported":[]}`)
		expect.Contains(t, "the message", r.rpc(t).Error.Message, "none is known yet")
	})
}

// TestEndpointWithoutExtensions checks that each optional feature can be left out. The endpoint must not serve or advertise
// the missing feature, and the other features must still work.
func TestEndpointWithoutExtensions(t *testing.T) {
	features := []string{"the dialect", "conversations", "event tools"}
	build := func(t *testing.T, missing ...string) *fixture {
		return newFixture(t, func(o *Options) {
			o.Conversation, o.EventTools = newTalk(t, o.Sessions, "userMessages: true"), logsource.New
			for _, name := range missing {
				switch name {
				case "the dialect":
					o.Dialect = nil
				case "conversations":
					o.Conversation = nil
				case "event tools":
					o.EventTools = nil
				}
			}
		})
	}
	check := func(t *testing.T, f *fixture, missing ...string) {
		advertised := f.stateless(alice, spec.MethodDiscover, "").Body
		serves := func(got reply) bool {
			return got.Status != http.StatusNotFound || !strings.Contains(got.Body, `"code":-32601`)
		}
		for name, works := range map[string]bool{
			"the dialect": f.dialect(alice, rpcText("1", spec.MethodResources, ""), jsonOnly).Status == http.StatusOK,
			"conversations": serves(f.stateless(alice, conversation.UserMessage.Method(), message("m1"))) &&
				strings.Contains(advertised, "conversationEvents") && strings.Contains(advertised, spec.ConversationExtension),
			"event tools": serves(f.stateless(alice, spec.MethodToolsList, "")) && strings.Contains(advertised, `"tools"`) && strings.Contains(advertised, "instructions"),
			"the rest":    strings.Contains(f.stateless(alice, spec.MethodResources, "").Body, "event://ci/build-finished"),
		} {
			want := true
			for _, m := range missing {
				want = want && m != name
			}
			if works != want {
				t.Errorf("%s works: got %t, want %t; server/discover says %s", name, works, want, advertised)
			}
		}
	}
	t.Run("EVS-01 with all features", func(t *testing.T) { check(t, build(t)) })
	for _, name := range features {
		t.Run("EVS-01 SSE-06 without "+name, func(t *testing.T) { check(t, build(t, name), name) })
	}
	t.Run("EVS-01 without any of them, nothing about them is advertised", func(t *testing.T) {
		f := build(t, features...)
		check(t, f, features...)
		got := f.stateless(alice, spec.MethodDiscover, "").Body
		for _, member := range []string{"conversationEvents", spec.ConversationExtension, `"tools"`, "instructions"} {
			expect.Lacks(t, "server/discover", got, member)
		}
	})
}

// keep returns an option that allows n streams per principal. The tests of [lease] show that a single process and a fleet
// count alike.
func keep(n int) func(*Options) {
	return func(o *Options) {
		o.Leases = lease.NewLocal(func(context.Context, auth.Principal) int { return n })
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
	run(t, "AUT-07 SUB-06 the oldest listen over the quota is completed", keep(2), func(t *testing.T, f *fixture) {
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
	run(t, "AUT-07 SSE-02 so is a stream of the dialect", keep(2), func(t *testing.T, f *fixture) {
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
	expect.AtMost(t, "AUT-06 the bytes of the answer", len(r.Body), 2*maxBatchBytes)
	expect.True(t, "AUT-06 the first request has a result", answers[0].Result != nil)
	expect.Contains(t, "AUT-06 the error of the last request", string(answers[maxBatch-1].Error), `"limit":"batchBytes"`)
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
	expect.AtMost(t, "AUT-06 the bytes allocated for a body that does not arrive", (allocated()-before)/requests, 4*firstRead)
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

// largeAnswers is a gateway whose backend answers each call with a result that counts toward the memory for answers.
type largeAnswers struct{ *fakeGateway }

func (largeAnswers) Call(_ context.Context, c api.Call) error {
	return c.Send(json.RawMessage(`{"jsonrpc":"2.0","id":`+string(c.ID)+`,"result":{"text":"`+strings.Repeat("x", 32<<10)+`"}}`), true)
}

// Answers with status 429 say when to try again, also in a batch and in the named-event dialect.
func TestAUT_07_AnswersWithoutMemory(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Gateway = largeAnswers{newFakeGateway()} })
	for i, left := 0, 64<<20; left >= 4<<10; i, left = i+1, left/2 { // no principal may hold more than is left free
		release := expect.Value(f.endpoint.replies.HoldBytes(&method.Call{Principal: auth.Principal{ID: fmt.Sprint("other ", i)}}, left))(t)
		defer release()
	}
	call := rpcText("1", spec.MethodToolsCall, `"name":"b_tool","arguments":{}`)
	session := "Mcp-Session-Id: " + f.session(alice, spec.V20250326)
	for name, r := range map[string]reply{
		"a batch":             f.do("POST", alice, "["+call+"]", session),
		"a call in a dialect": f.dialect(alice, call, jsonOnly),
	} {
		r.is(t, name, http.StatusTooManyRequests, method.CodeExhausted, `"limit":"answerBytes"`)
		r.hasHeader(t, "Retry-After", "1")
	}
}

package mcp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// polled is the result of events/poll.
type polled struct {
	ResultType string
	Events     []struct {
		EventID, Name, Timestamp string
		Data                     json.RawMessage
		Cursor                   json.RawMessage
		Meta                     map[string]json.RawMessage `json:"_meta"`
	}
	Cursor     string
	Truncated  *bool
	HasMore    *bool
	NextPollMs *int64
}

func (p *polled) data() (out []string) {
	for _, e := range p.Events {
		out = append(out, string(e.Data))
	}
	return out
}

// poll calls events/poll; more are further members of params, with a comma in front.
func (f *fixture) poll(key, name, arguments, cursor, more string) polled {
	f.t.Helper()
	var p polled
	f.stateless(key, spec.MethodEventsPoll, pollParams(name, arguments, cursor)+more).result(f.t, &p)
	if p.ResultType != "complete" || p.Cursor == "" || p.Truncated == nil || p.HasMore == nil || p.NextPollMs == nil {
		f.t.Fatalf("EVX-05 EVX-18: a member is missing: %+v", p)
	}
	return p
}

func pollParams(name, arguments, cursor string) string {
	if cursor == "" {
		cursor = "null"
	} else {
		cursor = `"` + cursor + `"`
	}
	return `"name":"` + name + `","arguments":` + arguments + `,"cursor":` + cursor
}

// isAbout checks what the _meta of an EventOccurrence says of the event.
func isAbout(t *testing.T, meta map[string]json.RawMessage, uri, arguments string) {
	t.Helper()
	if got := string(meta[match.MetaURI]); got != uri {
		t.Errorf("the uri in _meta is %s, want %s", got, uri)
	}
	if got := string(meta[match.MetaArguments]); got != arguments {
		t.Errorf("the arguments in _meta are %s, want %s", got, arguments)
	}
}

func TestPoll(t *testing.T) {
	t.Run("EVX-05_null_bootstraps_and_brings_no_history", func(t *testing.T) {
		f := newFixture(t, nil)
		f.publish("event://ci/deploy", `{"n":1}`)
		first := f.poll(alice, "ci.deploy", `{}`, "", "")
		if len(first.Events) != 0 || *first.Truncated || *first.HasMore {
			t.Errorf("got %+v", first)
		}
		var absent polled // EVX-04: an absent member is null
		f.stateless(alice, spec.MethodEventsPoll, `"name":"ci.deploy"`).result(t, &absent)
		ev := f.publish("event://ci/deploy", `{"n":2}`)
		for _, cursor := range []string{first.Cursor, absent.Cursor} {
			p := f.poll(alice, "ci.deploy", `null`, cursor, `,"maxAgeMs":null,"maxEvents":null`)
			if len(p.Events) != 1 || p.Events[0].EventID != ev.ID || p.Events[0].Name != "ci.deploy" ||
				string(p.Events[0].Data) != `{"n":2}` || p.Events[0].Timestamp != ev.Timestamp() || p.Events[0].Cursor != nil {
				t.Errorf("EVX-04: got %+v", p)
			}
			if again := f.poll(alice, "ci.deploy", `{}`, p.Cursor, ""); len(again.Events) != 0 {
				t.Errorf("repeated: %+v", again)
			}
		}
	})
	t.Run("EVX-24_each_event_says_which_thing_it_is_about", func(t *testing.T) {
		f := newFixture(t, nil)
		cursor := f.poll(alice, "github.push", `{"owner":"acme"}`, "", "").Cursor
		f.publish("event://github/acme/a%20b/push", `{"n":1}`)
		f.publish("event://github/acme/web/push", `{"n":2}`)
		p := f.poll(alice, "github.push", `{"owner":"acme"}`, cursor, "")
		if len(p.Events) != 2 {
			t.Fatalf("got %d events, want 2", len(p.Events))
		}
		isAbout(t, p.Events[0].Meta, `"event://github/acme/a%20b/push"`, `{"owner":"acme","repo":"a b"}`)
		isAbout(t, p.Events[1].Meta, `"event://github/acme/web/push"`, `{"owner":"acme","repo":"web"}`)
	})
	t.Run("EVX-05_pages", func(t *testing.T) {
		f := newFixture(t, nil)
		concrete := f.poll(alice, "github.push", `{"owner":"acme","repo":"web"}`, "", "")
		open := f.poll(alice, "github.push", `{}`, "", "")
		var want []string
		for i := range 25 {
			want = append(want, fmt.Sprintf(`{"n":%d}`, i))
			f.publish("event://github/acme/web/push", want[i])
		}
		for args, cursor := range map[string]string{`{"owner":"acme","repo":"web"}`: concrete.Cursor, `{}`: open.Cursor} {
			var got []string
			for {
				p := f.poll(alice, "github.push", args, cursor, `,"maxEvents":10`)
				got = append(got, p.data()...)
				cursor = p.Cursor
				if *p.HasMore != (len(got) < 25) {
					t.Errorf("%s: hasMore is %v after %d", args, *p.HasMore, len(got))
				}
				if !*p.HasMore {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: got %v", args, got)
			}
		}
	})
	t.Run("EVX-05_a_page_is_bounded_by_bytes", func(t *testing.T) {
		f := newFixture(t, nil)
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		large := `{"x":"` + strings.Repeat("x", 200<<10) + `"}`
		for range 8 {
			f.publish("event://ci/deploy", large)
		}
		p := f.poll(alice, "ci.deploy", `{}`, cursor, "")
		if n := len(p.Events); n != 5 || !*p.HasMore {
			t.Errorf("%d events, hasMore %v", n, *p.HasMore)
		}
		if p = f.poll(alice, "ci.deploy", `{}`, p.Cursor, ""); len(p.Events) != 3 || *p.HasMore {
			t.Errorf("then %d events, hasMore %v", len(p.Events), *p.HasMore)
		}
	})
	t.Run("EVX-07_too_old_is_truncated_with_a_fresh_cursor", func(t *testing.T) {
		f := newFixture(t, nil)
		old := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		f.log.Now = func() time.Time { return time.Now().Add(time.Hour) }
		p := f.poll(alice, "ci.deploy", `{}`, old, `,"maxAgeMs":60000`)
		if !*p.Truncated || len(p.Events) != 0 || p.Cursor == old {
			t.Errorf("older than maxAgeMs: %+v", p)
		}
		if p = f.poll(alice, "ci.deploy", `{}`, p.Cursor, `,"maxAgeMs":60000`); *p.Truncated {
			t.Errorf("the fresh one: %+v", p)
		}
		if p = f.poll(alice, "ci.deploy", `{}`, old, ""); *p.Truncated {
			t.Errorf("within the retention: %+v", p)
		}
		if p = f.poll(alice, "ci.deploy", `{}`, "", `,"maxAgeMs":0`); *p.Truncated {
			t.Errorf("without a cursor maxAgeMs means nothing: %+v", p)
		}
		f.log.Retention = time.Minute
		if p = f.poll(alice, "ci.deploy", `{}`, old, ""); !*p.Truncated {
			t.Errorf("older than the retention: %+v", p)
		}
	})
	t.Run("SUB-08_EVX-07_a_forged_or_foreign_cursor_is_refused_wherever_one_is_taken", func(t *testing.T) {
		f := newFixture(t, nil)
		theirs := f.poll(foreign, "ci.deploy", `{}`, "", "").Cursor
		own := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		for _, cursor := range []string{`"x"`, `7`, `""`, `{}`, `"` + theirs + `"`, `"` + strings.ToUpper(own) + `"`, `"` + strings.Repeat("A", 5000) + `"`} {
			listen := strings.Replace(statelessBody("1", spec.MethodListen, `"notifications":{}`), `"_meta":{`, `"_meta":{"`+spec.MetaCursor+`":`+cursor+`,`, 1)
			for method, r := range map[string]reply{
				spec.MethodEventsPoll:   f.stateless(alice, spec.MethodEventsPoll, `"name":"ci.deploy","cursor":`+cursor),
				spec.MethodEventsStream: f.stateless(alice, spec.MethodEventsStream, `"name":"ci.deploy","cursor":`+cursor),
				spec.MethodEventsSub:    f.stateless(alice, spec.MethodEventsSub, `"name":"ci.deploy",`+callback+`,"cursor":`+cursor),
				spec.MethodListen:       f.do("POST", alice, listen, statelessHeaders(spec.MethodListen, "")...),
			} {
				if method == spec.MethodEventsSub && cursor == `""` {
					continue // where an empty one is none
				}
				if r.Status != 400 || r.code(t) != -32602 {
					t.Errorf("%s %s: %d %s", method, cursor, r.Status, r.Body)
				}
			}
		}
	})
	t.Run("EVX-05_comes_later_the_longer_it_was_quiet", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.PollMin, o.PollMax = 2*time.Second, 20*time.Second })
		now := time.Now().Add(-5 * time.Minute) // the store stamps with its own clock
		f.log.Now = func() time.Time { return now }
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		var got []int64
		for range 6 {
			p := f.poll(alice, "ci.deploy", `{}`, cursor, "")
			got = append(got, *p.NextPollMs)
			now, cursor = now.Add(20*time.Second), p.Cursor
		}
		if want := []int64{2000, 5000, 10000, 15000, 20000, 20000}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		f.publish("event://ci/deploy", `{}`)
		now = now.Add(time.Second)
		if p := f.poll(alice, "ci.deploy", `{}`, cursor, ""); *p.NextPollMs != 2000 || len(p.Events) != 1 {
			t.Errorf("after traffic: %+v", p)
		}
	})
	t.Run("EVX-05_in_a_session_too", func(t *testing.T) {
		f := newFixture(t, nil)
		for _, v := range []spec.Version{spec.V20250326, spec.V20250618, spec.V20251125} {
			s := f.session(alice, v)
			var p polled
			f.sessionBased(alice, s, spec.MethodEventsPoll, `"name":"ci.deploy"`).result(t, &p)
			f.publish("event://ci/deploy", `{"n":1}`)
			f.sessionBased(alice, s, spec.MethodEventsPoll, pollParams("ci.deploy", `{}`, p.Cursor)).result(t, &p)
			if len(p.Events) != 1 || p.ResultType != "" {
				t.Errorf("%s: %+v", v, p)
			}
			if r := f.sessionBased(alice, s, spec.MethodEventsStream, `"name":"ci.deploy"`); r.code(t) != -32601 {
				t.Errorf("EVX-06: %s: %s", v, r.Body)
			}
		}
	})
	t.Run("EVX-17_access_is_checked_each_time", func(t *testing.T) {
		f := newFixture(t, nil)
		cursor := f.poll(alice, "ci.deploy", `{}`, "", "").Cursor
		change := func(from, to string) {
			f.catalogs.Replace(mustParse(t, strings.Replace(testCatalog, from, to, 1)))
		}
		change("    description: Something was deployed.", "    description: Something was deployed.\n    access: {scopes: [deployers]}")
		if r := f.stateless(alice, spec.MethodEventsPoll, pollParams("ci.deploy", `{}`, cursor)); r.Status != http.StatusForbidden || r.code(t) != -32012 {
			t.Errorf("%d %s", r.Status, r.Body)
		}
		change("name: ci.deploy", "name: ci.rollout")
		r := f.stateless(alice, spec.MethodEventsPoll, pollParams("ci.deploy", `{}`, cursor))
		if m := r.rpc(t); m.Error == nil || m.Error.Code != -32011 {
			t.Errorf("%s", r.Body)
		} else {
			sameJSON(t, m.Error.Data, `{"kind":"event"}`)
		}
	})
}

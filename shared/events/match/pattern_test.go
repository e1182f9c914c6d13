package match

import (
	"encoding/json"
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

const patternCatalog = `events:
  - name: ci.build_finished
    uri: event://ci/build-finished
  - name: github.pull_request
    uriTemplate: event://github/{owner}/{repo}/pull_request
    paramsSchema: {type: object, properties: {owner: {type: string, pattern: "^[a-z-]+$"}}}
  - name: github.push
    uriTemplate: event://github/{owner}/{repo}/push
  - name: deep.thing
    uriTemplate: event://deep/{a}/{b}/{c}/{d}/{e}/{f}
`

func parse(t testing.TB, src string) *catalog.Catalog {
	t.Helper()
	return expect.Value(catalog.Parse([]byte(src)))(t)
}

func TestResolve(t *testing.T) {
	cat := parse(t, patternCatalog)
	for _, tc := range []struct {
		name, uri string
		want      []string // keys, with their shapes
	}{
		{"EVS-05 a fixed event", "event://ci/build-finished", []string{"event://ci/build-finished entry:ci.build_finished/m0"}},
		{"EVS-05 a fill-in of a template", "event://github/acme/app/push", []string{"event://github/acme/app/push entry:github.push/m0"}},
		{"EVS-05 EVS-13 a parent", "event://github/acme", []string{"event://github/acme/** parents/d2"}},
		{"EVS-13 a parent of a fixed event", "event://ci", []string{"event://ci/** parents/d1"}},
		{"an open variable", "event://github/acme/*/push", []string{"event://github/acme/*/push entry:github.push/m2"}},
		{"EVS-05 bad template parameters", "event://github/ACME/app/pull_request", nil},
		{"EVS-05 another scheme", "https://github/acme", nil},
		{"EVS-05 below an event", "event://ci/build-finished/x", nil},
		{"EVS-05 nothing of the catalog", "event://nobody/knows", nil},
		{"EVS-05 an empty segment", "event://github//app/push", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, _, err := Resolve(cat, tc.uri)
			if tc.want == nil {
				if !fault.Is(err, fault.Invalid) {
					t.Fatalf("got %v, want a fault of kind Invalid", err)
				}
				return
			}
			expect.OK(t, err)
			var keys []string
			for _, p := range got {
				keys = append(keys, p.Key+" "+p.Shape.Scope+"/"+p.Shape.Name)
			}
			expect.List(t, "the keys", keys, tc.want)
		})
	}
}

// EVS-05: the error for a parent names the variables that its event types require, because clients see the event types in lists.
func TestAParentLacksARequiredVariable(t *testing.T) {
	cat := parse(t, `events:
  - {name: order.shipped, uriTemplate: "event://orders/{order}/{region}", paramsSchema: {type: object, required: [region]}}
`)
	_, _, err := Resolve(cat, "event://orders/5")
	expect.Fault(t, "the error", err, fault.Invalid, `the variables of order.shipped do not fit: lacks "region"`)
	_, _, err = Resolve(cat, "event://carts")
	expect.Fault(t, "the error", err, fault.Invalid, "unknown URI")
}

// TestLookupFindsWhatMatches holds the exact look-ups against the definition of
// matching: an event has, under the shape of a pattern, the pattern's key just when it
// matches the pattern.
func TestLookupFindsWhatMatches(t *testing.T) {
	cat := parse(t, patternCatalog)
	value := rapid.SampledFrom([]string{"a", "b", "x-y", "push"})
	rapid.Check(t, func(t *rapid.T) {
		e := rapid.SampledFrom(cat.Entries()).Draw(t, "event type")
		vars := map[string]string{}
		for _, n := range e.Variables() {
			vars[n] = value.Draw(t, n)
		}
		uri := e.Expand(vars)

		var p Pattern
		other := rapid.SampledFrom(cat.Entries()).Draw(t, "pattern's type")
		bound := map[string]string{}
		for _, n := range other.Variables() {
			if rapid.Bool().Draw(t, "bound") {
				bound[n] = value.Draw(t, "value")
			}
		}
		if rapid.Bool().Draw(t, "parent") {
			full := map[string]string{}
			for _, n := range other.Variables() {
				full[n] = value.Draw(t, "value")
			}
			segs := segments(other.Expand(full))
			depth := rapid.IntRange(1, len(segs)-1).Draw(t, "depth")
			found, _, err := Resolve(cat, catalog.Scheme+strings.Join(segs[:depth], "/"))
			if err != nil {
				return // a parameter that the schema refuses
			}
			p = found[len(found)-1]
		} else {
			p = ForEntry(other, bound)
		}

		key, ok := KeyUnder(e, vars, uri, p.Shape)
		if p.Kind != Parent && p.Entry != e.Name {
			ok = false // fanout reads the shapes of the event's own type only
		}
		byLookup := ok && key == p.Key
		if matches := Matches(p.Key, uri); byLookup != matches {
			t.Fatalf("pattern %s, event %s: look-up says %v, matching %v", p.Key, uri, byLookup, matches)
		}
	})
}

func TestFilters(t *testing.T) {
	payload := []byte(`{"severity":"P1","n":3,"big":1234567890123456789,"ok":true,"repo":{"name":"acme/app"},"labels":["bug","ui"]}`)
	for _, tc := range []struct {
		name, pointer, argument string
		want                    bool
	}{
		{"equal", "/severity", `"P1"`, true},
		{"not equal", "/severity", `"P2"`, false},
		{"one of a list", "/severity", `["P2","P1"]`, true},
		{"none of a list", "/severity", `["P2","P3"]`, false},
		{"glob", "/repo/name", `"acme/*"`, true},
		{"glob in the middle", "/repo/name", `"a*p"`, true},
		{"glob that ends too early", "/repo/name", `"acme/*x"`, false},
		{"number", "/n", `3`, true},
		{"number written otherwise", "/n", `3.0`, true},
		{"a large integer", "/big", `1234567890123456789`, true},
		{"a large integer as a program with float64 writes it", "/big", `1234567890123456800`, true},
		{"another large integer with the same float64", "/big", `1234567890123456788`, false},
		{"boolean", "/ok", `true`, true},
		{"a string is not a number", "/n", `"3"`, false},
		{"an element of an array", "/labels", `"ui"`, true},
		{"no such member", "/absent", `"x"`, false},
		{"an element of an array by a glob", "/labels", `["x*", "*u*"]`, true},
		{"a glob next to texts", "/severity", `["x", "P*"]`, true},
		{"a number is not a text", "/severity", `1`, false},
		{"a star alone", "/severity", `"*"`, true},
	} {
		t.Run("EVX-03 "+tc.name, func(t *testing.T) {
			f := expect.Value(newFilter(tc.pointer, catalog.NoRange, []byte(tc.argument)))(t)
			expect.Equal(t, "the payload passes", (&Payload{Event: &event.Event{Data: payload}}).Passes([]Filter{f}), tc.want)
		})
	}
}

func TestRedact(t *testing.T) {
	const payload = `{"a":{"b":1,"c":2},"list":["x",{"mail":"m","name":"n"},"y"]}`
	for pointers, want := range map[string]string{
		"/a/b":                       `{"a":{"c":2},"list":["x",{"mail":"m","name":"n"},"y"]}`,
		"/a/x /x/a /list/3 /list/-1": payload,
		"/list/1/mail":               `{"a":{"b":1,"c":2},"list":["x",{"name":"n"},"y"]}`,
		"/list/0 /list/2 /a":         `{"list":[null,{"mail":"m","name":"n"},null]}`,
	} {
		got := expect.Value(Redact(json.RawMessage(payload), strings.Fields(pointers)))(t)
		expect.Equal(t, "EVX-03 the payload without "+pointers, string(got), want)
	}
}

// GWN-20: with an event type of the operator that has an open first segment, a caller cannot select the events of a backend, for which it
// may lack the scopes.
func TestVariablesDoNotReachBackends(t *testing.T) {
	cat := parse(t, "events:\n  - {name: any, uriTemplate: \"event://{tenant}/{kind}/{id}\"}\n")
	for _, arguments := range []string{`{"tenant":"~shop","kind":"order.shipped","id":"e30"}`, `{"tenant":"~shop"}`} {
		expect.Fault(t, arguments, expect.ErrOf(Select(cat.ByName("any"), json.RawMessage(arguments), auth.Principal{})), fault.Invalid)
	}
	expect.OK(t, expect.ErrOf(Select(cat.ByName("any"), json.RawMessage(`{"tenant":"a~","kind":"~shop"}`), auth.Principal{})))
	for _, uri := range []string{"event://~shop/order.shipped/e30", "event://%7Eshop/order.shipped/*", "event://~shop"} {
		expect.True(t, uri+" is not in the catalog", !InCatalog(cat, uri))
	}
}

// GWN-21: long arguments for an event of a backend are refused before they are checked against the backend's schema, which takes long.
func TestLongArgumentsForABackend(t *testing.T) {
	e, err := catalog.NewBackendEntry("shop", catalog.BackendTypes{}, catalog.BackendType{Name: "a", InputSchema: json.RawMessage(`{"maxProperties":0}`)})
	expect.OK(t, err)
	_, err = Select(e, json.RawMessage(`{"x":"`+strings.Repeat("x", 10_000)+`"}`), auth.Principal{})
	expect.Equal(t, "the limit", fault.LimitOf(err), "backendArguments")
}

const build = "event://ci/build-finished"

// hostile returns filters with fifty values each. The beginnings of the values match everywhere in the text of hostilePayload,
// but no value matches as a whole.
func hostile() []Filter {
	var values []json.RawMessage
	for i := range maxGlobs {
		values = append(values, fmt.Appendf(nil, `"*%sb*"`, strings.Repeat("a", 400+i)))
	}
	return []Filter{{Pointer: "/text", Values: values}}
}

func hostilePayload(size int) *event.Event {
	return &event.Event{URI: build, Data: fmt.Appendf(nil, `{"text":"%s"}`, strings.Repeat("a", size)+"c")}
}

// A poll's filters may take some passes over the payloads for each of their values, not
// one for each of a value's characters: 400 times as many.
func TestFiltersTakeLinearTime(t *testing.T) {
	const events, size, passes = 10, 230_000, 40
	s := Selection{Filters: hostile()}
	s.Entry = parse(t, patternCatalog).ByName("ci.build_finished")
	text := []byte(strings.Repeat("a", size))
	var took, linear time.Duration
	for range 3 { // one that was not interrupted is enough
		began := time.Now()
		found := 0
		for range events * maxGlobs {
			for _, c := range text {
				if c == 'b' {
					found++
				}
			}
		}
		linear = time.Since(began)
		began = time.Now()
		for range events {
			e := hostilePayload(size)
			e.Name = s.Entry.Name
			if s.Wants(e) {
				found++
			}
		}
		if took = time.Since(began); found > 0 {
			t.Fatal("a filter let through what it must not")
		}
		if took < passes*linear {
			return
		}
	}
	t.Errorf("the filters took %v; %d passes over the payloads take %v", took, events*maxGlobs, linear)
}

// allocated returns the number of bytes that f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

func TestAPayloadIsDecodedOncePerEvent(t *testing.T) {
	e := hostilePayload(230_000)
	filters := []Filter{{Pointer: "/text", Values: []json.RawMessage{[]byte(`"x"`)}}}
	once := allocated(func() { (&Payload{Event: e}).Passes(filters) })
	for name, ask := range map[string]func(){
		"300 subscribers": func() {
			p := NewPayloads([]event.Event{*e})[0]
			var asking sync.WaitGroup
			for range 300 {
				asking.Go(func() { p.Passes(filters) })
			}
			asking.Wait()
		},
		"300 streams": func() {
			s := Selection{Filters: filters, Entry: parse(t, patternCatalog).ByName("ci.build_finished")}
			e.Name = s.Entry.Name
			for range 300 {
				s.Wants(e)
			}
		},
	} {
		expect.AtMost(t, "the bytes that "+name+" allocated", allocated(ask), 10*once)
	}
}

func TestAllFiltersOfASubscriptionAreBounded(t *testing.T) {
	texts := func(n int, format string) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(format, i))
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	entry := parse(t, `
events:
  - {name: a.b, uri: event://a/b, filters: {a: /a, b: /b, c: /c, d: /d, e: /e}, payloadSchema: {}}`).Entries()[0]
	for name, tc := range map[string]struct{ arguments, want string }{
		"fifty globs":               {`{"a":` + texts(50, `"x*%d"`) + `}`, ""},
		"globs over several":        {`{"a":` + texts(30, `"x*%d"`) + `,"b":` + texts(21, `"x*%d"`) + `}`, "51 values with *, 50 are allowed"},
		"globs written as escapes":  {`{"a":` + texts(30, `"x\u002a%d"`) + `,"b":` + texts(21, `"x*%d"`) + `}`, "51 values with *"},
		"values over several":       {`{"a":` + texts(50, `%d`) + `,"b":` + texts(50, `%d`) + `,"c":` + texts(50, `%d`) + `,"d":` + texts(50, `%d`) + `,"e":1}`, "201 values, 200 are allowed"},
		"as many values as allowed": {`{"a":` + texts(50, `%d`) + `,"b":` + texts(50, `%d`) + `,"c":` + texts(50, `%d`) + `,"d":` + texts(50, `%d`) + `}`, ""},
	} {
		_, err := Select(entry, json.RawMessage(tc.arguments), auth.Principal{})
		if tc.want == "" && err != nil || tc.want != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(fault.Public(err), tc.want)) {
			t.Errorf("%s: got %v, want %q", name, err, tc.want)
		}
	}
}

// FuzzGlob holds globs to regular expressions.
func FuzzGlob(f *testing.F) {
	for _, x := range [][2]string{{"a*b", "axxb"}, {"***", ""}, {"a*a", "a"}, {"*ab*ab", "abab"}, {"*aab*b", "aaabb"}, {"*ab*ab*", "xab"}, {"é*", "éa"}} {
		f.Add(x[0], x[1])
	}
	f.Fuzz(func(t *testing.T, pattern, s string) {
		pattern, s = strings.ToValidUTF8(pattern, "?"), strings.ToValidUTF8(s, "?")
		if !strings.Contains(pattern, "*") || len(pattern) > 64 || len(s) > 256 {
			return
		}
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		want := regexp.MustCompile(`(?s)\A` + strings.Join(parts, ".*") + `\z`).MatchString(s)
		expect.MustEqual(t, fmt.Sprintf("%q matches %q", pattern, s), glob(strings.Split(pattern, "*")).matches(s), want)
	})
}

// TestArgumentsOfNoPossibleURI: AUT-06, EVX-03: they are refused before anything is
// done with them, and are not repeated.
func TestArgumentsOfNoPossibleURI(t *testing.T) {
	entry := parse(t, patternCatalog).ByName("github.push")
	for _, owner := range []string{strings.Repeat("x", 3000), strings.Repeat("%", 400), strings.Repeat("ü", 200), "..", ".", "a\x00b"} {
		raw, _ := json.Marshal(map[string]string{"owner": owner})
		_, err := Select(entry, raw, auth.Principal{})
		expect.Fault(t, owner+": the error", err, fault.Invalid)
		expect.AtMost(t, owner+": the length of the error", len(fault.Public(err)), 200)
	}
	for _, owner := range []string{"*", "%2A", "a/b", "a b", "ü", "...", strings.Repeat("x", 900)} {
		raw, _ := json.Marshal(map[string]string{"owner": owner})
		s, err := Select(entry, raw, auth.Principal{})
		expect.OK(t, err, owner)
		expect.True(t, "the URI matches its pattern", Matches(s.Pattern.Key, entry.Expand(map[string]string{"owner": owner, "repo": "r"})))
	}
}

// EVX-08, EVX-15: arguments that differ only in the spelling of JSON are equal, so they lead to the same subscription.
func TestEqualArgumentsHaveEqualBytes(t *testing.T) {
	entry := parse(t, `
events:
  - {name: a.b, uriTemplate: "event://a/{n}", filters: {x: /x, y: /y}, paramsSchema: {type: object, properties: {n: {type: integer}}}, payloadSchema: {}}`).Entries()[0]
	for want, spellings := range map[string][]string{
		`{"n":5,"x":["a",0.5]}`:                  {`{"n":5.0,"x":["\u0061",5e-1]}`, ` { "x" : [ "a" , 0.50 ] , "n" : 0.5E+1 } `},
		`{"x":[0,-12.25,100,0.0000001]}`:         {`{"x":[-0,-12.250,1e2,1e-07]}`, `{"x":[0e9,-1225e-2,100.0,1E-7]}`},
		`{"x":9007199254740993}`:                 {`{"x":9007199254740993.0}`},
		`{"x":1` + strings.Repeat("0", 16) + `}`: {`{"x":1e+16}`},
		`{"x":1` + strings.Repeat("0", 21) + `}`: {`{"x":1e21}`, `{"x":1e+21}`},
		`{"x":[1e330,-1.25e-30]}`:                {`{"x":[10e329,-125E-32]}`},
	} {
		for _, spelling := range append(spellings, want) {
			s := expect.Value(Select(entry, json.RawMessage(spelling), auth.Principal{}))(t)
			expect.Equal(t, "the selection by "+spelling, string(s.Arguments), want)
			if strings.Contains(want, `"n"`) {
				expect.Equal(t, "the pattern for "+spelling, s.Pattern.URI(), "event://a/5")
			}
			expect.Equal(t, "the canonical form of "+spelling, string(expect.Value(CanonicalArguments(json.RawMessage(spelling)))(t)), want)
		}
	}
	for _, huge := range []string{`{"x":1e22}`, `{"x":1e999999999}`, `{"x":-1.5e-300}`} {
		expect.Equal(t, "the canonical form of a number that is too large to write out", string(expect.Value(CanonicalArguments(json.RawMessage(huge)))(t)), huge)
	}
}

// TestUnknownArgument: AUT-06, EVX-03: an argument that the event type does not take is refused, and a long name is not repeated.
func TestUnknownArgument(t *testing.T) {
	entry := parse(t, patternCatalog).ByName("github.push")
	for _, name := range []string{"colour", strings.Repeat("x", 100_000), strings.Repeat("ü", 100_000)} {
		raw, _ := json.Marshal(map[string]int{name: 1})
		_, err := Select(entry, raw, auth.Principal{})
		data, _ := json.Marshal(fault.DataOf(err))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(string(data), name[:6]) || len(fault.Public(err))+len(data) > 1000 {
			t.Errorf("%.10q: got %.400v with %.400s, want at most 1000 bytes that name it", name, err, data)
		}
	}
}

// TestRanges: RCH-09.
func TestRanges(t *testing.T) {
	payload := `{"n":100,"f":0.1,"big":9007199254740993,"huge":1e999,"neg":-5,"at":"2026-11-23T12:00:00+01:00","when":"yesterday","list":[1,600],"ok":true,"s":"100"}`
	for _, c := range []struct {
		name, pointer string
		of            catalog.RangeType
		argument      string
		want          bool
	}{
		{"at least, equal", "/n", catalog.NumberRange, `{"$gte":100}`, true},
		{"greater, equal", "/n", catalog.NumberRange, `{"$gt":100}`, false},
		{"less, equal", "/n", catalog.NumberRange, `{"$lt":100.0}`, false},
		{"at most, equal, written otherwise", "/n", catalog.NumberRange, `{"$lte":1e2}`, true},
		{"between", "/n", catalog.NumberRange, `{"$gte":100,"$lt":500}`, true},
		{"one bound does not hold", "/n", catalog.NumberRange, `{"$gte":50,"$lt":100}`, false},
		{"one number", "/n", catalog.NumberRange, `{"$gte":100,"$lte":1e2}`, true},
		{"beyond the precision of float64, between", "/big", catalog.NumberRange, `{"$gt":9007199254740992,"$lt":9007199254740994}`, true},
		{"negative", "/neg", catalog.NumberRange, `{"$lt":-4.5}`, true},
		{"a fraction", "/f", catalog.NumberRange, `{"$gt":0.0999999}`, true},
		{"beyond the precision of float64", "/big", catalog.NumberRange, `{"$gt":9007199254740992}`, true},
		{"beyond it, equal", "/big", catalog.NumberRange, `{"$gt":9007199254740993}`, false},
		{"a number beyond float64", "/huge", catalog.NumberRange, `{"$gt":1e300}`, true},
		{"an element of a list", "/list", catalog.NumberRange, `{"$gt":500}`, true},
		{"no element of a list", "/list", catalog.NumberRange, `{"$gt":1,"$lt":600}`, false},
		{"a text is no number", "/s", catalog.NumberRange, `{"$gte":0}`, false},
		{"a boolean is no number", "/ok", catalog.NumberRange, `{"$gte":0}`, false},
		{"a member that is not there", "/absent", catalog.NumberRange, `{"$gte":0}`, false},
		{"a time of another zone, equal", "/at", catalog.TimeRange, `{"$gte":"2026-11-23T11:00:00Z"}`, true},
		{"a later time", "/at", catalog.TimeRange, `{"$gt":"2026-11-23T11:00:00Z"}`, false},
		{"between times", "/at", catalog.TimeRange, `{"$gt":"2026-11-23T10:59:59.999Z","$lt":"2026-11-23T11:00:00.001Z"}`, true},
		{"a text that is no time", "/when", catalog.TimeRange, `{"$gt":"2000-01-01T00:00:00Z"}`, false},
		{"a number is no time", "/n", catalog.TimeRange, `{"$gt":"2000-01-01T00:00:00Z"}`, false},
	} {
		t.Run("RCH-09 "+c.name, func(t *testing.T) {
			f := expect.Value(newFilter(c.pointer, c.of, []byte(c.argument)))(t)
			expect.Equal(t, "the payload passes", (&Payload{Event: &event.Event{Data: []byte(payload)}}).Passes([]Filter{f}), c.want)
		})
	}
	for name, c := range map[string]struct {
		of             catalog.RangeType
		argument, want string
	}{
		"where none may be": {catalog.NoRange, `{"$gt":1}`, "a range is not allowed"},
		"without bounds":    {catalog.NumberRange, `{}`, "at least one of"},
		"an unknown bound":  {catalog.NumberRange, `{"$eq":1}`, "allowed: $gt, $gte, $lt, $lte"},
		"a text":            {catalog.NumberRange, `{"$gt":"1"}`, "is not a number"},
		"NaN":               {catalog.NumberRange, `{"$gt":null}`, "is not a number"},
		"a long number":     {catalog.NumberRange, `{"$gt":1` + strings.Repeat("0", 64) + `}`, "up to 64 bytes"},
		"a date":            {catalog.TimeRange, `{"$gt":"2026-11-23"}`, "is not a date-time"},
		"a number as time":  {catalog.TimeRange, `{"$gt":5}`, "is not a date-time"},
		"from above":        {catalog.NumberRange, `{"$gte":500,"$lt":100}`, "the range is empty: no value is both $gte 500 and $lt 100"},
		"of one, without":   {catalog.NumberRange, `{"$gt":100,"$lte":1e2}`, "no value is both $gt 100 and $lte 1e2"},
		"of one, excluded":  {catalog.NumberRange, `{"$gte":100,"$lt":100}`, "no value is both $gte 100 and $lt 100"},
		"by one of three":   {catalog.NumberRange, `{"$gt":1,"$gte":7,"$lte":5}`, "no value is both $gte 7 and $lte 5"},
		"of times":          {catalog.TimeRange, `{"$gte":"2026-11-23T12:00:00Z","$lt":"2026-11-23T12:00:00+01:00"}`, "no value is both $gte 2026-11-23T12:00:00Z and $lt 2026-11-23T12:00:00+01:00"},
		"in a list":         {catalog.NumberRange, `[{"$gt":1}]`, "not allowed"},
	} {
		t.Run("RCH-09 refused: "+name, func(t *testing.T) {
			expect.Fault(t, "the error", expect.ErrOf(newFilter("/n", c.of, []byte(c.argument))), fault.Invalid, c.want)
		})
	}
	t.Run("RCH-09 a number with a large exponent or very many digits costs nothing", func(t *testing.T) {
		f := expect.Value(newFilter("", catalog.NumberRange, []byte(`{"$gte":0}`)))(t)
		began := time.Now()
		for _, number := range []string{"1e-999999999", "0." + strings.Repeat("0", 200_000) + "1", strings.Repeat("9", 200_000)} {
			expect.True(t, fmt.Sprintf("%.20s passes", number), (&Payload{Event: &event.Event{Data: []byte(number)}}).Passes([]Filter{f}))
		}
		expect.AtMost(t, "the time that it took", time.Since(began), time.Second)
	})
}

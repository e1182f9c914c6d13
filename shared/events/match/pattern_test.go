package match

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

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
	cat := expect.Value(catalog.Parse([]byte(src)))(t)
	return cat
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
			if !slices.Equal(keys, tc.want) {
				t.Errorf("got %v, want %v", keys, tc.want)
			}
		})
	}
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
	payload := []byte(`{"severity":"P1","n":3,"ok":true,"repo":{"name":"acme/app"},"labels":["bug","ui"]}`)
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
		{"boolean", "/ok", `true`, true},
		{"a string is not a number", "/n", `"3"`, false},
		{"an element of an array", "/labels", `"ui"`, true},
		{"no such member", "/absent", `"x"`, false},
		{"an element of an array by a glob", "/labels", `["x*", "*u*"]`, true},
		{"a glob beside texts", "/severity", `["x", "P*"]`, true},
		{"a number is not a text", "/severity", `1`, false},
		{"a star alone", "/severity", `"*"`, true},
	} {
		t.Run("EVX-03 "+tc.name, func(t *testing.T) {
			f := expect.Value(newFilter(tc.pointer, catalog.NoRange, []byte(tc.argument)))(t)
			expect.Equal(t, "the payload passes", (&Payload{Event: &event.Event{Data: payload}}).Passes([]Filter{f}), tc.want)
		})
	}
}

// GWN-20: with an event type of the operator that has an open first segment, a caller cannot select the events of a backend, for which it
// may lack the scopes.
func TestVariablesDoNotReachBackends(t *testing.T) {
	cat := parse(t, "events:\n  - {name: any, uriTemplate: \"event://{tenant}/{kind}/{id}\"}\n")
	for _, arguments := range []string{`{"tenant":"~shop","kind":"order.shipped","id":"e30"}`, `{"tenant":"~shop"}`} {
		_, err := Select(cat.ByName("any"), json.RawMessage(arguments))
		expect.Fault(t, arguments, err, fault.Invalid)
	}
	_, err := Select(cat.ByName("any"), json.RawMessage(`{"tenant":"a~","kind":"~shop"}`))
	expect.OK(t, err)
	for _, uri := range []string{"event://~shop/order.shipped/e30", "event://%7Eshop/order.shipped/*", "event://~shop"} {
		if InCatalog(cat, uri) {
			t.Errorf("%s is in the catalog", uri)
		}
	}
}

// GWN-21: long arguments for an event of a backend are refused before they are checked against the backend's schema, which takes long.
func TestLongArgumentsForABackend(t *testing.T) {
	e, err := catalog.NewBackendEntry("shop", catalog.BackendTypes{}, catalog.BackendType{Name: "a", InputSchema: json.RawMessage(`{"maxProperties":0}`)})
	expect.OK(t, err)
	_, err = Select(e, json.RawMessage(`{"x":"`+strings.Repeat("x", 10_000)+`"}`))
	expect.Equal(t, "the limit", fault.LimitOf(err), "backendArguments")
}

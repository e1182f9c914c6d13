package catalog

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestCanonical(t *testing.T) {
	long := Scheme + strings.Repeat("a", event.MaxURI-len(Scheme))
	for in, want := range map[string]string{
		"event://ci/build-finished": "event://ci/build-finished",
		"EVENT://CI/Build":          "event://CI/Build",
		"event://a/x%2fy":           "event://a/x%2Fy",
		"event://a/%41%7e":          "event://a/A~",
		"event://a/x:y":             "event://a/x%3Ay",
		"event://a/x@y":             "event://a/x%40y",
		"event://a/*":               "event://a/%2A",
		"event://a/%2a":             "event://a/%2A",
		"event://a/ü":               "event://a/%C3%BC",
		"event://a/%c3%bc":          "event://a/%C3%BC",
		"event://a/b%20c":           "event://a/b%20c",
		"event://a/...":             "event://a/...",
		"event://a":                 "event://a",
		long:                        long,
	} {
		got := expect.Value(Canonical(in))(t)
		expect.Equal(t, fmt.Sprintf("Canonical(%q)", in), got, want)
		expect.Equal(t, "Canonical of its own result "+got, expect.Value(Canonical(got))(t), got)
	}
	for _, in := range []string{
		"", "event:", "event://", "event:///a", "event://a/", "event://a//b", "http://a", "event://a?b", "event://a#b",
		"event://u@a/b", "event://a/{b}", "event://a/b c", "event://a/%", "event://a/%4", "event://a/%zz", "event://a/%00",
		"event://a/%ff", "event://a/\xff", "event://a/.", "event://a/../b", "event://a/%2e%2E/b", "event://a/\n", "event://a/%7f",
		long + "a", "event://" + strings.Repeat("ü", 400),
	} {
		if got, err := Canonical(in); !fault.Is(err, fault.Invalid) {
			t.Errorf("Canonical(%.40q) = %q, %v, want an invalid fault", in, got, err)
		}
	}
	expect.Equal(t, "CanonicalPattern", expect.Value(CanonicalPattern("event://a/*/b*"))(t), "event://a/*/b%2A")
}

func TestMatch(t *testing.T) {
	c := parse(t, sample+`  - name: lit
    uri: event://github/acme/site
  - name: deep
    uriTemplate: event://github/{a}/{b}/{c}/{d}
`)
	for uri, want := range map[string]struct {
		name string
		vars map[string]string
	}{
		"event://github/acme/site/pull_request": {"github.pull_request", map[string]string{"owner": "acme", "repo": "site"}},
		"event://github/acme/a%2Fb/star":        {"github.star", map[string]string{"account": "acme", "repo": "a/b"}},
		"event://ci/build-finished":             {"ci.build_finished", nil},
		"event://github/acme/site":              {"lit", nil},
		"event://github/acme/site/star/x":       {"deep", map[string]string{"a": "acme", "b": "site", "c": "star", "d": "x"}},
		"event://github/acme/site/push":         {},
		"event://github/acme":                   {},
		"event://github":                        {},
		"event://ci":                            {},
		"event://ci/build-finished/x":           {},
		"event://github/*/site/star":            {},
		"event://github//site/star":             {},
		"event://github/acme/a%2fb/star":        {},
		"event://":                              {},
		"":                                      {},
	} {
		e, vars, ok := c.Match(uri)
		if ok != (want.name != "") || ok && (e.Name != want.name || !maps.Equal(vars, want.vars)) {
			t.Errorf("Match(%q) = %v, %v, %v, want %+v", uri, e, vars, ok, want)
		}
		if ok && e.Expand(vars) != uri {
			t.Errorf("Expand(%v) = %q, want %q", vars, e.Expand(vars), uri)
		}
	}
}

func TestMatchPattern(t *testing.T) {
	c := parse(t, sample)
	e, vars, ok := c.MatchPattern("event://github/*/site/star")
	if !ok || e.Name != "github.star" || !maps.Equal(vars, map[string]string{"repo": "site"}) {
		t.Errorf("got %v, %v, %v", e, vars, ok)
	}
	expect.Equal(t, "the expanded URI", e.Expand(vars), "event://github/*/site/star")
	for _, p := range []string{"event://*/acme/site/star", "event://github/*/*/*", "event://*"} {
		if e, _, ok := c.MatchPattern(p); ok {
			t.Errorf("MatchPattern(%q) found %s: * stands for no literal", p, e.Name)
		}
	}
}

func TestParents(t *testing.T) {
	c := parse(t, sample)
	for uri, want := range map[string]string{
		"event://github":                        "github.pull_request github.star",
		"event://github/acme":                   "github.pull_request github.star",
		"event://github/acme/site":              "github.pull_request github.star",
		"event://ci":                            "ci.build_finished",
		"event://github/acme/site/pull_request": "",
		"event://ci/build-finished":             "",
		"event://git":                           "",
		"event://github/*":                      "",
		"event://":                              "",
		"event://x":                             "",
	} {
		var names []string
		for _, e := range c.ListUnder(uri) {
			names = append(names, e.Name)
		}
		expect.Equal(t, fmt.Sprintf("Under(%q)", uri), strings.Join(names, " "), want)
	}
	expect.Map(t, "the bound variables", c.ByName("github.star").BindParent("event://github/a%20b"), map[string]string{"account": "a b"})
}

func TestMatchAllocatesTheMapOnly(t *testing.T) {
	c := parse(t, sample)
	expect.Equal(t, "the allocations for a fixed URI", testing.AllocsPerRun(100, func() { c.Match("event://ci/build-finished") }), 0)
	expect.AtMost(t, "the allocations for a templated URI", testing.AllocsPerRun(100, func() { c.Match("event://github/acme/site/star") }), 2)
	expect.Equal(t, "the allocations for a canonical URI", testing.AllocsPerRun(100, func() { _, _ = Canonical("event://github/acme/site/star") }), 0)
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{"event://a/b", "EVENT://a/%2a", "event://a/*", "event://a/ü", "event://%2E/x", "event://a?b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		got, err := Canonical(in)
		if err != nil {
			return
		}
		expect.Equal(t, "Canonical of its own result "+got, expect.Value(Canonical(got))(t), got)
		if len(got) > event.MaxURI || strings.ContainsAny(got, "*?#{}@ ") || !strings.HasPrefix(got, Scheme) {
			t.Fatalf("%q became %q", in, got)
		}
	})
}

func FuzzMatch(f *testing.F) {
	c := parse(f, sample+"  - name: lit\n    uri: event://github/acme/site\n  - name: any\n    uriTemplate: event://any/{a}/x/{b}\n")
	for _, s := range []string{"event://github/acme/site/star", "event://ci/build-finished", "event://any/%2A/x/a%2Fb", "event://any/*/x/y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		uri, err := Canonical(in)
		if err != nil {
			c.Match(in) // must not panic
			return
		}
		e, vars, ok := c.Match(uri)
		if !ok {
			return
		}
		if got := e.Expand(vars); got != uri {
			t.Fatalf("%q matched %s with %v, which expands to %q", uri, e.Name, vars, got)
		}
		if _, again, ok := c.MatchPattern(uri); !ok || !maps.Equal(again, vars) {
			t.Fatalf("as a pattern %q binds %v, not %v", uri, again, vars)
		}
		for i := len(Scheme) + 1; i < len(uri); i++ {
			if uri[i] == '/' && len(c.ListUnder(uri[:i])) == 0 {
				t.Fatalf("%q is no parent of %q", uri[:i], uri)
			}
		}
	})
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add(entry("uri: event://a/b", "payloadSchema: {$ref: '#/$defs/x', $defs: {x: {type: string}}}"))
	f.Add("events: &a\n  - *a\n")
	f.Fuzz(func(t *testing.T, src string) {
		c, err := Parse([]byte(src))
		if err != nil {
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("got %v of kind %v", err, fault.KindOf(err))
			}
			return
		}
		for _, e := range c.Entries() {
			if e.Fixed() {
				if got, _, ok := c.Match(e.URI); !ok || got != e {
					t.Fatalf("%s does not match its own URI", e.Name)
				}
			} else if got, _, ok := c.MatchPattern(e.Expand(nil)); !ok || got != e {
				t.Fatalf("%s does not match its own pattern", e.Name)
			}
		}
	})
}

func TestAccess(t *testing.T) {
	rule := &Access{Scopes: []string{"github"}, Claims: map[string]string{"owner": "org"}}
	member := auth.Principal{Scopes: []string{"github"}, Claims: map[string][]string{"org": {"acme"}}}
	several := auth.Principal{Scopes: []string{"github"}, Claims: map[string][]string{"org": {"acme", "globex"}}}
	for name, tc := range map[string]struct {
		rule *Access
		vars map[string]string
		p    auth.Principal
		want string
	}{
		"no rule":                       {nil, nil, auth.Principal{}, ""},
		"the claim's own value":         {rule, map[string]string{"owner": "acme", "repo": "x"}, member, ""},
		"another value":                 {rule, map[string]string{"owner": "evil"}, member, "must be equal"},
		"a prefix of the value":         {rule, map[string]string{"owner": "acm"}, member, "must be equal"},
		"the variable omitted":          {rule, map[string]string{"repo": "x"}, member, "must be given"},
		"the variable empty":            {rule, map[string]string{"owner": ""}, member, "must be given"},
		"no such claim":                 {rule, map[string]string{"owner": "acme"}, auth.Principal{Scopes: member.Scopes}, `claim "org"`},
		"an empty claim":                {rule, map[string]string{"owner": ""}, auth.Principal{Scopes: member.Scopes, Claims: map[string][]string{"org": {""}}}, `claim "org"`},
		"one of several values":         {rule, map[string]string{"owner": "globex"}, several, ""},
		"none of several values":        {rule, map[string]string{"owner": "evil"}, several, "must be equal"},
		"no values":                     {rule, map[string]string{"owner": ""}, auth.Principal{Scopes: member.Scopes, Claims: map[string][]string{"org": {}}}, `claim "org"`},
		"no scope":                      {rule, map[string]string{"owner": "acme"}, auth.Principal{Claims: member.Claims}, "scope github"},
		"anonymous has none of a claim": {rule, map[string]string{"owner": "acme"}, auth.Principal{Anonymous: true, Scopes: member.Scopes}, "claim"},
	} {
		t.Run("AUT-04 "+name, func(t *testing.T) {
			err := tc.rule.Check(tc.p, tc.vars)
			if tc.want == "" {
				expect.OK(t, err)
			} else if !fault.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	var open *Access
	if !open.VisibleTo(auth.Principal{}) || !rule.VisibleTo(member) || rule.VisibleTo(auth.Principal{Scopes: member.Scopes}) || rule.VisibleTo(auth.Principal{Claims: member.Claims}) {
		t.Error("VisibleTo does not follow the rule")
	}
}

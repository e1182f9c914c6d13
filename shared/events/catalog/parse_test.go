package catalog

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// sample has an entry of each shape.
const sample = `events:
  - name: github.pull_request
    uriTemplate: event://github/{owner}/{repo}/pull_request
    title: Pull request changed
    description: Something happened to a pull request.
    payloadSchema:
      type: object
      required: [action, number]
      properties:
        action: {enum: [opened, closed]}
        number: {type: integer, minimum: 1}
    paramsSchema:
      type: object
      properties:
        owner: {type: string, pattern: "^[a-z0-9-]+$"}
    filters: {action: /action}
    access: {scopes: [github], claims: {owner: org}}
  - name: ci.build_finished
    uri: event://ci/build-finished
    delivery: [push, poll]
    webhookType: ci.finished
    order: none
  - name: github.star
    uriTemplate: event://github/{account}/{repo}/star
`

func parse(t testing.TB, src string) *Catalog {
	t.Helper()
	return expect.Value(Parse([]byte(src)))(t)
}

func TestParseReadsAllMembers(t *testing.T) {
	c := parse(t, sample)
	expect.MustEqual(t, "the number of entries", len(c.Entries()), 3)
	pr, ci := c.ByName("github.pull_request"), c.ByName("ci.build_finished")
	expect.Equal(t, "the first entry", c.Entries()[0], pr)
	expect.Equal(t, "the second entry", c.Entries()[1], ci)
	if pr.Fixed() || pr.URI != "" || pr.URITemplate != "event://github/{owner}/{repo}/pull_request" {
		t.Errorf("got URI %q, template %q", pr.URI, pr.URITemplate)
	}
	expect.Equal(t, "the variables", strings.Join(pr.Variables(), " "), "owner repo")
	expect.Equal(t, "the type of pull requests", pr.WebhookType, "github.pull_request")
	expect.Equal(t, "the type of builds", ci.WebhookType, "ci.finished")
	if !pr.PushAllowed() || !pr.PollAllowed() || !pr.WebhookAllowed() || ci.WebhookAllowed() || !ci.PushAllowed() {
		t.Errorf("got delivery %v, %v", pr.Delivery, ci.Delivery)
	}
	if pr.Order != orderURI || pr.Unordered() || ci.Order != orderNone || !ci.Unordered() {
		t.Errorf("got order %q, %q", pr.Order, ci.Order)
	}
	if pr.Access.Claims["owner"] != "org" || pr.Access.Scopes[0] != "github" || ci.Access != nil {
		t.Errorf("got access %+v, %+v", pr.Access, ci.Access)
	}
	if !ci.Fixed() || ci.URI != "event://ci/build-finished" || len(ci.segments) != 2 {
		t.Errorf("got %+v", ci)
	}
	expect.Equal(t, "the params schema in the file's order", string(pr.ParamsSchema), `{"type":"object","properties":{"owner":{"type":"string","pattern":"^[a-z0-9-]+$"}}}`)
	if c.ByName("nothing") != nil {
		t.Error("an unknown name was found")
	}
}

// entry wraps members in a catalog of one entry, which begins in line 2.
func entry(members ...string) string {
	return "events:\n  - name: a.b\n    " + strings.Join(members, "\n    ") + "\n"
}

func TestParseFaults(t *testing.T) {
	fixed := "uri: event://a/b"
	for name, tc := range map[string]struct {
		src, want string
	}{
		"empty file":              {"", "catalog.yaml: is empty"},
		"no mapping":              {"- a\n", "catalog.yaml:1: is not a mapping"},
		"bad YAML":                {"events:\n  - name: [a\n", "catalog.yaml:"},
		"two documents":           {"events: []\n---\nevents: []\n", "second document"},
		"no events":               {"{}\n", `catalog.yaml:1: the member "events" is missing`},
		"unknown top member":      {"events: []\nversion: 1\n", `catalog.yaml:2: the catalog: unknown member "version"`},
		"unknown member":          {entry(fixed, "colour: red"), `catalog.yaml:4: event a.b: unknown member "colour"`},
		"duplicate key":           {entry(fixed, "title: a", "title: b"), `catalog.yaml:5: an entry of events: member "title" was already given in line 4`},
		"merge key":               {entry(fixed, "<<: {title: a}"), "merge keys"},
		"no name":                 {"events:\n  - uri: event://a\n", "catalog.yaml:2: an entry of events has no name"},
		"bad name":                {"events:\n  - {name: 'a b', uri: 'event://a'}\n", `the name "a b" is not`},
		"empty name":              {"events:\n  - {name: '', uri: 'event://a'}\n", "catalog.yaml:2: name must not be empty"},
		"duplicate name":          {"events:\n  - {name: a, uri: 'event://a'}\n  - {name: a, uri: 'event://b'}\n", `catalog.yaml:3: the name "a" was already given in line 2`},
		"neither uri":             {"events:\n  - {name: a}\n", "catalog.yaml:2: event a: uri, uriTemplate: one of both must be given"},
		"both uris":               {entry(fixed, "uriTemplate: event://a/{b}"), "catalog.yaml:4: event a.b: uri, uriTemplate: only one"},
		"uri with variables":      {entry("uri: event://a/{b}"), "use uriTemplate"},
		"template without":        {entry("uriTemplate: event://a/b"), "use uri"},
		"other scheme":            {entry("uri: https://a/b"), "catalog.yaml:3: event a.b: uri does not begin with event://"},
		"bad template":            {entry("uriTemplate: 'event://a/{b'"), "not a URI template (RFC 6570)"},
		"operator":                {entry("uriTemplate: 'event://a{/b}'"), "must be a whole segment"},
		"reserved operator":       {entry("uriTemplate: 'event://a/{+b}'"), "{+b}; only {name} is supported"},
		"explode":                 {entry("uriTemplate: 'event://a/{b*}'"), "{b*}; only"},
		"prefix":                  {entry("uriTemplate: 'event://a/{b:3}'"), "{b:3}; only"},
		"two in one":              {entry("uriTemplate: 'event://a/{b,c}'"), "{b,c}; only"},
		"beside text":             {entry("uriTemplate: 'event://a/x-{b}'"), "must be a whole segment"},
		"twice the variable":      {entry("uriTemplate: 'event://{b}/{b}'"), "{b} twice"},
		"seven variables":         {entry("uriTemplate: 'event://{a}/{b}/{c}/{d}/{e}/{f}/{g}'"), "has 7 variables; at most 6"},
		"not canonical":           {entry("uri: 'event://a/b:c'"), `must be written canonically: "b:c" as "b%3Ac"`},
		"query":                   {entry("uri: 'event://a/b?c'"), "must not have a query"},
		"overlap":                 {"events:\n  - {name: a, uriTemplate: 'event://x/{v}'}\n  - {name: b, uri: 'event://x/y'}\n", "catalog.yaml:3: event b: uri could match the same URI as event://x/{v} of event a in line 2"},
		"overlap crosswise":       {"events:\n  - {name: a, uriTemplate: 'event://x/{v}'}\n  - {name: b, uriTemplate: 'event://{v}/y'}\n", "could match the same URI"},
		"unknown mode":            {entry(fixed, "delivery: [push, mail]"), `catalog.yaml:4: event a.b: delivery: unknown mode "mail"`},
		"unknown order":           {entry(fixed, "order: fifo"), `catalog.yaml:4: event a.b: order: unknown order "fifo" (allowed: uri, none)`},
		"no mode":                 {entry(fixed, "delivery: []"), "delivery is empty"},
		"mode twice":              {entry(fixed, "delivery: [push, push]"), "listed twice"},
		"bad webhook type":        {entry(fixed, "webhookType: 'a b'"), "webhookType"},
		"bad pointer":             {entry(fixed, "filters: {s: severity}"), `"severity" is not a JSON pointer`},
		"bad escape":              {entry(fixed, "filters: {s: /a~2}"), "not a JSON pointer"},
		"empty pointer":           {entry(fixed, "filters: {s: ''}"), "event a.b: filter s must not be empty"},
		"filter is a variable":    {entry("uriTemplate: 'event://a/{s}'", "filters: {s: /s}"), `"s" is also a variable`},
		"filter named redact":     {entry(fixed, "filters: {redact: /s}"), "taken by the redact argument"},
		"bad redact":              {entry(fixed, "redact: [a]"), `"a" is not a JSON pointer`},
		"claim of no variable":    {entry(fixed, "access: {claims: {owner: org}}"), `"owner" is not a variable`},
		"unknown access member":   {entry(fixed, "access: {roles: [a]}"), `unknown member "roles"`},
		"bad scope":               {entry(fixed, "access: {scopes: ['a b']}"), "not an OAuth scope"},
		"schema is not a mapping": {entry(fixed, "payloadSchema: true"), "payloadSchema must be a mapping, not a truth value"},
		"invalid schema":          {entry(fixed, "payloadSchema:", "  properties:", "    a:", "      type: strnig"), "catalog.yaml:7: event a.b: payloadSchema is not a JSON Schema: /properties/a/type must be one of"},
		"network ref":             {entry(fixed, "payloadSchema:", "  $ref: https://example.com/s.json"), "event a.b: payloadSchema refers to https://example.com/s.json; references to other documents are not followed"},
		"file ref":                {entry(fixed, "payloadSchema:", "  $ref: file:///etc/passwd"), "not followed"},
		"relative ref":            {entry(fixed, "payloadSchema:", "  $ref: other.json"), "not followed"},
		"unknown metaschema":      {entry(fixed, "payloadSchema: {$schema: 'https://example.com/meta'}"), "payloadSchema"},
		"missing definition":      {entry(fixed, "payloadSchema: {$ref: '#/$defs/x'}"), "payloadSchema is not a JSON Schema"},
		"bad regex":               {entry(fixed, "payloadSchema: {pattern: '('}"), "payloadSchema"},
		"schema with binary":      {entry(fixed, "payloadSchema: {const: !!binary aGk=}"), "not possible in JSON"},
		"schema with infinity":    {entry(fixed, "payloadSchema: {maximum: .inf}"), "not a JSON number"},
		"schema with dup key":     {entry(fixed, "payloadSchema: {type: object, type: array}"), "already given"},
		"params of a fixed URI":   {entry(fixed, "paramsSchema: {type: object}"), "a fixed URI has no variables"},
		"params unknown":          {entry("uriTemplate: 'event://a/{b}'", "paramsSchema:", "  properties: {c: {}}"), `catalog.yaml:5: event a.b: paramsSchema: "c" is neither`},
		"params required filter":  {entry("uriTemplate: 'event://a/{b}'", "filters: {c: /c}", "paramsSchema: {required: [c]}"), `the required "c" is not a variable`},
		"number as title":         {entry(fixed, "title: 5"), "title must be text, not a number"},
		"null as uri":             {entry("uri:"), "uri must be text, not null"},
		"events is a mapping":     {"events: {a: b}\n", "must be a list"},
		"entry is a text":         {"events: [a]\n", "must be a mapping, not text"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tc.src))
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("got %v, want an invalid fault", err)
			}
			expect.Contains(t, "the fault", err.Error(), tc.want)
			expect.True(t, "the error begins with the file's name", strings.HasPrefix(err.Error(), "catalog.yaml"))
		})
	}
}

func TestParseReportsAllFaultsAtOnceAndBounded(t *testing.T) {
	_, err := Parse([]byte("events:\n  - {name: a, uri: 'http://x'}\n  - {name: a, delivery: [x]}\n"))
	want := []string{"catalog.yaml:2: event a: uri", "catalog.yaml:3: the name", "catalog.yaml:3: event a", "catalog.yaml:3: "}
	for _, w := range want {
		expect.Error(t, "the error", err, w)
	}
	if data, ok := fault.DataOf(err).([]strictyaml.Fault); !ok || data[0].Line != 2 {
		t.Errorf("got data %v", fault.DataOf(err))
	}
	var many strings.Builder
	many.WriteString("events:\n")
	for range 200 {
		many.WriteString("  - {name: '!'}\n")
	}
	_, err = Parse([]byte(many.String()))
	expect.Equal(t, "lines after the first", strings.Count(err.Error(), "\n"), 50)
	expect.True(t, "the error ends with the number of the other faults", strings.HasSuffix(err.Error(), "and 549 more"))
}

func TestParseIsBoundedAgainstAliasBombs(t *testing.T) {
	var b strings.Builder
	b.WriteString("events:\n  - name: a\n    uri: event://a\n    payloadSchema:\n      $comment: &l0 [lol, lol]\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&b, "      x%d: &l%d [*l%d, *l%d]\n", i, i, i-1, i-1)
	}
	expect.Error(t, "a large catalog", expect.ErrOf(Parse([]byte(b.String()))), "larger than")
	cyclic := "events:\n  - name: a\n    uri: event://a\n    payloadSchema: &s\n      properties: {a: *s}\n"
	expect.Error(t, "a schema that contains itself", expect.ErrOf(Parse([]byte(cyclic))))
}

func TestTheSampleCatalogIsValid(t *testing.T) {
	c := parse(t, string(expect.Value(os.ReadFile("../../../catalog.yaml"))(t)))
	fixed, templated := 0, 0
	for _, e := range c.Entries() {
		if e.Fixed() {
			fixed++
		} else {
			templated++
		}
		if e.Title == "" || e.Description == "" || e.PayloadSchema == nil {
			t.Errorf("%s has no title, description or payload schema", e.Name)
		}
	}
	expect.AtLeast(t, "the fixed entries", fixed, 1)
	expect.AtLeast(t, "the templated entries", templated, 4)
}

// A word of a schema that is misspelt is one fault, not one for each alternative that it could have meant.
func TestAMisspeltTypeIsOneFault(t *testing.T) {
	for schema, want := range map[string]string{
		"{type: objct}":                            `catalog.yaml:4: event a.b: payloadSchema is not a JSON Schema: /type must be one of "array", "boolean", "integer", "null", "number", "object", "string"`,
		"{properties: {n: {type: objct}}}":         "/properties/n/type must be one of",
		"{properties: {n: {type: [string, nul]}}}": "/properties/n/type/1 must be one of",
		"{type: 7}": "/type must be",
	} {
		_, err := Parse([]byte("events:\n  - name: a.b\n    uri: event://a/b\n    payloadSchema: " + schema + "\n"))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "not a JSON Schema") != 1 {
			t.Errorf("%s: got\n%v\nwant one fault with\n%s", schema, err, want)
		}
	}
}

func one(name string) []byte {
	return fmt.Appendf(nil, "events:\n  - {name: %s, uri: 'event://%s'}\n", name, name)
}

// replace stores a catalog and returns its version and whether it differs from the stored one.
func replace(t *testing.T, db store.DB, workspace string, next *Catalog) (version int64, changed bool) {
	t.Helper()
	e := expect.Value(Read(t.Context(), db, workspace))(t).Replace(next)
	expect.OK(t, settings.Write(t.Context(), db, e))
	return e.Version(), e.Changes()
}

func TestReplaceAndLoad(t *testing.T) {
	db := settingstest.New()
	ctx := t.Context()
	expect.Fault(t, "an empty store", expect.ErrOf(Load(ctx, db, "default")), fault.NotFound)
	for i, step := range []struct {
		src     []byte
		version int64
		changed bool
	}{
		{one("a"), 1, true},
		{one("a"), 1, false},
		{one("b"), 2, true},
	} {
		version, changed := replace(t, db, "default", parse(t, string(step.src)))
		if version != step.version || changed != step.changed {
			t.Errorf("step %d: got version %d, changed %v, want %d, %v", i, version, changed, step.version, step.changed)
		}
	}
	c, err := Load(ctx, db, "default")
	if err != nil || c.ByName("b") == nil || c.ByName("a") != nil {
		t.Errorf("got %v, %v, want the catalog with b", c, err)
	}
	expect.Fault(t, "another workspace", expect.ErrOf(Load(ctx, db, "other")), fault.NotFound)
}

// An event type may give up its order, but cannot get it back while the log has events that were stored without order.
func TestOrderCannotBeRestored(t *testing.T) {
	const ordered, unordered = "events: [{name: a, uri: 'event://a'}]", "events: [{name: a, uri: 'event://a', order: none}]"
	for _, tc := range []struct {
		name, before, after string
		refused             bool
	}{
		{"given up", ordered, unordered, false},
		{"kept up", unordered, unordered + "\n", false},
		{"given back", unordered, ordered, true},
		{"given back under another name", unordered, strings.Replace(ordered, "name: a", "name: b", 1), true},
		{"another URI", unordered, strings.Replace(ordered, "event://a", "event://b", 1), false},
		{"removed", unordered, "events: []", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := CheckChange(settingstest.New(), parse(t, tc.before), parse(t, tc.after))
			if tc.refused != fault.Is(err, fault.Invalid) || !tc.refused && err != nil {
				t.Errorf("got %v, want it refused: %v", err, tc.refused)
			}
		})
	}
}

func TestStoredServesChangesWithinMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		src := NewStored(db, nil, nil, nil)
		expect.Fault(t, "without a catalog", expect.ErrOf(src.Catalog(t.Context(), "default")), fault.NotFound)
		for _, name := range []string{"a", "b"} {
			replace(t, db, "default", parse(t, string(one(name))))
			time.Sleep(settings.MaxAge)
			if c, err := src.Catalog(t.Context(), "default"); err != nil || c.ByName(name) == nil {
				t.Errorf("EVS-14: got %v, %v after MaxAge, want the catalog with %s", c, err, name)
			}
		}
	})
}

func TestStatic(t *testing.T) {
	s := NewStatic(parse(t, string(one("a"))))
	_, err := Workspaces{Own: map[string]Source{"default": s}}.Catalog(t.Context(), "other")
	expect.Fault(t, "another workspace", err, fault.NotFound)
	s.Replace(parse(t, string(one("b"))))
	if c, err := s.Catalog(t.Context(), "default"); err != nil || c.ByName("b") == nil {
		t.Errorf("got %v, %v", c, err)
	}
	expect.OK(t, expect.ErrOf(NewStatic(parse(t, sample)).Catalog(t.Context(), "any")))
}

// EVX-17: a breaking change is marked with "!", an addition with "+".
func TestDiff(t *testing.T) {
	schema := func(members ...string) string { return entry(append([]string{"uri: event://a"}, members...)...) }
	base := "payloadSchema: {type: object, required: [a], properties: {a: {enum: [x, y]}}}"
	for name, tc := range map[string]struct{ before, after, want string }{
		"nothing":              {sample, sample, ""},
		"new":                  {"events: []\n", schema(), "+ is new"},
		"removed":              {schema(), "events: []\n", "! is removed"},
		"another URI":          {schema(), entry("uri: event://b"), "! its URI changes from event://a to event://b"},
		"words":                {schema(), schema("title: x"), "+ its title or description changes"},
		"webhook type":         {schema(), schema("webhookType: x"), "! its webhook type changes from a.b to x"},
		"a mode less":          {schema(), schema("delivery: [push, poll]"), "! the delivery mode webhook is removed"},
		"a mode more":          {schema("delivery: [push, poll]"), schema(), "+ the delivery mode webhook is added"},
		"order given up":       {schema(), schema("order: none"), "! its order changes from uri to none"},
		"order spelled out":    {schema(), schema("order: uri"), ""},
		"a filter more":        {schema(), schema("filters: {s: /s}"), "+ the filter s is added"},
		"a filter moved":       {schema("filters: {s: /s}"), schema("filters: {s: /t}"), "! the filter s changes from /s to /t"},
		"a filter less":        {schema("filters: {s: /s}"), schema(), "! the filter s is removed"},
		"more redaction":       {schema(), schema("redact: [/s]"), "! the redacted member /s is added"},
		"a scope more":         {schema(), schema("access: {scopes: [s]}"), "! access needs the scope s"},
		"a scope less":         {schema("access: {scopes: [s]}"), schema(), "+ access does not need the scope s any more"},
		"a claim":              {entry("uriTemplate: 'event://{a}'"), entry("uriTemplate: 'event://{a}'", "access: {claims: {a: org}}"), "! access ties {a} to the claim org"},
		"a claim less":         {entry("uriTemplate: 'event://{a}'", "access: {claims: {a: org}}"), entry("uriTemplate: 'event://{a}'"), "+ access does not tie {a} to the claim org any more"},
		"a schema":             {schema(), schema(base), "! a payload schema is added"},
		"no schema":            {schema(base), schema(), "! the payload schema is removed"},
		"an optional property": {schema(base), schema(strings.Replace(base, "]}}", "]}, b: {type: string}}", 1)), "+ the payload schema gains optional properties or annotations"},
		"an annotation":        {schema(base), schema(strings.Replace(base, "enum:", "title: A, enum:", 1)), "+ the payload schema gains optional properties or annotations"},
		"an annotation of an alternative": {
			schema("payloadSchema: {anyOf: [{type: string}, {type: object, properties: {a: {description: x}}}]}"),
			schema("payloadSchema: {anyOf: [{type: string, title: A}, {type: object, properties: {a: {description: y}, b: {}}}]}"),
			"+ the payload schema gains optional properties or annotations",
		},
		"another alternative": {
			schema("payloadSchema: {anyOf: [{type: string}, {type: number}]}"), schema("payloadSchema: {anyOf: [{type: string}, {type: integer}]}"),
			"! the payload schema changes at /anyOf/1/type",
		},
		"an alternative less": {schema("payloadSchema: {anyOf: [{type: string}, {type: number}]}"), schema("payloadSchema: {anyOf: [{type: string}]}"), "! the payload schema changes at /anyOf"},
		"a required property": {schema(base), schema(strings.Replace(base, "[a]", "[a, b]", 1)), "! the payload schema changes at /required (b)"},
		"a value more":        {schema(base), schema(strings.Replace(base, "[x, y]", "[x, y, z]", 1)), "! the payload schema changes at /properties/a/enum (z)"},
		"a property less":     {schema(base), schema("payloadSchema: {type: object, required: [a], properties: {}}"), "! the payload schema changes at /properties/a"},
		"closed":              {schema(base), schema(strings.Replace(base, "type: object", "type: object, additionalProperties: false", 1)), "! the payload schema changes at /additionalProperties"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, c := range Diff(parse(t, tc.before), parse(t, tc.after)) {
				mark := "+ "
				if c.Breaking {
					mark = "! "
				}
				got = append(got, mark+c.What)
			}
			expect.Equal(t, "the differences", strings.Join(got, "; "), tc.want)
		})
	}
}

// EVX-17: the stored contract of an event type shows later which of its parts a change breaks.
func TestContract(t *testing.T) {
	const base = `events: [{name: a, uriTemplate: "event://a/{x}", filters: {f: /f}, redact: [/r],
  paramsSchema: {type: object, properties: {x: {type: string}}}, payloadSchema: {type: object, properties: {f: {type: string}}}}]`
	entry := func(edit ...string) *Entry { return parse(t, strings.NewReplacer(edit...).Replace(base)).ByName("a") }
	for name, c := range map[string]struct {
		edit  []string
		want  string
		terms bool // whether the terms are the same
	}{
		"the same":              {nil, "", true},
		"a title":               {[]string{"name: a,", "name: a, title: A,"}, "", true},
		"a filter more":         {[]string{"{f: /f}", "{f: /f, g: /g}"}, "", false},
		"a filter less":         {[]string{"filters: {f: /f},", ""}, FeatureInput, false},
		"another template":      {[]string{"event://a/{x}", "event://b/{x}"}, FeatureInput, false},
		"stricter parameters":   {[]string{"{x: {type: string}}", "{x: {type: string, minLength: 3}}"}, FeatureInput, false},
		"an optional property":  {[]string{"{f: {type: string}}", "{f: {type: string}, g: {}}"}, "", false},
		"another property type": {[]string{"{f: {type: string}}", "{f: {type: integer}}"}, featurePayload, false},
		"another redaction":     {[]string{"redact: [/r]", "redact: [/r, /f]"}, featurePayload, false},
		"a lost redaction":      {[]string{"redact: [/r]", "redact: [/f]"}, featurePayload, false},
		"no redaction":          {[]string{"redact: [/r],", ""}, FeatureInput, false},
		"an access rule":        {[]string{"name: a,", "name: a, access: {scopes: [s]},"}, "", false},
		"no webhooks":           {[]string{"name: a,", "name: a, delivery: [push],"}, "", false},
	} {
		before, after := entry(), entry(c.edit...)
		kept := expect.Value(ParseContract(before.EncodeContract()))(t)
		expect.Equal(t, fmt.Sprintf("%s: the broken part", name), FindBreakingFeature(kept, after), c.want)
		expect.Equal(t, fmt.Sprintf("%s: the same terms", name), before.hashTerms() == after.hashTerms(), c.terms)
		expect.Equal(t, fmt.Sprintf("%s: the id of the stored contract", name), digest(kept.EncodeContract()), before.ContractID())
	}
}

// SSE-06: a workspace without its own catalog has the shared one. The versions continue after a removed catalog.
func TestSharedCatalog(t *testing.T) {
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	defer func() { _ = db.Close() }()
	src := NewStored(db, nil, nil, nil)
	for _, step := range []struct {
		workspace, name string
		version         int64
		own, other      string
		names           []string
	}{
		{Shared, "shared", 1, "shared", "shared", []string{Shared}},
		{"own", "own", 1, "own", "shared", []string{Shared, "own"}},
		{Shared, "later", 2, "own", "later", []string{Shared, "own"}},
		{"own", "", 2, "later", "later", []string{Shared}},
		{"own", "own", 3, "own", "later", []string{Shared, "own"}},
	} {
		var next *Catalog
		if step.name != "" {
			next = parse(t, string(one(step.name)))
		}
		if version, changed := replace(t, db, step.workspace, next); version != step.version || !changed {
			t.Fatalf("%+v: got version %d, changed %v", step, version, changed)
		}
		src.Invalidate()
		for workspace, want := range map[string]string{"own": step.own, "other": step.other} {
			c, err := src.Catalog(t.Context(), workspace)
			stored, failed := Load(t.Context(), db, workspace)
			if err != nil || failed != nil || c.ByName(want) == nil || stored.ByName(want) == nil {
				t.Errorf("%+v: got %v, %v and stored %v, %v for %s, want %s", step, c, err, stored, failed, workspace, want)
			}
			if src.UsesShared(t.Context(), workspace) != (want == step.other) {
				t.Errorf("%+v: got %v for whether %s shares, want %v", step, want != step.other, workspace, want == step.other)
			}
		}
		if names, err := Names(t.Context(), db); err != nil || !slices.Equal(names, step.names) {
			t.Errorf("%+v: got the names %q, %v, want %q", step, names, err, step.names)
		}
	}
}

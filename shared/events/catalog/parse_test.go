package catalog

import (
	"os"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
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
	c := expect.Value(Parse([]byte(src)))(t)
	return c
}

func TestParseReadsAllMembers(t *testing.T) {
	c := parse(t, sample)
	if got := len(c.Entries()); got != 3 {
		t.Fatalf("got %d entries, want 3", got)
	}
	pr, ci := c.ByName("github.pull_request"), c.ByName("ci.build_finished")
	if c.Entries()[0] != pr || c.Entries()[1] != ci {
		t.Error("entries are not in the order of the file")
	}
	if pr.Fixed() || pr.URI != "" || pr.URITemplate != "event://github/{owner}/{repo}/pull_request" {
		t.Errorf("got URI %q, template %q", pr.URI, pr.URITemplate)
	}
	expect.Equal(t, "the variables", strings.Join(pr.Variables(), " "), "owner repo")
	if pr.WebhookType != "github.pull_request" || ci.WebhookType != "ci.finished" {
		t.Errorf("got webhook types %q, %q", pr.WebhookType, ci.WebhookType)
	}
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
		"operator":                {entry("uriTemplate: 'event://a{/b}'"), `operator "/" in {/b}; only {name} is supported`},
		"reserved operator":       {entry("uriTemplate: 'event://a/{+b}'"), `operator "+"`},
		"explode":                 {entry("uriTemplate: 'event://a/{b*}'"), "modifier in {b*}"},
		"prefix":                  {entry("uriTemplate: 'event://a/{b:3}'"), "modifier in {b:3}"},
		"two in one":              {entry("uriTemplate: 'event://a/{b,c}'"), "several variables in {b,c}"},
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
		"network ref":             {entry(fixed, "payloadSchema:", "  $ref: https://example.com/s.json"), "catalog.yaml:5: event a.b: payloadSchema refers to https://example.com/s.json; references to other documents are not followed"},
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
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got\n%s\nwant it to contain\n%s", err, tc.want)
			}
			if !strings.HasPrefix(err.Error(), "catalog.yaml") {
				t.Errorf("got %q without the file's name", err)
			}
		})
	}
}

func TestParseReportsAllFaultsAtOnceAndBounded(t *testing.T) {
	_, err := Parse([]byte("events:\n  - {name: a, uri: 'http://x'}\n  - {name: a, delivery: [x]}\n"))
	want := []string{"catalog.yaml:2: event a: uri", "catalog.yaml:3: the name", "catalog.yaml:3: event a", "catalog.yaml:3: "}
	for _, w := range want {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("got %v, want it to contain %q", err, w)
		}
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
	if !strings.HasSuffix(err.Error(), "and 549 more") {
		t.Errorf("got %q at the end", err.Error()[len(err.Error())-40:])
	}
}

func TestParseIsBoundedAgainstAliasBombs(t *testing.T) {
	var b strings.Builder
	b.WriteString("events:\n  - name: a\n    uri: event://a\n    payloadSchema:\n      $comment: &l00 [lol, lol]\n")
	for i := 1; i < 40; i++ {
		b.WriteString("      x" + string(rune('A'+i)) + ": &l" + itoa(i) + " [*l" + itoa(i-1) + ", *l" + itoa(i-1) + "]\n")
	}
	if _, err := Parse([]byte(b.String())); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("got %v", err)
	}
	cyclic := "events:\n  - name: a\n    uri: event://a\n    payloadSchema: &s\n      properties: {a: *s}\n"
	if _, err := Parse([]byte(cyclic)); err == nil {
		t.Error("a schema that contains itself was accepted")
	}
}

func itoa(i int) string { return string(rune('0'+i/10)) + string(rune('0'+i%10)) }

func TestTheSampleCatalogIsValid(t *testing.T) {
	src := expect.Value(os.ReadFile("../../../catalog.yaml"))(t)
	c := parse(t, string(src))
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
	if fixed < 1 || templated < 4 {
		t.Errorf("got %d fixed and %d templated entries", fixed, templated)
	}
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

package catalog

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestValidatePayload(t *testing.T) {
	c := parse(t, `events:
  - name: a
    uri: event://a
    payloadSchema:
      type: object
      required: [action]
      additionalProperties: false
      properties:
        action: {enum: [opened, closed]}
        n: {type: integer, minimum: 1, multipleOf: 2}
        a/b: {type: string, maxLength: 3}
        list: {type: array, items: {type: string}, uniqueItems: true}
        any: {anyOf: [{type: string}, {type: boolean}]}
        when: {type: string, format: date-time}
        choice: {enum: [1, null, {x: true}]}
  - {name: b, uri: "event://b"}
`)
	a := c.ByName("a")
	for name, tc := range map[string]struct {
		payload string
		kind    fault.Kind
		want    string
	}{
		"EVS-07 a fitting payload":                        {`{"action":"opened","n":2,"list":["x"]}`, 0, ""},
		"EVS-07 a missing member is shown at its object":  {`{}`, fault.Unprocessable, `[{"pointer":"","message":"lacks \"action\""}]`},
		"EVS-07 each fault has its pointer":               {`{"action":"x","n":"2"}`, fault.Unprocessable, `[{"pointer":"/action","message":"must be one of \"opened\", \"closed\""},{"pointer":"/n","message":"must be integer, not string"}]`},
		"EVS-07 allowed values are shown as JSON":         {`{"action":"opened","choice":2}`, fault.Unprocessable, `[{"pointer":"/choice","message":"must be one of 1, null, {\"x\":true}"}]`},
		"EVS-07 pointers are escaped":                     {`{"action":"opened","a/b":"long"}`, fault.Unprocessable, `[{"pointer":"/a~1b","message":"maxLength: got 4, want 3"}]`},
		"EVS-07 unknown members are shown one by one":     {`{"action":"opened","x":1,"y":2}`, fault.Unprocessable, `[{"pointer":"/x","message":"is not a member of the schema"},{"pointer":"/y","message":"is not a member of the schema"}]`},
		"EVS-07 inside of lists":                          {`{"action":"opened","list":["a",1]}`, fault.Unprocessable, `[{"pointer":"/list/1","message":"must be string, not number"}]`},
		"EVS-07 alternatives":                             {`{"action":"opened","any":1}`, fault.Unprocessable, `[{"pointer":"/any","message":"fits none of the alternatives (anyOf)"},{"pointer":"/any","message":"must be boolean, not number"},{"pointer":"/any","message":"must be string, not number"}]`},
		"EVS-07 a number that would cost too much":        {`{"action":"opened","n":1e999999}`, fault.Unprocessable, `[{"pointer":"/n","message":"is a number with too many digits or too large an exponent"}]`},
		"EVS-07 big integers are exact":                   {`{"action":"opened","n":9007199254740993}`, fault.Unprocessable, `[{"pointer":"/n","message":"must be a multiple of 2"}]`},
		"EVS-07 format is an annotation, as 2020-12 says": {`{"action":"opened","when":"soon"}`, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := a.ValidatePayload([]byte(tc.payload))
			if tc.want == "" {
				expect.OK(t, err)
				return
			}
			got, _ := json.Marshal(fault.DataOf(err))
			if fault.KindOf(err) != tc.kind || !sameJSON(string(got), tc.want) {
				t.Errorf("got %v %s\nwant %v %s", fault.KindOf(err), got, tc.kind, tc.want)
			}
		})
	}
	expect.OK(t, c.ByName("b").ValidatePayload([]byte(`1`))) // an entry without a schema takes any payload
}

func sameJSON(a, b string) bool {
	var x, y any
	return json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && fmt.Sprint(x) == fmt.Sprint(y)
}

func TestSchemaFaultsAreBoundedAndDoNotEcho(t *testing.T) {
	c := parse(t, entry("uri: event://a", "payloadSchema: {items: {type: string, pattern: '^a$'}, additionalProperties: false}"))
	secret := strings.Repeat("hunter2", 100)
	payload, _ := json.Marshal([]string{secret, secret})
	err := c.ByName("a.b").ValidatePayload(payload)
	out, _ := json.Marshal(fault.DataOf(err))
	expect.Lacks(t, "the error", string(out)+err.Error(), "hunter2")
	many, _ := json.Marshal(make([]int, 1000))
	err = c.ByName("a.b").ValidatePayload(many)
	expect.Equal(t, "faults", len(fault.DataOf(err).([]jsonpointer.Fault)), maxSchemaFaults)
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	expect.Fault(t, "200 levels", c.ByName("a.b").ValidatePayload([]byte(deep)), fault.Unprocessable)
}

func TestValidateParams(t *testing.T) {
	c := parse(t, `events:
  - name: issue
    uriTemplate: event://{owner}/{number}/{open}
    filters: {label: /label}
    paramsSchema:
      type: object
      required: [owner]
      properties:
        owner: {pattern: "^[a-z]+$"}
        number: {type: integer}
        open: {type: boolean}
        label: {type: string}
`)
	e := c.ByName("issue")
	for name, tc := range map[string]struct {
		vars map[string]string
		want string
	}{
		"EVX-03 all given, texts read as their type": {map[string]string{"owner": "acme", "number": "42", "open": "true"}, ""},
		"EVX-03 an optional one omitted":             {map[string]string{"owner": "acme"}, ""},
		"EVX-03 a required one omitted":              {map[string]string{"number": "1"}, `lacks "owner"`},
		"EVX-03 a value that breaks the schema":      {map[string]string{"owner": "ACME"}, "owner must match"},
		"EVX-03 a text where a number belongs":       {map[string]string{"owner": "acme", "number": "x"}, "number must be integer"},
		"EVX-03 an unknown one":                      {map[string]string{"owner": "acme", "colour": "red"}, "colour is not a variable"},
	} {
		t.Run(name, func(t *testing.T) {
			err := e.ValidateParams(tc.vars)
			if tc.want == "" {
				expect.OK(t, err)
				return
			}
			expect.Fault(t, "the error", err, fault.Invalid, tc.want)
		})
	}
}

func TestInputSchema(t *testing.T) {
	c := parse(t, `events:
  - name: a
    uriTemplate: event://{owner}/{repo}
    filters: {severity: /severity, kind: /kind}
    redact: [/author]
    paramsSchema: {type: object, required: [owner], properties: {owner: {type: string, minLength: 2}, kind: {enum: [x, y]}}}
  - {name: b, uri: "event://b"}
  - name: c
    uriTemplate: event://c/{id}/ordered
    filters: {total: /order/total, at: /at, score: /scores, text: /text, own: /order/total, item: /items/0/price}
    paramsSchema: {type: object, properties: {own: {type: string}}}
    payloadSchema:
      type: object
      properties:
        order: {type: object, properties: {total: {type: integer}}}
        at: {type: string, format: date-time}
        scores: {type: array, items: {type: number}}
        text: {type: string}
        items: {type: array, items: {type: object, properties: {price: {type: number}}}}
`)
	for name, tc := range map[string]struct{ entry, args, want string }{
		"EVX-02 variables, filters and redact": {"a", `{"owner":"acme","repo":"x","severity":"high","kind":["x","y"],"redact":true}`, ""},
		"EVX-02 a list of values":              {"a", `{"owner":"acme","severity":["high","low"]}`, ""},
		"EVX-02 required is kept":              {"a", `{}`, "lacks"},
		"EVX-02 an unknown argument":           {"a", `{"owner":"acme","x":1}`, "not a member"},
		"EVX-02 a filter with a schema":        {"a", `{"owner":"acme","kind":"z"}`, "alternatives"},
		"EVX-02 a wrong type":                  {"a", `{"owner":5}`, "must be string"},
		"RCH-09 a range of integers":           {"c", `{"total":{"$gte":100,"$lt":500}}`, ""},
		"RCH-09 a value there":                 {"c", `{"total":100}`, ""},
		"RCH-09 a list there":                  {"c", `{"total":[100,200]}`, ""},
		"RCH-09 a range of times":              {"c", `{"at":{"$gt":"2026-11-23T00:00:00Z"}}`, ""},
		"RCH-09 of the elements of a list":     {"c", `{"score":{"$lte":0.5}}`, ""},
		"RCH-09 of an element":                 {"c", `{"item":{"$lte":0.5}}`, ""},
		"RCH-09 no range of texts":             {"c", `{"text":{"$gt":"a"}}`, "alternatives"},
		"RCH-09 none against the declaration":  {"c", `{"own":{"$gt":1}}`, "alternatives"},
		"RCH-09 an empty range":                {"c", `{"total":{}}`, "alternatives"},
		"RCH-09 an unknown bound":              {"c", `{"total":{"$eq":1}}`, "alternatives"},
		"RCH-09 a text as a bound":             {"c", `{"total":{"$gt":"1"}}`, "alternatives"},
		"EVX-02 a fixed URI takes none":        {"b", `{}`, ""},
		"EVX-02 a fixed URI refuses any":       {"b", `{"a":1}`, "not a member"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSchema(c.ByName(tc.entry).InputSchema())
			var v any
			_ = json.Unmarshal([]byte(tc.args), &v)
			out, _ := json.Marshal(expect.Value(s.faults(v))(t))
			if (tc.want == "") != (string(out) == "null") || !strings.Contains(string(out), tc.want) {
				t.Errorf("got %s, want %q", out, tc.want)
			}
		})
	}
}

func TestSchemasAreCompiledAndUsedConcurrently(t *testing.T) {
	c := expect.Value(parseStored([]byte(sample)))(t)
	e := c.ByName("github.pull_request")
	if _, err := parseStored([]byte("events:\n  - {name: a, uri: 'event://a', payloadSchema: {type: 5}}\n")); err != nil {
		t.Errorf("a stored schema is compiled before anybody needs it: %v", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			other, err := Parse([]byte(sample))
			if err != nil || other.Fingerprint() != c.Fingerprint() {
				t.Error(err)
			}
			if err := e.ValidatePayload([]byte(`{"action":"opened","number":1}`)); err != nil {
				t.Error(err)
			}
			expect.Fault(t, "a payload that breaks the schema", e.ValidatePayload([]byte(`{"action":"x"}`)), fault.Unprocessable)
			expect.Fault(t, "a variable that breaks the schema", e.ValidateParams(map[string]string{"owner": "!"}), fault.Invalid)
		})
	}
	wg.Wait()
}

func backendTypes(types ...BackendType) map[string]BackendTypes {
	return map[string]BackendTypes{"shop": {Prefix: "shop_", Scopes: []string{"shop"}, Types: types}}
}

// GWN-20: the operator's event types keep their names and URIs, and types of backends come after them.
func TestBackendTypesFollowTheOperators(t *testing.T) {
	base := expect.Value(Parse([]byte("events:\n  - {name: shop_taken, uri: event://ci/build}\n")))(t)
	c := base.addBackends(backendTypes(BackendType{Name: "taken"}, BackendType{Name: "order.shipped", PayloadSchema: json.RawMessage(`{"type":"object"}`)}))
	var names []string
	for _, e := range c.Entries() {
		names = append(names, e.Name)
	}
	expect.List(t, "the names", names, []string{"shop_taken", "shop_order.shipped"})
	expect.Equal(t, "the backend of the operator's event type", c.ByName("shop_taken").Backend, "")
	e := c.ByName("shop_order.shipped")
	uri := e.Expand(expect.Value(e.BindArguments(json.RawMessage(`{"order":"1"}`), auth.Principal{}))(t))
	if found, _, ok := c.Match(uri); !ok || found != e {
		t.Errorf("%s matches %v", uri, found)
	}
	backend, own, arguments, ok := ParseBackendURI(uri)
	expect.Equal(t, "the parts of the URI", fmt.Sprint(backend, " ", own, " ", string(arguments), " ", ok), `shop order.shipped {"order":"1"} true`)
	expect.Equal(t, "the backend's event types below a parent URI", len(c.ListUnder("event://~shop")), 0)
	expect.Differ(t, "the fingerprint with the backend's types", base.Fingerprint(), c.Fingerprint())
	_, err := NewBackendEntry("shop", BackendTypes{}, BackendType{Name: "a", Title: "a\u202eb"})
	expect.Fault(t, "a title that turns the direction of text", err, fault.Invalid)
	_, err = e.BindArguments(json.RawMessage(`{"order":"`+strings.Repeat("1", maxBackendArguments)+`"}`), auth.Principal{})
	expect.Fault(t, "long arguments", err, fault.Invalid)
}

// GWN-20: an event type of the operator whose first segment is a variable does not reach URIs of backends, nor hide their types.
func TestOpenTemplatesEndAtBackends(t *testing.T) {
	base := parse(t, "events:\n  - {name: any, uriTemplate: \"event://{tenant}/{kind}/{id}\"}\n")
	const uri = "event://~shop/order.shipped/e30"
	if e, _, ok := base.Match(uri); ok {
		t.Errorf("%s matches %s", uri, e.Name)
	}
	c := base.addBackends(backendTypes(BackendType{Name: "order.shipped"}))
	if e, _, ok := c.Match(uri); !ok || e.Backend != "shop" {
		t.Errorf("%s matches %v, want the event type of the backend", uri, e)
	}
	for _, parent := range []string{"event://~shop", "event://~shop/order.shipped"} {
		expect.Len(t, "the event types below "+parent, c.ListUnder(parent), 0)
	}
	if e, _, ok := c.Match("event://acme/order/1"); !ok || e.Name != "any" {
		t.Error("the event type of the operator lost its URIs")
	}
	_, err := Parse([]byte("events:\n  - {name: any, uri: event://~shop/order}\n"))
	expect.Fault(t, "a URI of a backend in the catalog", err, fault.Invalid)
}

// GWN-20: the cost of a schema grows with the size that it has without references, and a check has a limit.
func TestSchemaCost(t *testing.T) {
	for schema, want := range map[string]int{
		`{"type":"object"}`: 2,
		`{"$defs":{"a":{"type":"string"}},"properties":{"x":{"$ref":"#/$defs/a"},"y":{"$ref":"#/$defs/a"}}}`: 13,
		`{"properties":{"x":{"$ref":"#"}}}`:                       tooExpensive,
		`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/a"}}}`: tooExpensive,
		`{"$ref":"other.json"}`:                                   tooExpensive,
		`{"$dynamicRef":"#x"}`:                                    tooExpensive,
		`{"items":{"$id":"http://x/y"}}`:                          tooExpensive,
		`{"$schema":"http://json-schema.org/draft-07/schema#"}`:   2,
		// In draft 4 the reference is to the x below the id, and not to the one that costs nothing.
		`{"$schema":"http://json-schema.org/draft-04/schema#","definitions":{"x":{}},"allOf":[
			{"id":"http://x/y","definitions":{"x":{"allOf":[{"$ref":"#"},{"$ref":"#"}]}},"allOf":[{"$ref":"#/definitions/x"}]}]}`: tooExpensive,
		`{"pattern":"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"}`:                             22,
		`{"pattern":"a{0,1000}a{0,1000}a{0,1000}a{0,1000}a{0,1000}"}`:                           tooExpensive,
		`{"patternProperties":{"(a{0,100}){10}(a{0,100}){10}(a{0,100}){10}(a{0,100}){10}":{}}}`: tooExpensive,
	} {
		expect.Equal(t, schema, min(schemaCost(json.RawMessage(schema)), tooExpensive), want)
	}
	large := `{"properties":{"a":{"enum":["a"]},"b":{"enum":["x"` + strings.Repeat(`,"x"`, 500) + `]}}}`
	e := expect.Value(NewBackendEntry("shop", BackendTypes{}, BackendType{Name: "a", PayloadSchema: json.RawMessage(large)}))(t)
	expect.OK(t, e.ValidatePayload([]byte(`{"a":"a"}`)))
	expect.Fault(t, "a large payload", e.ValidatePayload([]byte(`{"c":"`+strings.Repeat("x", 200_000)+`"}`)), fault.Unprocessable)
}

// GWN-20: given a name that two backends have, or a backend and the operator, then the one that is hidden is reported, and logged once.
func TestConflictsOfEventTypesAreReported(t *testing.T) {
	base := expect.Value(Parse([]byte("events:\n  - {name: taken, uri: event://ci/build}\n")))(t)
	var log bytes.Buffer
	version := int64(0)
	m := merger{
		log: slog.New(slog.NewTextHandler(&log, nil)),
		stored: func(context.Context, string, refresh.Freshness) (map[string]BackendTypes, int64, error) {
			version++
			return map[string]BackendTypes{
				"a": {Types: []BackendType{{Name: "taken"}, {Name: "x.shipped"}, {Name: "x.shipped"}}},
				"b": {Prefix: "x.", Types: []BackendType{{Name: "shipped"}, {Name: "paid"}}},
			}, version, nil
		},
	}
	for range 2 {
		c := expect.Value(m.add(t.Context(), "w", base, false))(t)
		expect.List(t, "the warnings about a", c.Warnings("a"), []string{"its event type taken is not listed, because the catalog has one with this name"})
		expect.List(t, "the warnings about b", c.Warnings("b"), []string{"its event type x.shipped is not listed, because backend a has one with this name"})
		expect.Equal(t, "the owner of x.shipped", c.ByName("x.shipped").Backend, "a")
	}
	expect.Equal(t, "the lines in the log", strings.Count(log.String(), "backend event types not listed"), 2)
}

// GWN-20: given backends whose event types are together too large to store, then the largest are refused, with a warning, and the others
// are stored. They are listed again as soon as there is room.
func TestLargeEventTypesAreRefused(t *testing.T) {
	db := settingstest.New()
	large := func(prefix string, parts int) BackendTypes { // of 4,000 bytes, which compress to 3,000
		of, random := BackendTypes{Prefix: prefix}, rand.NewChaCha8([32]byte{byte(parts)})
		for i := range parts {
			part := make([]byte, 3000)
			_, _ = random.Read(part)
			of.Types = append(of.Types, BackendType{Name: fmt.Sprint("t", i), Description: base64.StdEncoding.EncodeToString(part)})
		}
		return of
	}
	put := func(name string, types BackendTypes) (changed bool) {
		t.Helper()
		return expect.Value(ReplaceBackends(t.Context(), db, "w", func(all map[string]BackendTypes) { all[name] = types }))(t)
	}
	listed := func(want ...string) *Catalog {
		t.Helper()
		c := expect.Value(AddBackends(db, NewStatic(&Catalog{})).Catalog(t.Context(), "w"))(t)
		var backends []string
		for _, e := range c.Entries() {
			backends = append(backends, e.Backend)
		}
		expect.List(t, "the backends with event types", slices.Compact(backends), want)
		return c
	}
	honest := BackendTypes{Prefix: "h.", Types: []BackendType{{Name: "t", Description: strings.Repeat("honest ", 500)}}}
	second := large("s.", 66)
	put("first", large("f.", 64))
	put("honest", honest)
	put("second", second)
	if w := listed("first", "honest").Warnings("second"); len(w) != 1 || !strings.Contains(w[0], "too large") {
		t.Errorf("got the warnings %q", w)
	}
	expect.True(t, "the refused types do not change the stored ones when they are listed again", !put("second", second))
	put("first", BackendTypes{})
	put("second", second)
	listed("honest", "second")
}

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
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/test/expect"
)

func backendTypes(types ...BackendType) map[string]BackendTypes {
	return map[string]BackendTypes{"shop": {Prefix: "shop_", Scopes: []string{"shop"}, Types: types}}
}

// GWN-20: the operator's event types keep their names and URIs, and types of backends come after them.
func TestBackendTypesFollowTheOperators(t *testing.T) {
	base := expect.Value(Parse([]byte("events:\n  - {name: shop_taken, uri: event://ci/build}\n")))(t)
	c := base.with(backendTypes(BackendType{Name: "taken"}, BackendType{Name: "order.shipped", PayloadSchema: json.RawMessage(`{"type":"object"}`)}))
	var names []string
	for _, e := range c.Entries() {
		names = append(names, e.Name)
	}
	expect.List(t, "the names", names, []string{"shop_taken", "shop_order.shipped"})
	expect.Equal(t, "the backend of the operator's event type", c.ByName("shop_taken").Backend, "")
	e := c.ByName("shop_order.shipped")
	vars, err := e.BindArguments(json.RawMessage(`{"order":"1"}`))
	expect.OK(t, err)
	uri := e.Expand(vars)
	if found, _, ok := c.Match(uri); !ok || found != e {
		t.Errorf("%s matches %v", uri, found)
	}
	backend, own, arguments, ok := ParseBackendURI(uri)
	expect.Equal(t, "the parts of the URI", fmt.Sprint(backend, " ", own, " ", string(arguments), " ", ok), `shop order.shipped {"order":"1"} true`)
	if len(c.Under("event://~shop")) > 0 {
		t.Error("a parent URI has event types of a backend, whose arguments other callers chose")
	}
	if base.Fingerprint() == c.Fingerprint() {
		t.Error("the fingerprint does not depend on the types of backends")
	}
	_, err = NewBackendEntry("shop", BackendTypes{}, BackendType{Name: "a", Title: "a\u202eb"})
	expect.Fault(t, "a title that turns the direction of text", err, fault.Invalid)
	_, err = e.BindArguments(json.RawMessage(`{"order":"` + strings.Repeat("1", maxBackendArguments) + `"}`))
	expect.Fault(t, "long arguments", err, fault.Invalid)
}

// GWN-20: an event type of the operator whose first segment is a variable does not reach URIs of backends, nor hide their types.
func TestOpenTemplatesEndAtBackends(t *testing.T) {
	base, err := Parse([]byte("events:\n  - {name: any, uriTemplate: \"event://{tenant}/{kind}/{id}\"}\n"))
	expect.OK(t, err)
	const uri = "event://~shop/order.shipped/e30"
	if e, _, ok := base.Match(uri); ok {
		t.Errorf("%s matches %s", uri, e.Name)
	}
	c := base.with(backendTypes(BackendType{Name: "order.shipped"}))
	if e, _, ok := c.Match(uri); !ok || e.Backend != "shop" {
		t.Errorf("%s matches %v, want the event type of the backend", uri, e)
	}
	for _, parent := range []string{"event://~shop", "event://~shop/order.shipped"} {
		if below := c.Under(parent); len(below) > 0 {
			t.Errorf("%s is a parent of %s", parent, below[0].Name)
		}
	}
	if e, _, ok := c.Match("event://acme/order/1"); !ok || e.Name != "any" {
		t.Error("the event type of the operator lost its URIs")
	}
	_, err = Parse([]byte("events:\n  - {name: any, uri: event://~shop/order}\n"))
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
	large := `{"properties":{` + strings.TrimSuffix(strings.Repeat(`"a":{"enum":["a","b","c","d","e","f","g","h"]},`, 1), ",") + `,"b":{"enum":[` + strings.TrimSuffix(strings.Repeat(`"x",`, 500), ",") + `]}}}`
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
		stored: func(context.Context, string, bool) (map[string]BackendTypes, int64, error) {
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
		changed = expect.Value(ReplaceBackends(t.Context(), db, "w", func(all map[string]BackendTypes) { all[name] = types }))(t)
		return changed
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
	if put("second", second) {
		t.Error("the refused types change the stored ones when they are listed again")
	}
	put("first", BackendTypes{})
	put("second", second)
	listed("honest", "second")
}

package catalog

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

func one(name string) []byte {
	return fmt.Appendf(nil, "events:\n  - {name: %s, uri: 'event://%s'}\n", name, name)
}

// replace stores a catalog and returns its version and whether it differs from the stored one.
func replace(t *testing.T, db store.DB, workspace string, next *Catalog) (version int64, changed bool) {
	t.Helper()
	d := expect.Value(Read(t.Context(), db, workspace))(t)
	e := d.Replace(next)
	expect.OK(t, settings.Write(t.Context(), db, e))
	return e.Version(), e.Changes()
}

func TestReplaceAndLoad(t *testing.T) {
	db := settingstest.New()
	ctx := t.Context()
	if _, err := Load(ctx, db, "default"); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v from an empty store, want not found", err)
	}
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
	if _, err := Load(ctx, db, "other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("another workspace: got %v, want not found", err)
	}
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
		if _, err := src.Catalog(t.Context(), "default"); !fault.Is(err, fault.NotFound) {
			t.Errorf("got %v without a catalog, want not found", err)
		}
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
	if _, err := (Workspaces{Own: map[string]Source{"default": s}}).Catalog(t.Context(), "other"); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	s.Replace(parse(t, string(one("b"))))
	if c, err := s.Catalog(t.Context(), "default"); err != nil || c.ByName("b") == nil {
		t.Errorf("got %v, %v", c, err)
	}
	if _, err := NewStatic(parse(t, sample)).Catalog(t.Context(), "any"); err != nil {
		t.Error(err)
	}
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
		"a required property":  {schema(base), schema(strings.Replace(base, "[a]", "[a, b]", 1)), "! the payload schema changes at /required (b)"},
		"a value more":         {schema(base), schema(strings.Replace(base, "[x, y]", "[x, y, z]", 1)), "! the payload schema changes at /properties/a/enum (z)"},
		"a property less":      {schema(base), schema("payloadSchema: {type: object, required: [a], properties: {}}"), "! the payload schema changes at /properties/a"},
		"closed":               {schema(base), schema(strings.Replace(base, "type: object", "type: object, additionalProperties: false", 1)), "! the payload schema changes at /additionalProperties"},
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
		"an access rule":        {[]string{"name: a,", "name: a, access: {scopes: [s]},"}, "", false},
		"no webhooks":           {[]string{"name: a,", "name: a, delivery: [push],"}, "", false},
	} {
		before, after := entry(), entry(c.edit...)
		kept := expect.Value(ParseContract(before.Contract()))(t)
		expect.Equal(t, fmt.Sprintf("%s: the broken part", name), Broken(kept, after), c.want)
		expect.Equal(t, fmt.Sprintf("%s: the same terms", name), before.terms() == after.terms(), c.terms)
		expect.Equal(t, fmt.Sprintf("%s: the id of the stored contract", name), digest(kept.Contract()), before.ContractID())
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
		src.Written()
		for workspace, want := range map[string]string{"own": step.own, "other": step.other} {
			c, err := src.Catalog(t.Context(), workspace)
			stored, failed := Load(t.Context(), db, workspace)
			if err != nil || failed != nil || c.ByName(want) == nil || stored.ByName(want) == nil {
				t.Errorf("%+v: got %v, %v and stored %v, %v for %s, want %s", step, c, err, stored, failed, workspace, want)
			}
			if src.Shares(t.Context(), workspace) != (want == step.other) {
				t.Errorf("%+v: got %v for whether %s shares, want %v", step, want != step.other, workspace, want == step.other)
			}
		}
		if names, err := Names(t.Context(), db); err != nil || !slices.Equal(names, step.names) {
			t.Errorf("%+v: got the names %q, %v, want %q", step, names, err, step.names)
		}
	}
}

package ready_test

import (
	"encoding/json"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source/ready"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// variables matches the references to secrets in a configuration.
var variables = regexp.MustCompile(`"env:([A-Z_]+)"`)

func TestProviders(t *testing.T) {
	for _, p := range ready.Providers() {
		t.Run("SRC-06 "+p.Name+" explains each secret", func(t *testing.T) {
			if u, err := url.Parse(p.Documentation); err != nil || u.Scheme != "https" || p.Title == "" {
				t.Errorf("title %q, documentation %q", p.Title, p.Documentation)
			}
			text, steps := string(ready.Config(p)), strings.Join(p.Setup, "\n")
			for _, m := range variables.FindAllStringSubmatch(text, -1) {
				if !strings.Contains(steps, m[1]) {
					t.Errorf("no step explains %s", m[1])
				}
			}
			for line := range strings.Lines(text) {
				if len(line) > 0 && strings.HasPrefix(line, "  # ") && len(line) > 121 {
					t.Errorf("a comment of %d characters: %s", len(line), line)
				}
			}
		})
	}
	if !slices.IsSorted(ready.Names()) || !slices.Contains(ready.Names(), "github") {
		t.Errorf("the names are %v", ready.Names())
	}
}

func TestSelect(t *testing.T) {
	t.Run("SRC-06 the named providers are returned once each, in the order of the names", func(t *testing.T) {
		chosen, err := ready.Select("stripe", "github", "stripe")
		if err != nil || len(chosen) != 2 || chosen[0].Name != "stripe" || chosen[1].Name != "github" {
			t.Errorf("%v, %v", chosen, err)
		}
	})
	t.Run("SRC-06 an unknown provider is refused, and the error lists the known ones", func(t *testing.T) {
		_, err := ready.Select("github", "gitea")
		if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Public(err), `"gitea"`) || !strings.Contains(fault.Public(err), "github, linear") {
			t.Errorf("%v", err)
		}
	})
}

func TestWrite(t *testing.T) {
	all := ready.Providers()
	files := func(dir string) (texts [2]string) {
		for i, name := range []string{ready.CatalogFile, ready.ConfigFile} {
			text := expect.Value(os.ReadFile(filepath.Join(dir, name)))(t)
			texts[i] = string(text)
		}
		return texts
	}
	t.Run("SRC-06 all providers go into one catalog and one configuration", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "new", "folder")
		expect.OK(t, ready.Write(dir, all, false))
		texts := files(dir)
		cat := expect.Value(catalog.Parse([]byte(texts[0])))(t)
		for _, name := range []string{"github.pull_request", "stripe.customer.subscription", "cloudwatch.alarm"} {
			if cat.ByName(name) == nil {
				t.Errorf("the catalog lacks %s", name)
			}
		}
		for _, p := range all {
			if !strings.Contains(texts[1], "# "+p.Title+", "+p.Documentation) {
				t.Errorf("the configuration does not name %s", p.Title)
			}
		}
	})
	t.Run("SRC-06 existing files are kept unless force is set", func(t *testing.T) {
		dir := t.TempDir()
		own := filepath.Join(dir, ready.ConfigFile)
		expect.OK(t, os.WriteFile(own, []byte("keys: []\n"), 0o600))
		err := ready.Write(dir, all[:1], false)
		if !fault.Is(err, fault.Conflict) || !strings.Contains(fault.Public(err), own+" exists") || !strings.Contains(fault.Public(err), "--force") {
			t.Errorf("%v", err)
		}
		if _, err := os.Stat(filepath.Join(dir, ready.CatalogFile)); err == nil {
			t.Error("the other file was written")
		}
		if text, _ := os.ReadFile(own); string(text) != "keys: []\n" {
			t.Errorf("the file is now %q", text)
		}
		expect.OK(t, ready.Write(dir, all[:1], true))
		if got := files(dir); !strings.HasPrefix(got[1], "# Sources") {
			t.Errorf("by force: %q", got[1])
		}
	})
	t.Run("SRC-06 an empty list of providers is refused", func(t *testing.T) {
		if err := ready.Write(t.TempDir(), nil, false); !fault.Is(err, fault.Invalid) {
			t.Errorf("%v", err)
		}
	})
}

// other returns an argument that an event with the given value does not match.
func other(value any) any {
	switch v := value.(type) {
	case bool:
		return !v
	case map[string]any: // a range
		return map[string]any{"$gt": 1_000_000_000}
	case []any:
		return []any{"another", "and-another"}
	}
	return "another"
}

// follower polls for events with fixed arguments.
type follower struct {
	client    *client.Client
	name      string
	arguments map[string]any
	cursor    any
}

func follow(t *testing.T, base, name string, arguments map[string]any) *follower {
	t.Helper()
	c := expect.Value(client.Connect(t.Context(), base, client.Options{Agent: "test/1", Revision: string(spec.V20260728)}))(t)
	f := &follower{client: c, name: name, arguments: arguments}
	f.poll(t)
	return f
}

// poll returns the ids of the events since the previous poll.
func (f *follower) poll(t *testing.T) (ids []string) {
	t.Helper()
	var page struct {
		Events []struct{ EventID string }
		Cursor string
	}
	params := map[string]any{"name": f.name, "arguments": f.arguments, "cursor": f.cursor}
	expect.OK(t, f.client.Call(t.Context(), spec.MethodEventsPoll, params, &page))
	f.cursor = page.Cursor
	for _, e := range page.Events {
		ids = append(ids, e.EventID)
	}
	return ids
}

// TestMembers compares the members that mappings produce with the schema that subscribers see in the catalog.
func TestMembers(t *testing.T) {
	for _, p := range ready.Providers() {
		cat, _ := read(t, p)
		made := made(t, p)
		for _, e := range cat.Entries() {
			t.Run("SRC-06 "+e.Name+" has exactly the members of its schema", func(t *testing.T) {
				var schema struct {
					Properties map[string]json.RawMessage
					Required   []string
				}
				expect.OK(t, json.Unmarshal(e.PayloadSchema, &schema))
				declared := slices.Sorted(maps.Keys(schema.Properties))
				expect.List(t, "the members that the mappings produce", slices.Sorted(maps.Keys(made[e.Name])), declared)
				pointers := append(slices.Collect(maps.Values(e.Filters)), e.Redact...)
				for _, pointer := range pointers {
					if name := strings.Split(pointer, "/")[1]; !slices.Contains(declared, name) {
						t.Errorf("a filter or redaction uses %s, which no event has", pointer)
					}
				}
				for _, pointer := range e.Redact {
					if slices.Contains(schema.Required, pointer[1:]) {
						t.Errorf("%s is optional in the mapping but required by the schema", pointer)
					}
				}
				if e.Title == "" || e.Description == "" {
					t.Error("agents see no description of it")
				}
			})
		}
	}
}

// made returns the members of the data that the mappings produce for each event type.
func made(t *testing.T, p ready.Provider) map[string]map[string]bool {
	t.Helper()
	var c struct {
		Sources []struct {
			Events []struct {
				Name string
				Data map[string]any
			}
		}
	}
	expect.OK(t, yaml.Unmarshal(ready.Config(p), &c))
	all := map[string]map[string]bool{}
	for _, s := range c.Sources {
		for _, e := range s.Events {
			if all[e.Name] == nil {
				all[e.Name] = map[string]bool{}
			}
			for name := range e.Data {
				all[e.Name][name] = true
			}
		}
	}
	return all
}

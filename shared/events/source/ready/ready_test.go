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

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source/ready"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
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
				expect.Contains(t, "the steps", steps, m[1])
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
		expect.Fault(t, "the error", err, fault.Invalid)
		expect.Contains(t, "the public error", fault.Public(err), `"gitea"`, "github, linear")
	})
}

func TestWrite(t *testing.T) {
	all := ready.Providers()
	files := func(dir string) (texts [2]string) {
		for i, name := range []string{ready.CatalogFile, ready.ConfigFile} {
			texts[i] = string(expect.Value(os.ReadFile(filepath.Join(dir, name)))(t))
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
			expect.Contains(t, "the configuration", texts[1], "# "+p.Title+", "+p.Documentation)
		}
	})
	t.Run("SRC-06 existing files are kept unless force is set", func(t *testing.T) {
		dir := t.TempDir()
		own := filepath.Join(dir, ready.ConfigFile)
		expect.OK(t, os.WriteFile(own, []byte("keys: []\n"), 0o600))
		err := ready.Write(dir, all[:1], false)
		expect.Fault(t, "the error", err, fault.Conflict)
		expect.Contains(t, "the public error", fault.Public(err), own+" exists", "--force")
		expect.Error(t, "the other file", expect.ErrOf(os.Stat(filepath.Join(dir, ready.CatalogFile))))
		if text, _ := os.ReadFile(own); string(text) != "keys: []\n" {
			t.Errorf("the file is now %q", text)
		}
		expect.OK(t, ready.Write(dir, all[:1], true))
		if got := files(dir); !strings.HasPrefix(got[1], "# Sources") {
			t.Errorf("by force: %q", got[1])
		}
	})
	t.Run("SRC-06 an empty list of providers is refused", func(t *testing.T) {
		expect.Fault(t, "no providers", ready.Write(t.TempDir(), nil, false), fault.Invalid)
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
					expect.Has(t, "the declared members", declared, strings.Split(pointer, "/")[1])
				}
				for _, pointer := range e.Redact {
					if slices.Contains(schema.Required, pointer[1:]) {
						t.Errorf("%s is optional in the mapping but required by the schema", pointer)
					}
				}
				expect.Differ(t, "the title", e.Title, "")
				expect.Differ(t, "the description", e.Description, "")
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

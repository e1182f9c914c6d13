package ready_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/events/source/ready"
)

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
				if err := json.Unmarshal(e.PayloadSchema, &schema); err != nil {
					t.Fatal(err)
				}
				declared := slices.Sorted(maps.Keys(schema.Properties))
				if got := slices.Sorted(maps.Keys(made[e.Name])); !slices.Equal(got, declared) {
					t.Errorf("the mappings produce %v, the schema has %v", got, declared)
				}
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
	if err := yaml.Unmarshal(ready.Config(p), &c); err != nil {
		t.Fatal(err)
	}
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

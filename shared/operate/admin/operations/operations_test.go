package operations

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

var update = flag.Bool("update", false, "write testdata/contract.txt")

// contract lists the operations of a document with their parameters, bodies and answers, and the members of its schemas.
func contract(t *testing.T, document []byte) (lines []string) {
	t.Helper()
	type content map[string]struct{ Schema json.RawMessage }
	var doc struct {
		Paths map[string]map[string]struct {
			Parameters []struct {
				Name, In string
				Schema   json.RawMessage
			}
			RequestBody struct{ Content content }
			Responses   map[string]struct{ Content content }
		}
		Components struct {
			Schemas map[string]struct {
				Properties map[string]json.RawMessage
				Required   []string
			}
		}
	}
	expect.OK(t, json.Unmarshal(document, &doc))
	for path, methods := range doc.Paths {
		for method, o := range methods {
			name := strings.ToUpper(method) + " " + path
			for _, p := range o.Parameters {
				lines = append(lines, name+" "+p.In+" "+p.Name+" "+string(p.Schema))
			}
			for kind, c := range o.RequestBody.Content {
				lines = append(lines, name+" body "+kind+" "+string(c.Schema))
			}
			for status, r := range o.Responses {
				lines = append(lines, name+" answers "+status)
				for kind, c := range r.Content {
					lines = append(lines, name+" answers "+status+" "+kind+" "+string(c.Schema))
				}
			}
		}
	}
	for name, s := range doc.Components.Schemas {
		lines = append(lines, "schema "+name+" requires "+strings.Join(s.Required, " "))
		for member := range s.Properties {
			lines = append(lines, "schema "+name+" has "+member)
		}
	}
	slices.Sort(lines)
	return lines
}

// TestTheDocumentKeepsItsContract compares the document with the one that is published. Clients depend on its paths,
// parameters and schemas, so they may only be added.
func TestTheDocumentKeepsItsContract(t *testing.T) {
	const file = "testdata/contract.txt"
	got := contract(t, Document())
	if *update {
		expect.OK(t, os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o600))
	}
	text := expect.Value(os.ReadFile(file))(t)
	want := strings.Split(strings.TrimSpace(string(text)), "\n")
	for _, line := range want {
		expect.Has(t, "the document's lines", got, line)
	}
	for _, line := range got {
		expect.Has(t, file, want, line)
	}
}

// TestTheReferencePageHasEveryOperation checks that docs/reference/admin-api.md names each path and query parameter.
func TestTheReferencePageHasEveryOperation(t *testing.T) {
	text := string(expect.Value(os.ReadFile("../../../../docs/reference/admin-api.md"))(t))
	for _, o := range All {
		path, _, _ := strings.Cut(o.Path, "/{")
		expect.Contains(t, "the page", text, path)
		for _, p := range o.Query {
			expect.Contains(t, "the page", text, p.Name)
		}
	}
}

func TestEveryOperationHasItsOwnIDAndPath(t *testing.T) {
	seen := map[string]bool{}
	for _, o := range All {
		for _, name := range []string{o.ID, o.Method + " " + o.Path} {
			expect.True(t, name+" is declared once", !seen[name])
			seen[name] = true
		}
	}
}

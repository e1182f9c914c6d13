package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/shared/operate/admin/operations"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestTheCommandLineHasAllOfTheAPI compares the commands with the API's document: the operations, their parameters, and the members
// that are columns.
func TestTheCommandLineHasAllOfTheAPI(t *testing.T) {
	type schema struct {
		Ref        string `json:"$ref"`
		Properties map[string]*schema
		Items      *schema
	}
	type content struct {
		Content map[string]struct{ Schema *schema }
	}
	type operation struct {
		Parameters  []struct{ Name string }
		RequestBody content
		Responses   map[string]content
	}
	var doc struct {
		Paths      map[string]map[string]operation
		Components struct{ Schemas map[string]*schema }
	}
	expect.OK(t, json.Unmarshal(operations.Document(), &doc))
	resolve := func(s *schema) *schema {
		for s != nil && s.Ref != "" {
			s = doc.Components.Schemas[s.Ref[strings.LastIndexByte(s.Ref, '/')+1:]]
		}
		return s
	}
	operations := map[string]operation{}
	for path, methods := range doc.Paths {
		for method, o := range methods {
			operations[strings.ToUpper(method)+" "+strings.TrimPrefix(path, "/")] = o
		}
	}
	var cli CLI
	parser := expect.Value(kong.New(&cli, kong.Vars{"workspace": "default"}))(t)
	has := map[string]bool{
		"GET openapi.json": true, "GET live": true, // for the console
		"GET switches/{name}":               true, // the list has it
		"GET subscriptions/{id}/deliveries": true, // deliveries list --subscription
	}
	for _, n := range parser.Model.Leaves(false) {
		api := strings.ReplaceAll(n.Tag.Get("api"), "...", "")
		if api == "" {
			continue
		}
		o, ok := operations[api]
		if !ok && !strings.HasPrefix(api, "DELETE principals/") {
			t.Errorf("OPS-10 %s: the API has no %s", n.FullPath(), api)
		}
		if !ok {
			continue
		}
		has[api] = true
		known := []string{"help", "json", "output", "wide", "server", "key", "yes", "detach", "limit", "cursor", "uri"}
		for _, p := range o.Parameters {
			known = append(known, p.Name)
		}
		if body := resolve(o.RequestBody.Content["application/json"].Schema); body != nil {
			for name, s := range body.Properties {
				known = append(known, name)
				for inner := range resolve(s).Properties {
					known = append(known, inner)
				}
			}
		}
		for _, f := range n.Flags {
			name := strings.ReplaceAll(f.Name, "dry-run", "dryRun")
			expect.Contains(t, "OPS-10 the API's parameters for "+n.FullPath(), " "+strings.Join(known, " ")+" ", " "+name+" ")
		}
		for _, p := range o.Parameters {
			path := strings.Contains(api, "{"+p.Name+"}")
			if !path && p.Name != "cursor" && p.Name != "limit" && !hasFlag(n, p.Name) {
				t.Errorf("OPS-10 %s: it has no --%s", n.FullPath(), p.Name)
			}
		}
		if columns := n.Tag.Get("columns"); columns != "" {
			for dropped := range strings.SplitSeq(n.Tag.Get("drop"), ",") {
				if !strings.Contains(","+columns, ","+dropped) {
					t.Errorf("OPS-10 %s: a narrow terminal drops %s, which is not a column", n.FullPath(), dropped)
				}
			}
			listed := o
			if also := n.Tag.Get("also"); also != "" { // the table shows a list below it
				listed = operations[api+"/"+also]
			}
			item := resolve(listed.Responses["200"].Content["application/json"].Schema).Properties["items"].Items
			for column := range strings.FieldsFuncSeq(columns, func(r rune) bool { return r == ',' || r == '|' }) {
				s := resolve(item)
				column, _, _ = strings.Cut(column, "=") // its heading
				for name := range strings.SplitSeq(column, ".") {
					if s.Items != nil { // of each element
						s = resolve(s.Items)
					}
					if s = resolve(s.Properties[name]); s == nil {
						t.Errorf("OPS-10 %s: the API has no %s", n.FullPath(), column)
						break
					}
				}
			}
		}
	}
	for api := range operations {
		expect.True(t, "OPS-10 there is a command for "+api, has[api])
	}
}

func hasFlag(n *kong.Node, name string) bool {
	for _, f := range n.Flags {
		if f.Name == name || name == "dryRun" && f.Name == "dry-run" {
			return true
		}
	}
	return false
}

package strictyaml

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestFieldsAreReadInTheOrderOfTheirDeclaration(t *testing.T) {
	f, root := Parse("x.yaml", []byte("list: [a, a]\nsize: 12\ncolour: red\non: 'true'\nversion: 1.10\nname: x\nempty: ''\n"), 1<<10)
	var v struct {
		name, version, empty string
		size                 int
		on                   bool
		list                 []string
	}
	given := f.Fields(root, func(member string) string { return strings.TrimSpace("thing " + v.name + " " + member) },
		Var("name", &v.name, f.Matching(regexp.MustCompile("^[a-z]$"))),
		Var("size", &v.size, f.Int(1, 10)),
		Var("on", &v.on, f.Bool),
		Var("version", &v.version, f.String),
		Var("list", &v.list, f.Strings),
		Var("empty", &v.empty, f.NonEmpty),
		Func("missing", func(*Node, string) { t.Error("a missing member was read") }),
	)
	if v.name != "x" || given["missing"] || !given["size"] || given["colour"] {
		t.Errorf("got %+v and the members %v", v, given)
	}
	want := `x.yaml:1: thing x list: "a" is listed twice
x.yaml:2: thing x size is 12 and must be from 1 to 10
x.yaml:3: thing x: unknown member "colour" (allowed: name, size, on, version, list, empty, missing)
x.yaml:4: thing x on must be true or false, not text
x.yaml:5: thing x version must be text, not a number
x.yaml:7: thing x empty must not be empty`
	if err := f.Err(); err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
}

func TestAListHasALimit(t *testing.T) {
	f, root := Parse("x.yaml", []byte("a: [1, 2, 3]\n"), 1<<10)
	f.Fields(root, func(member string) string { return member }, Func("a", func(n *Node, what string) {
		if got := f.Items(n, what, 2); got != nil {
			t.Errorf("got %d elements, want none", len(got))
		}
	}))
	if got, want := f.Err(), "x.yaml:1: a has 3 elements (at most 2)"; got == nil || got.Error() != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestJSON(t *testing.T) {
	for in, want := range map[string]string{
		"a: 1":                              `{"a":1}`,
		"b: 1\na: 2":                        `{"b":1,"a":2}`,
		"a: 123456789012345678901234567890": `{"a":123456789012345678901234567890}`,
		"a: 1.50":                           `{"a":1.50}`,
		"a: 1e3":                            `{"a":1e3}`,
		"a: 0x1F":                           `{"a":31}`,
		"a: +5":                             `{"a":5}`,
		"a: .5":                             `{"a":0.5}`,
		"a: 2024-01-01":                     `{"a":"2024-01-01"}`,
		"a: yes":                            `{"a":"yes"}`,
		"a: true":                           `{"a":true}`,
		"a: ~":                              `{"a":null}`,
		"a:":                                `{"a":null}`,
		"a: 'x\"y'":                         `{"a":"x\"y"}`,
		"a: [1, x, {b: c}]":                 `{"a":[1,"x",{"b":"c"}]}`,
		"200: ok":                           `{"200":"ok"}`,
		"a: &x {b: 1}\nc: *x":               `{"a":{"b":1},"c":{"b":1}}`,
		"a: !!str 5":                        `{"a":"5"}`,
	} {
		f, root := Parse("x.yaml", []byte(in), 1<<20)
		got := f.JSON(root, "x", 1<<10)
		if string(got) != want || f.Err() != nil || !json.Valid(got) {
			t.Errorf("%q: got %s, %v, want %s", in, got, f.Err(), want)
		}
	}
	for in, want := range map[string]string{
		"a: .nan":          "x.yaml:1: x: \".nan\" is not a JSON number",
		"a: !!binary aGk=": "not possible in JSON",
		"b: 1\na: 1\nb: 2": `x.yaml:3: x: member "b" was already given in line 1`,
		"true: 1":          "must be quoted",
		"? [a]\n: 1":       "must be text",
		"a: !mine 1":       "not possible in JSON",
		"a: &x\n  b: [*x]": "",
		"a: " + strings.Repeat("[", 200) + strings.Repeat("]", 200): "nested deeper",
		"a: " + strings.Repeat("x", 2000) + "\nb: 1":                "larger than",
	} {
		f, root := Parse("x.yaml", []byte(in), 1<<20)
		if root != nil && f.JSON(root, "x", 1<<10) != nil {
			t.Errorf("%.30q was accepted", in)
		}
		expect.Error(t, fmt.Sprintf("%.30q", in), f.Err(), want)
	}
}

func TestLine(t *testing.T) {
	_, root := Parse("x.yaml", []byte("a:\n  - b\n  -\n    c: d\n"), 1<<10)
	for path, want := range map[string]int{"a": 2, "a/0": 2, "a/1/c": 4, "a/1/x": 4, "a/9": 2, "x": 1} {
		expect.Equal(t, path+": the line", Line(root, strings.Split(path, "/")), want)
	}
}

func TestClip(t *testing.T) {
	expect.Equal(t, "a short text", Clip("short"), "short")
	expect.Equal(t, "a long text", Clip(strings.Repeat("ü", 100)), strings.Repeat("ü", 40)+"…")
	expect.Equal(t, "a long text that is cut within a character", Clip("a"+strings.Repeat("ü", 100)), "a"+strings.Repeat("ü", 39)+"…")
}

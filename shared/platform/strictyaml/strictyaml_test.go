package strictyaml

import (
	"encoding/json"
	"strings"
	"testing"
)

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
		if err := f.Err(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: got %v, want %q", in, err, want)
		}
	}
}

func TestLine(t *testing.T) {
	_, root := Parse("x.yaml", []byte("a:\n  - b\n  -\n    c: d\n"), 1<<10)
	for path, want := range map[string]int{"a": 2, "a/0": 2, "a/1/c": 4, "a/1/x": 4, "a/9": 2, "x": 1} {
		if got := Line(root, strings.Split(path, "/")); got != want {
			t.Errorf("%s: got line %d, want %d", path, got, want)
		}
	}
}

func TestClip(t *testing.T) {
	if got := Clip("short"); got != "short" {
		t.Errorf("got %q", got)
	}
	if got := Clip(strings.Repeat("ü", 100)); got != strings.Repeat("ü", 40)+"…" {
		t.Errorf("got %q", got)
	}
	if got := Clip("a" + strings.Repeat("ü", 100)); got != "a"+strings.Repeat("ü", 39)+"…" {
		t.Errorf("got %q", got)
	}
}

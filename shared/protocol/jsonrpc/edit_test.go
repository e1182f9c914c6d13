package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-15: only the value changes. The order, white space, escapes, large numbers and unknown members stay the same.
func TestReplace(t *testing.T) {
	for _, c := range []struct{ in, name, value, want string }{
		{`{"id":1,"x":9007199254740993}`, "id", `"gw"`, `{"id":"gw","x":9007199254740993}`},
		{" {\n \"a\" : 1.0e5 , \"id\" :\t7 ,\"z\":\"\\u003c\"} ", "id", `8`, " {\n \"a\" : 1.0e5 , \"id\" :\t8 ,\"z\":\"\\u003c\"} "},
		{`{"\u0069d":1,"a":2}`, "id", `3`, `{"\u0069d":3,"a":2}`},
		{`{"id":1,"id":2}`, "id", `3`, `{"id":1,"id":3}`},
		{`{"ID":1}`, "id", `3`, `{"ID":1}`},
		{`{"a":{"id":1},"b":["id",{"id":2}]}`, "id", `3`, `{"a":{"id":1},"b":["id",{"id":2}]}`},
		{`{"id":null}`, "id", `3`, `{"id":3}`},
		{`{"a":1,"b":1,"id":1}`, "id", `2`, `{"a":1,"b":1,"id":2}`},
		{`{"id":"","a":""}`, "id", `{}`, `{"id":{},"a":""}`},
		{`{"":1}`, "", `2`, `{"":2}`},
		{`{}`, "id", `3`, `{}`},
		{`[1]`, "id", `3`, `[1]`},
		{`"id"`, "id", `3`, `"id"`},
	} {
		in := json.RawMessage(c.in)
		expect.Equal(t, fmt.Sprintf("replace %s in %s by %s", c.name, c.in, c.value), string(Replace(in, c.name, []byte(c.value))), c.want)
		expect.Equal(t, "the argument after Replace", string(in), c.in)
	}
}

// FuzzReplace checks [Replace] with encoding/json: only the one value differs, and all other bytes are the same.
func FuzzReplace(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2,{"b":"\"}"}]}}`, `{"id":1,"id":[2]}`,
		`{"\u0069d" : -0.1e5,"x":"\ud800"}`, `{"a":{"id":{}}}`, `{}`, `[{"id":1}]`, " {\"b\" :\t\"\\\\\",\"id\":\"\\\"\"}",
	} {
		f.Add([]byte(s), "id", []byte(`"gw_1"`))
		f.Add([]byte(s), "params", []byte(`{"x":[]}`))
	}
	f.Fuzz(func(t *testing.T, object []byte, name string, value []byte) {
		parts, batch, bad := Split(object)
		if bad != nil || batch || !json.Valid(value) {
			return
		}
		raw := parts[0]
		before := string(raw)
		got := Replace(raw, name, value)
		if string(raw) != before {
			t.Fatalf("Replace changed its argument to %s, want %s", raw, before)
		}
		if !json.Valid(got) {
			t.Fatalf("got %s, want valid JSON", got)
		}
		var was, is map[string]json.RawMessage
		if json.Unmarshal(raw, &was) != nil || was == nil {
			if string(got) != before {
				t.Fatalf("%s became %s", before, got)
			}
			return
		}
		expect.OK(t, json.Unmarshal(got, &is))
		changed := from(raw, name) >= 0
		switch text := strings.TrimSpace(string(value)); {
		case !changed && string(got) != before:
			t.Fatalf("%s became %s", before, got)
		case changed && string(is[name]) != text && strings.ToValidUTF8(name, "") == name:
			t.Fatalf("%s of %s is %s, want %s", name, got, is[name], value)
		}
		delete(was, name)
		delete(is, name)
		if !maps.EqualFunc(was, is, func(a, b json.RawMessage) bool { return string(a) == string(b) }) && strings.ToValidUTF8(name, "") == name {
			t.Fatalf("%s became %s", before, got)
		}
		// The bytes before and after the value stay the same.
		if changed {
			at, end := locate(raw, name)
			if string(got[:at]) != before[:at] || string(got[at:len(got)-(len(before)-end)]) != string(value) ||
				string(got[len(got)-(len(before)-end):]) != before[end:] {
				t.Fatalf("%s became %s", before, got)
			}
		}
	})
}

func from(object json.RawMessage, name string) int {
	at, _ := locate(object, name)
	return at
}

func TestInsertIntoObjectsWithBlanks(t *testing.T) {
	for in, want := range map[string]string{
		`{}`: `{"a":1}`, `{ }`: `{"a":1}`, "{\n\t}": `{"a":1}`, `{"b":2}`: `{"a":1,"b":2}`, `{ "b":2 }`: `{"a":1,"b":2 }`,
	} {
		expect.Equal(t, fmt.Sprintf("GWN-15 insert a into %q", in), string(Insert(json.RawMessage(in), "a", json.RawMessage("1"))), want)
	}
}

func TestRepeats(t *testing.T) {
	for _, n := range []int{0, 1, 15, 16, 17, 40, MaxDistinct, MaxDistinct + 1} {
		object := []byte{'{'}
		for i := range n {
			object = append(AppendString(object, "m"+strconv.Itoa(i)), ":1,"...)
		}
		last := func(name string) json.RawMessage { return append(AppendString(bytes.Clone(object), name), ":1}"...) }
		expect.Equal(t, fmt.Sprintf("%d different members", n+1), Repeats(last("other")), n >= MaxDistinct)
		if n > 0 && !(Repeats(last("m0")) && Repeats(last("m"+strconv.Itoa(n-1)))) {
			t.Errorf("%d members of which one is there twice: got false, want true", n+1)
		}
	}
	if !Repeats(json.RawMessage(`{"a":1,"\u0061":2}`)) {
		t.Error("a name that is escaped the second time: got false, want true")
	}
	object := json.RawMessage(`{"name":"x","arguments":{},"_meta":{}}`)
	if n := testing.AllocsPerRun(10, func() { Repeats(object) }); n > 0 {
		t.Errorf("got %v allocations for an ordinary object, want 0", n)
	}
}

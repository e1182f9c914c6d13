package upstream

import (
	"encoding/json"
	"maps"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/jsonrpc"
)

// GWN-05, GWN-10: what is a message and what is not; an id may be any number, and is
// kept as it is written.
func TestRead(t *testing.T) {
	long := `"` + strings.Repeat("x", jsonrpc.MaxID) + `"`
	for _, c := range []struct {
		name, in     string
		ok, response bool
		id, method   string
	}{
		{name: "request", in: `{"jsonrpc":"2.0","id":1,"method":"m","params":{}}`, ok: true, id: "1", method: "m"},
		{name: "notification", in: `{"jsonrpc":"2.0","method":"m"}`, ok: true, method: "m"},
		{name: "result", in: `{"jsonrpc":"2.0","id":"a","result":{}}`, ok: true, response: true, id: `"a"`},
		{name: "result null", in: `{"jsonrpc":"2.0","id":"a","result":null}`, ok: true, response: true, id: `"a"`},
		{name: "error", in: `{"jsonrpc":"2.0","id":2,"error":{"code":1,"message":""}}`, ok: true, response: true, id: "2"},
		{name: "error without id", in: `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":""}}`, ok: true, response: true},
		{name: "past 2^53", in: `{"jsonrpc":"2.0","id":9007199254740993,"method":"m"}`, ok: true, id: "9007199254740993", method: "m"},
		{name: "past 2^64", in: `{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"m"}`, ok: true, id: "123456789012345678901234567890", method: "m"},
		{name: "float", in: `{"jsonrpc":"2.0","id":1.50e+1,"method":"m"}`, ok: true, id: "1.50e+1", method: "m"},
		{name: "escapes", in: `{"json\u0072pc":"2.0","\u0069d":"\u0061","method":"\u006d"}`, ok: true, id: `"\u0061"`, method: "m"},
		{name: "unknown members", in: `{"x":[{"id":7,"method":"n"}],"jsonrpc":"2.0","id":1,"method":"m","y":{"result":1}}`, ok: true, id: "1", method: "m"},
		{name: "blanks", in: " {\t\"jsonrpc\" : \"2.0\" ,\n\"id\" : 1 , \"result\" : 5 }\r\n", ok: true, response: true, id: "1"},

		{name: "another case", in: `{"jsonrpc":"2.0","ID":1,"Method":"m"}`},
		{name: "two ids", in: `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`},
		{name: "id object", in: `{"jsonrpc":"2.0","id":{},"method":"m"}`},
		{name: "id array", in: `{"jsonrpc":"2.0","id":[1],"method":"m"}`},
		{name: "id too long", in: `{"jsonrpc":"2.0","id":` + long + `,"method":"m"}`},
		{name: "no version", in: `{"id":1,"method":"m"}`},
		{name: "other version", in: `{"jsonrpc":"1.0","id":1,"method":"m"}`},
		{name: "method number", in: `{"jsonrpc":"2.0","id":1,"method":5}`},
		{name: "method empty", in: `{"jsonrpc":"2.0","id":1,"method":""}`},
		{name: "method and result", in: `{"jsonrpc":"2.0","id":1,"method":"m","result":1}`},
		{name: "result and error", in: `{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`},
		{name: "result without id", in: `{"jsonrpc":"2.0","result":1}`},
		{name: "nothing", in: `{"jsonrpc":"2.0","id":1}`},
		{name: "array", in: `[]`},
		{name: "string", in: `"x"`},
		{name: "null", in: `null`},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, ok := Read(json.RawMessage(c.in))
			if ok != c.ok {
				t.Fatalf("taken for a message: %v, want %v", ok, c.ok)
			}
			if string(m.Raw) != c.in {
				t.Errorf("the bytes are %q", m.Raw)
			}
			if ok && (m.Response() != c.response || string(m.ID) != c.id || m.Method != c.method) {
				t.Errorf("got response %v, id %s, method %q", m.Response(), m.ID, m.Method)
			}
		})
	}
}

// GWN-15: only the value changes; order, blanks, escapes, big numbers and members that
// nobody knows stay.
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
		if got := string(Replace(in, c.name, []byte(c.value))); got != c.want {
			t.Errorf("replace %s in %s by %s: got %s, want %s", c.name, c.in, c.value, got, c.want)
		}
		if string(in) != c.in {
			t.Errorf("the message itself was changed to %s", in)
		}
	}
}

// FuzzReplace holds [Replace] to encoding/json: nothing but the one value is different, and what
// is not it is the same bytes.
func FuzzReplace(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2,{"b":"\"}"}]}}`, `{"id":1,"id":[2]}`,
		`{"\u0069d" : -0.1e5,"x":"\ud800"}`, `{"a":{"id":{}}}`, `{}`, `[{"id":1}]`, " {\"b\" :\t\"\\\\\",\"id\":\"\\\"\"}",
	} {
		f.Add([]byte(s), "id", []byte(`"gw_1"`))
		f.Add([]byte(s), "params", []byte(`{"x":[]}`))
	}
	f.Fuzz(func(t *testing.T, object []byte, name string, value []byte) {
		parts, batch, bad := jsonrpc.Split(object)
		if bad != nil || batch || !json.Valid(value) {
			return
		}
		raw := parts[0]
		before := string(raw)
		got := Replace(raw, name, value)
		if string(raw) != before {
			t.Fatal("the message itself was changed")
		}
		if !json.Valid(got) {
			t.Fatalf("%s is no JSON", got)
		}
		var was, is map[string]json.RawMessage
		if json.Unmarshal(raw, &was) != nil || was == nil {
			if string(got) != before {
				t.Fatalf("%s became %s", before, got)
			}
			return
		}
		if err := json.Unmarshal(got, &is); err != nil {
			t.Fatal(err)
		}
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
		// What is around the value is the same, to the byte.
		if changed {
			at, end := find(raw, name)
			if string(got[:at]) != before[:at] || string(got[at:len(got)-(len(before)-end)]) != string(value) ||
				string(got[len(got)-(len(before)-end):]) != before[end:] {
				t.Fatalf("%s became %s", before, got)
			}
		}
		if m, ok := Read(raw); ok && m.ID != nil {
			again, ok := Read(Replace(raw, "id", []byte(`"gw"`)))
			if !ok || string(again.ID) != `"gw"` || again.Method != m.Method || string(again.Result) != string(m.Result) || string(again.Error) != string(m.Error) {
				t.Fatalf("with another id %s is not the same message", raw)
			}
		}
	})
}

func from(object json.RawMessage, name string) int {
	at, _ := find(object, name)
	return at
}

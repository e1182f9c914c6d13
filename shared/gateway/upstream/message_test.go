package upstream

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// GWN-05, GWN-10: Read accepts valid JSON-RPC messages only. An id may be any number, and keeps its bytes.
func TestWhatIsAMessage(t *testing.T) {
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
		{name: "two ids of which one is null", in: `{"jsonrpc":"2.0","id":null,"id":2,"result":{}}`},
		{name: "two methods", in: `{"jsonrpc":"2.0","method":"notifications/events/event","method":"notifications/progress"}`},
		{name: "two params", in: `{"jsonrpc":"2.0","method":"m","params":{"a":1},"params":{}}`},
		{name: "two results", in: `{"jsonrpc":"2.0","id":1,"result":{"a":1},"result":{}}`},
		{name: "two errors", in: `{"jsonrpc":"2.0","id":1,"error":{"code":1},"error":{"code":2}}`},
		{name: "a member of params twice", in: `{"jsonrpc":"2.0","id":1,"method":"m","params":{"mode":"url","mod\u0065":"form"}}`},
		{name: "as many members of params as are compared", in: paramsOf(maxParams), ok: true, method: "m"},
		{name: "more members of params than are compared", in: paramsOf(maxParams + 1)},
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
				t.Fatalf("Read reports %v, want %v", ok, c.ok)
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

func paramsOf(members int) string {
	names := make([]string, members)
	for i := range names {
		names[i] = fmt.Sprintf(`"m%d":1`, i)
	}
	return `{"jsonrpc":"2.0","method":"m","params":{` + strings.Join(names, ",") + `}}`
}

// FuzzRead checks that replacing the id of a message changes only its id.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2,{"b":"\"}"}]}}`, `{"jsonrpc":"2.0","id":"a","result":{}}`,
		`{"jsonrpc":"2.0","\u0069d" : -0.1e5,"error":{"code":1,"message":""}}`, `{"id":1,"id":[2]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		parts, batch, bad := jsonrpc.Split(text)
		if bad != nil || batch {
			return
		}
		raw := parts[0]
		if m, ok := Read(raw); ok && m.ID != nil {
			again, ok := Read(jsonrpc.Replace(raw, "id", []byte(`"gw"`)))
			if !ok || string(again.ID) != `"gw"` || again.Method != m.Method || string(again.Result) != string(m.Result) || string(again.Error) != string(m.Error) {
				t.Fatalf("with another id, %s is a different message", raw)
			}
		}
	})
}

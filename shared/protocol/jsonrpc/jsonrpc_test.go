package jsonrpc

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestDecode(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		kind     Kind
		id       string
		method   string
		params   string
		wantErr  string
	}{
		{name: "request", in: `{"jsonrpc":"2.0","id":1,"method":"ping"}`, kind: Request, id: `1`, method: "ping"},
		{name: "string id keeps its escapes", in: `{"jsonrpc":"2.0","id":"a\u0062","method":"ping"}`, kind: Request, id: `"a\u0062"`, method: "ping"},
		{name: "large integer id", in: `{"id":-9007199254740993123,"jsonrpc":"2.0","method":"m"}`, kind: Request, id: `-9007199254740993123`, method: "m"},
		{name: "params are kept", in: "{\"jsonrpc\":\"2.0\" , \"method\":\"m\", \"params\" : {\"a\": [1, {\"b\":\"}\"}]} , \"id\":0}", kind: Request, id: `0`, method: "m", params: `{"a": [1, {"b":"}"}]}`},
		{name: "null params are none", in: `{"jsonrpc":"2.0","id":1,"method":"m","params":null}`, kind: Request, id: `1`, method: "m"},
		{name: "escaped member name", in: `{"jsonrpc":"2.0","id":1,"m\u0065thod":"m"}`, kind: Request, id: `1`, method: "m"},
		{name: "other case is another member", in: `{"jsonrpc":"2.0","id":1,"method":"m","METHOD":"x"}`, kind: Request, id: `1`, method: "m"},
		{name: "notification", in: `{"jsonrpc":"2.0","method":"n"}`, kind: Notification, method: "n"},
		{name: "result", in: `{"jsonrpc":"2.0","id":7,"result":{}}`, kind: Response, id: `7`},
		{name: "error without id", in: `{"jsonrpc":"2.0","error":{"code":1,"message":""}}`, kind: Response},

		{name: "no object", in: `7`, wantErr: "object"},
		{name: "no version", in: `{"id":1,"method":"m"}`, id: `1`, wantErr: "jsonrpc"},
		{name: "wrong version", in: `{"jsonrpc":"1.0","id":1,"method":"m"}`, id: `1`, wantErr: "jsonrpc"},
		{name: "null id", in: `{"jsonrpc":"2.0","id":null,"method":"m"}`, wantErr: "id"},
		{name: "fraction id", in: `{"jsonrpc":"2.0","id":1.5,"method":"m"}`, wantErr: "id"},
		{name: "boolean id", in: `{"jsonrpc":"2.0","id":true,"method":"m"}`, wantErr: "id"},
		{name: "long id", in: `{"jsonrpc":"2.0","id":"` + strings.Repeat("x", MaxID) + `","method":"m"}`, wantErr: "id has 514 bytes (allowed: up to 512)"},
		{name: "two ids", in: `{"jsonrpc":"2.0","id":1,"id":2,"method":"m"}`, wantErr: "id"},
		{name: "two methods", in: `{"jsonrpc":"2.0","id":1,"method":"m","method":"n"}`, id: `1`, wantErr: "method"},
		{name: "no method", in: `{"jsonrpc":"2.0","id":1}`, id: `1`, wantErr: "method"},
		{name: "empty method", in: `{"jsonrpc":"2.0","id":1,"method":""}`, id: `1`, wantErr: "method"},
		{name: "number method", in: `{"jsonrpc":"2.0","id":1,"method":3}`, id: `1`, wantErr: "method"},
		{name: "string params", in: `{"jsonrpc":"2.0","id":1,"method":"m","params":"x"}`, id: `1`, method: "m", wantErr: "params"},
		{name: "method and result", in: `{"jsonrpc":"2.0","id":1,"method":"m","result":1}`, id: `1`, wantErr: "either"},
		{name: "result and error", in: `{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`, id: `1`, wantErr: "method"},
		{name: "result without id", in: `{"jsonrpc":"2.0","result":1}`, wantErr: "id"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parts, batch, err := Split([]byte(tc.in))
			if err != nil || batch || len(parts) != 1 {
				t.Fatalf("Split: %d parts, batch %v, %v", len(parts), batch, err)
			}
			m, err := Decode(parts[0])
			if tc.wantErr != "" {
				if err == nil || err.Code != InvalidRequest || !strings.Contains(err.Message, tc.wantErr) {
					t.Fatalf("got %v, want an invalid request that names %q", err, tc.wantErr)
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if tc.wantErr == "" && m.Kind != tc.kind || m.Method != tc.method || string(m.ID) != tc.id || string(m.Params) != tc.params {
				t.Errorf("got %v %q id %s params %s", m.Kind, m.Method, m.ID, m.Params)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	for _, tc := range []struct {
		name, in string
		want     []string
		batch    bool
		code     int
	}{
		{name: "batch", in: ` [ {"a":1} , 2,"]"] `, want: []string{`{"a":1}`, `2`, `"]"`}, batch: true},
		{name: "empty batch", in: `[]`, batch: true, code: InvalidRequest},
		{name: "batch too long", in: "[" + strings.Repeat("1,", maxBatch) + "1]", batch: true, code: InvalidRequest},
		{name: "empty", in: " \n", code: ParseError},
		{name: "truncated", in: `{"jsonrpc":`, code: ParseError},
		{name: "two values", in: `{} {}`, code: ParseError},
		{name: "not UTF-8", in: "{\"a\":\"\xff\"}", code: ParseError},
		{name: "deep enough", in: `{"a":` + deep(MaxDepth-1) + `}`, want: []string{`{"a":` + deep(MaxDepth-1) + `}`}},
		{name: "too deep", in: `{"a":` + deep(MaxDepth) + `}`, code: ParseError},
		{name: "brackets in strings do not count", in: `{"a":"` + strings.Repeat("[", 100) + `"}`, want: []string{`{"a":"` + strings.Repeat("[", 100) + `"}`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parts, batch, err := Split([]byte(tc.in))
			code := 0
			if err != nil {
				code = err.Code
			}
			var got []string
			for _, p := range parts {
				got = append(got, strings.TrimSpace(string(p)))
			}
			if code != tc.code || batch != tc.batch || !slices.Equal(got, tc.want) {
				t.Errorf("got %q batch %v code %d", got, batch, code)
			}
		})
	}
}

func TestAppend(t *testing.T) {
	for got, want := range map[string]string{
		string(AppendResult(nil, json.RawMessage(`"x"`), json.RawMessage(`{}`))):                        `{"jsonrpc":"2.0","id":"x","result":{}}`,
		string(AppendError(nil, nil, &Error{Code: ParseError, Message: "a\"b"})):                        `{"jsonrpc":"2.0","error":{"code":-32700,"message":"a\"b"}}`,
		string(AppendError(nil, json.RawMessage(`3`), &Error{Code: 1, Data: map[string]int{"max": 2}})): `{"jsonrpc":"2.0","id":3,"error":{"code":1,"message":"","data":{"max":2}}}`,
		string(AppendNotification(nil, "notifications/x", nil)):                                         `{"jsonrpc":"2.0","method":"notifications/x"}`,
		string(AppendNotification(nil, "n", json.RawMessage(`{"a":1}`))):                                `{"jsonrpc":"2.0","method":"n","params":{"a":1}}`,
	} {
		expect.Equal(t, "the result", got, want)
	}
}

func TestAppendString(t *testing.T) {
	for _, s := range []string{"", "plain", "a\"b\\c\n\r\t\x00\x1f", "é\u2028\u2029\ufffd😀", "bad\xffutf8"} {
		var back string
		expect.OK(t, json.Unmarshal(AppendString(nil, s), &back), s)
		expect.Equal(t, "the decoded text", back, strings.ToValidUTF8(s, "\ufffd"))
	}
}

// FuzzRead holds the reader to encoding/json: what one takes for JSON the other
// does, members have the same values, and nothing panics.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"m","params":{"a":[1,2,{"b":"\"}"}]}}`, `[{"a":1},[],"x"]`,
		`{"id":"\ud800","jsonrpc":"2.0"}`, `{}`, `[]`, `nul`, `{"a":[1e400,-0,true,false,null,"\\","\"]"],"a":{}} `, " [ ] ", "{\"a\":1e5,\"b\" : -0.1 }",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		parts, _, err := Split(body)
		if err != nil {
			return
		}
		if !json.Valid(body) {
			t.Fatal("took invalid JSON")
		}
		d := json.NewDecoder(bytes.NewReader(body))
		d.UseNumber()
		var value any
		if err := d.Decode(&value); err == nil && !reflect.DeepEqual(value, Value(body)) {
			t.Fatalf("the value of %s: got %#v, want %#v", body, Value(body), value)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, body); err != nil || HasSpace(body) != (compact.Len() != len(body)) {
			t.Fatalf("%q: spaced %t, compact %q", body, HasSpace(body), &compact)
		}
		for _, p := range parts {
			m, err := Decode(p)
			if err == nil && m.Kind == Request && !json.Valid(AppendResult(nil, m.ID, json.RawMessage(`{}`))) {
				t.Fatalf("the id %q breaks the response", m.ID)
			}
			var want map[string]json.RawMessage
			if json.Unmarshal(p, &want) != nil || want == nil {
				continue
			}
			got := map[string]json.RawMessage{}
			for k, v := range Members(p) {
				got[strings.ToValidUTF8(string(k), "\ufffd")] = v
			}
			if !maps.EqualFunc(got, want, func(a, b json.RawMessage) bool { return bytes.Equal(a, b) }) {
				t.Fatalf("members of %s: got %s, want %s", p, got, want)
			}
		}
	})
}

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
		expect.MustEqual(t, "the argument of Replace", string(raw), before)
		if !json.Valid(got) {
			t.Fatalf("got %s, want valid JSON", got)
		}
		var was, is map[string]json.RawMessage
		if json.Unmarshal(raw, &was) != nil || was == nil {
			expect.MustEqual(t, "the request", string(got), before)
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
	for _, n := range []int{0, 1, 15, 16, 17, 40, MaxComparedMembers, MaxComparedMembers + 1} {
		object := []byte{'{'}
		for i := range n {
			object = append(AppendString(object, "m"+strconv.Itoa(i)), ":1,"...)
		}
		last := func(name string) json.RawMessage { return append(AppendString(bytes.Clone(object), name), ":1}"...) }
		expect.Equal(t, fmt.Sprintf("%d different members", n+1), HasRepeatedMember(last("other")), n >= MaxComparedMembers)
		if n > 0 && !(HasRepeatedMember(last("m0")) && HasRepeatedMember(last("m"+strconv.Itoa(n-1)))) {
			t.Errorf("%d members of which one is there twice: got false, want true", n+1)
		}
	}
	expect.True(t, "a name is repeated that is escaped the second time", HasRepeatedMember(json.RawMessage(`{"a":1,"\u0061":2}`)))
	object := json.RawMessage(`{"name":"x","arguments":{},"_meta":{}}`)
	expect.AtMost(t, "the allocations for an ordinary object", testing.AllocsPerRun(10, func() { HasRepeatedMember(object) }), 0)
}

func TestFindRepeated(t *testing.T) {
	var wide strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&wide, `"m%d":{"x":%d},`, i, i)
	}
	for in, want := range map[string]string{
		`{}`:                              "",
		`"a"`:                             "",
		`{"a":"a","b":["a","a","b"]}`:     "",
		`{"a":1,"A":2}`:                   "",
		`{"a":1,"\u0061":2}`:              "/a",
		`{"\"":1,"\u0022":2}`:             `/"`,
		`{"a":{"b":1},"c":{"b":1,"b":2}}`: "/c/b",
		`[[],[1,{"a":1}],{"b":[0,{"x":1,"x":2}]}]`:       "/2/b/1/x",
		`{"a/b~":{"":1,"":2}}`:                           "/a~1b~0/",
		`{"a":[{"b":1},{"b":2}],"b":1,"a":2}`:            "/a",
		`{"k":"}\"{","k":1}`:                             "/k",
		"{" + wide.String() + `"n":1}`:                   "",
		"{" + wide.String() + `"m999":1}`:                "/m999",
		"{" + wide.String() + `"m3":1}`:                  "/m3",
		"[{" + wide.String() + `"m":1},{"m1":1,"m1":2}]`: "/1/m1",
	} {
		if got, found := FindRepeated(json.RawMessage(in)); got != want || found != (want != "") {
			t.Errorf("%.60s: got %q, %v, want %q", in, got, found, want)
		}
	}
}

// repeats reports whether a value has a duplicate member. It is a simple implementation that decodes every object into a set.
func repeats(d *json.Decoder) bool {
	tok, err := d.Token()
	if err != nil {
		return false
	}
	found := false
	switch tok {
	case json.Delim('{'):
		seen := map[string]bool{}
		for d.More() {
			name, _ := d.Token()
			found = found || seen[name.(string)]
			seen[name.(string)] = true
			found = repeats(d) || found
		}
		_, _ = d.Token()
	case json.Delim('['):
		for d.More() {
			found = repeats(d) || found
		}
		_, _ = d.Token()
	}
	return found
}

func FuzzFindRepeated(f *testing.F) {
	for _, s := range []string{`{"a":1,"\u0061":2}`, `[{"a":[{}],"b":{"a":1}},"x"]`, `{"a\\":"\"","a":{"b":1,"b":2}}`, `{"\ud800":1,"\udc00":1}`, ` { "a" : 1 , "a" : 2 } `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if !json.Valid(data) || !utf8.Valid(data) || Depth(data) > MaxDepth {
			return
		}
		pointer, found := FindRepeated(data)
		if want := repeats(json.NewDecoder(bytes.NewReader(data))); found != want || (pointer != "") != found {
			t.Fatalf("%s: got %q, %v, want %v", data, pointer, found, want)
		}
	})
}

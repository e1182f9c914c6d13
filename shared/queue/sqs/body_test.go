package sqs

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"
)

func TestSafe(t *testing.T) {
	tests := map[string]struct{ body, want string }{
		"nothing to do":          {`{"a":"é😀\ufffe"}`, `{"a":"é😀\ufffe"}`},
		"noncharacters":          {"{\"\ufffe\":\"a\uffffb\"}", `{"\ufffe":"a\uffffb"}`},
		"neighbours stay":        {"\"\ufffd\uffef\U0001fffe\ue000\ud7ff\"", "\"\ufffd\uffef\U0001fffe\ue000\ud7ff\""},
		"control characters":     {"\"\x00\x1f\"", `"\u0000\u001f"`},
		"white space stays":      {"{\t\"a\":\r\n1}", "{\t\"a\":\r\n1}"},
		"one after the other":    {"\"\ufffe\ufffe\uffff\"", `"\ufffe\ufffe\uffff"`},
		"after a backslash pair": {"\"\\\\\uffff\"", `"\\\uffff"`},
		"a cut character":        {"\"\xef\xbf\"", "\"\xef\xbf\""},
		"empty":                  {"", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := string(Safe([]byte(tt.body))); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestSafeLeavesAnOrdinaryBodyWhereItIs(t *testing.T) {
	body := []byte(`{"uri":"event://ci/build-finished","data":{"n":1}}`)
	if n := testing.AllocsPerRun(100, func() { Safe(body) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// taken reports what SQS takes: #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to
// #xFFFD | #x10000 to #x10FFFF, as the reference of SendMessage has it.
func taken(r rune) bool {
	return r == 0x9 || r == 0xa || r == 0xd || 0x20 <= r && r <= 0xd7ff || 0xe000 <= r && r <= 0xfffd || 0x10000 <= r && r <= 0x10ffff
}

func FuzzSafe(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"é\ufffe"]}`, "\"\ufffe\\u005c\uffff\\\\\"", "\x00\xef\xbf\xbe\xef", "[\"\U0010ffff\"]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		before := string(body)
		safe := Safe(body)
		if string(body) != before {
			t.Fatal("the body was changed in place")
		}
		if again := Safe(safe); string(again) != string(safe) {
			t.Fatalf("a second time: %q became %q", safe, again)
		}
		if !utf8.Valid(body) {
			return
		}
		for _, r := range string(safe) {
			if !taken(r) {
				t.Fatalf("%q holds %U", safe, r)
			}
		}
		if !json.Valid(body) {
			return
		}
		var got, want any
		if err := json.Unmarshal(safe, &got); err != nil {
			t.Fatalf("%q: %v", safe, err)
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q means something else than %q", safe, body)
		}
	})
}

func BenchmarkSafe(b *testing.B) {
	body := []byte(`{"uri":"event://github/octo/hello/pull_request","data":{"title":"Größe, naïve, 漢字","n":1}}`)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		Safe(body)
	}
}

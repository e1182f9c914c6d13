package sqs

import (
	"encoding/json"
	"reflect"
	"testing"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

func TestBody(t *testing.T) {
	tests := map[string]struct{ body, want string }{ // want is empty for what is refused
		"nothing to do":          {`{"a":"é😀\ufffe"}`, `{"a":"é😀\ufffe"}`},
		"noncharacters":          {"{\"\ufffe\":\"a\uffffb\"}", `{"\ufffe":"a\uffffb"}`},
		"neighbours stay":        {"\"\ufffd\uffef\U0001fffe\ue000\ud7ff\"", "\"\ufffd\uffef\U0001fffe\ue000\ud7ff\""},
		"control characters":     {"\"\x00\x1f\"", ""},
		"white space stays":      {"{\t\"a\":\r\n1}", "{\t\"a\":\r\n1}"},
		"one after the other":    {"\"\ufffe\ufffe\uffff\"", `"\ufffe\ufffe\uffff"`},
		"after a backslash pair": {"\"\\\\\uffff\"", `"\\\uffff"`},
		"a cut character":        {"\"\xef\xbf\"", ""},
		"text":                   {"no JSON", "no JSON"},
		"text with one":          {"no JSON \uffff", ""},
		"empty":                  {"", ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := ""
			e, err := entry(queue.Inbox, queue.Outgoing{Body: []byte(tt.body)})
			if err == nil {
				got = *e.MessageBody
			}
			if got != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// isAllowed reports whether SQS accepts a character: #x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF
// (reference of SendMessage).
func isAllowed(r rune) bool {
	return r == 0x9 || r == 0xa || r == 0xd || 0x20 <= r && r <= 0xd7ff || 0xe000 <= r && r <= 0xfffd || 0x10000 <= r && r <= 0x10ffff
}

func FuzzBody(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"é\ufffe"]}`, "\"\ufffe\\u005c\uffff\\\\\"", "\x00\xef\xbf\xbe\xef", "[\"\U0010ffff\"]"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		e, err := entry(queue.Inbox, queue.Outgoing{Body: body})
		if err != nil {
			if json.Valid(body) && utf8.Valid(body) {
				t.Fatalf("JSON is refused: %v", err)
			}
			return
		}
		for _, r := range *e.MessageBody {
			if !isAllowed(r) {
				t.Fatalf("%q holds %U", *e.MessageBody, r)
			}
		}
		if !json.Valid(body) {
			if *e.MessageBody != string(body) {
				t.Fatalf("%q became %q", body, *e.MessageBody)
			}
			return
		}
		var got, want any
		if err := json.Unmarshal([]byte(*e.MessageBody), &got); err != nil {
			t.Fatalf("%q: %v", *e.MessageBody, err)
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%q means something else than %q", *e.MessageBody, body)
		}
	})
}

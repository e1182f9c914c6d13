package spec

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/test/expect"
)

// The examples are from the specification.
func TestHeaderValues(t *testing.T) {
	for plain, encoded := range map[string]string{
		"us-west1":              "us-west1",
		"Hello, 世界":             "=?base64?SGVsbG8sIOS4lueVjA==?=",
		" padded ":              "=?base64?IHBhZGRlZCA=?=",
		"line1\nline2":          "=?base64?bGluZTEKbGluZTI=?=",
		"=?base64?literal?=":    "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=",
		"event://ci/{x}?a b\tc": "event://ci/{x}?a b\tc",
		"":                      "",
	} {
		expect.Equal(t, fmt.Sprintf("EncodeHeader(%q)", plain), EncodeHeader(plain), encoded)
		expect.Equal(t, "the header "+encoded, expect.Value(DecodeHeader("  "+encoded+"\t"))(t), plain)
	}
	for _, bad := range []string{"=?base64?SGVsbG8?=", "=?base64?!!!!?=", "=?base64?/w==?=", "caf\xc3\xa9", "a\x7fb"} {
		if got, err := DecodeHeader(bad); err == nil {
			t.Errorf("DecodeHeader(%q) = %q, want an error", bad, got)
		}
	}
	expect.Equal(t, "a header whose marks are in capitals", expect.Value(DecodeHeader("=?BASE64?SGk=?="))(t), "=?BASE64?SGk=?=")
}

func FuzzHeader(f *testing.F) {
	f.Add("plain")
	f.Add("=?base64??=")
	f.Add("世界 ")
	f.Fuzz(func(t *testing.T, s string) {
		if back, err := DecodeHeader(s); err == nil && !utf8.ValidString(back) {
			t.Fatalf("%q came out of %q", back, s)
		}
		if !utf8.ValidString(s) {
			return
		}
		e := EncodeHeader(s)
		if strings.ContainsAny(e, "\r\n\x00") {
			t.Fatalf("%q cannot stand in a header", e)
		}
		expect.Equal(t, "the header "+e, expect.Value(DecodeHeader(e))(t), s)
	})
}

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
		if got, err := DecodeHeader("  " + encoded + "\t"); err != nil || got != plain {
			t.Errorf("DecodeHeader(%q) = %q, %v", encoded, got, err)
		}
	}
	for _, bad := range []string{"=?base64?SGVsbG8?=", "=?base64?!!!!?=", "=?base64?/w==?=", "caf\xc3\xa9", "a\x7fb"} {
		if got, err := DecodeHeader(bad); err == nil {
			t.Errorf("DecodeHeader(%q) = %q, want an error", bad, got)
		}
	}
	if got, err := DecodeHeader("=?BASE64?SGk=?="); err != nil || got != "=?BASE64?SGk=?=" {
		t.Errorf("the marks are case-sensitive: got %q, %v", got, err)
	}
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
		if back, err := DecodeHeader(e); err != nil || back != s {
			t.Fatalf("%q came back as %q, %v", s, back, err)
		}
	})
}

package translate

import (
	"fmt"
	"testing"
)

// GWN-17: an annotation counts where 2026-07-28 allows it. Anywhere else it makes the tool unusable.
func TestParameterAnnotations(t *testing.T) {
	const name = `"x-mcp-header":"Name"`
	for _, tt := range []struct{ schema, want string }{
		{`{"properties":{"a":{"type":"string",` + name + `}}}`, "[{Mcp-Param-Name [a] string}]"},
		{`{"properties":{"o":{"properties":{"a":{` + name + `,"type":"integer"}}}}}`, "[{Mcp-Param-Name [o a] integer}]"},
		{`{"properties":{"items":{"type":"boolean",` + name + `}}}`, "[{Mcp-Param-Name [items] boolean}]"},
		{`{"properties":{"a":{"type":"string","default":"x-mcp-header"}}}`, "[]"},
		{`{"properties":{"a":{"type":"number",` + name + `}}}`, "error"},
		{`{"properties":{"a":{` + name + `}}}`, "error"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":""}}}`, "error"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"a b"}}}`, "error"},
		{`{"properties":{"a":{"type":"string","x-mcp-header":"a\r\nb"}}}`, "error"},
		{`{"properties":{"a":{"type":"string",` + name + `},"b":{"type":"string","x-mcp-header":"nAME"}}}`, "error"},
		{`{"properties":{"a":{"type":"array","items":{"type":"string",` + name + `}}}}`, "error"},
		{`{"anyOf":[{"properties":{"a":{"type":"string",` + name + `}}}]}`, "error"},
		{`{` + name + `,"type":"object"}`, "error"},
	} {
		list, err := Parameters([]byte(`{"name":"t","inputSchema":` + tt.schema + `}`))
		got := fmt.Sprint(list)
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.schema, got, tt.want)
		}
	}
}

// GWN-17: headers have integers in the range that 2026-07-28 allows.
func TestIntegersOfHeaders(t *testing.T) {
	for text, want := range map[string]string{
		"42": "42", "-7": "-7", "42.0": "42", "4.2e1": "42", "0": "0", "9007199254740991": "9007199254740991",
		"9007199254740992": "", "1e999999999": "", "1.5": "", "": "", "x": "", "0x10": "",
	} {
		n, ok := integer(text)
		if got := fmt.Sprint(n); ok && got != want || !ok && want != "" {
			t.Errorf("%q: %s %v, want %q", text, got, ok, want)
		}
	}
}

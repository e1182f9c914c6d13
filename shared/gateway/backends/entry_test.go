package backends

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// steersText reports whether a character controls terminals or the direction of text, according to the code charts of Unicode.
func steersText(r rune) bool {
	switch {
	case r < 0x20, 0x7f <= r && r < 0xa0: // C0, DEL, C1
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, 0x202a <= r && r <= 0x202e, 0x2066 <= r && r <= 0x2069:
		return true // UAX #9, Explicit Formatting Characters
	}
	return r == 0xfffd
}

// FuzzEntry checks that the names and titles in a list for clients contain no characters that control terminals or the direction of
// text, whatever the backend sends.
func FuzzEntry(f *testing.F) {
	for _, seed := range []string{
		`{"name":"t","title":"T","annotations":{"title":"x"}}`, `{"uri":"x:\u001b","name":"n"}`, `{"uriTemplate":"x:{a}","NAME":"\u202e"}`,
		`{"name":"a","name":"\u0000"}`, `{"\u006eame":"\u009b"}`, `{"name":"\ud800"}`, `{"annotations":{"title":"\u2066"},"name":"b"}`, "{\"name\":\"\x7f\"}",
	} {
		for kind := range api.Kinds {
			f.Add(uint8(kind), []byte(seed), "p_")
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, text []byte, prefix string) {
		parts, batch, bad := jsonrpc.Split(text)
		if bad != nil || batch || int(kind) >= len(api.Kinds) || strings.ContainsFunc(prefix, steersText) {
			return
		}
		v := &View{backend: &Backend{}}
		v.backend.Prefix = prefix
		e, why := v.parseEntry(api.Kind(kind), parts[0])
		if why != "" {
			return
		}
		var shown struct {
			Name, Title, URI, URITemplate any
			Annotations                   struct{ Title any }
		}
		if err := json.Unmarshal(e.JSON, &shown); err != nil && !json.Valid(e.JSON) {
			t.Fatalf("%s became %s, which is no JSON", text, e.JSON)
		}
		for _, v := range []any{e.Name, e.Own, shown.Name, shown.Title, shown.URI, shown.URITemplate, shown.Annotations.Title} {
			if s, ok := v.(string); ok && strings.ContainsFunc(s, steersText) {
				t.Fatalf("%s became %s with %q", text, e.JSON, s)
			}
		}
	})
}

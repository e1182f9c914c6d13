package gateway

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// steers is what a name may not have, by the code charts of Unicode.
func steers(r rune) bool {
	switch {
	case r < 0x20, 0x7f <= r && r < 0xa0: // C0, DEL, C1
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, 0x202a <= r && r <= 0x202e, 0x2066 <= r && r <= 0x2069:
		return true // UAX #9, Explicit Formatting Characters
	}
	return r == 0xfffd
}

// GWN-05: names, URIs and titles of a backend that hold control characters or text that is no Unicode reach no client: the entry is
// dropped and counted, the others stay.
func TestNamesWithControlCharactersAreDropped(t *testing.T) {
	bad := []string{`\u0000`, `\u001b[31m`, `\n`, `\t`, "\x7f", `\u0085`, "\u009b", `\u061c`, `\u200f`, `\u202e`, "\u202e", `\u2066`, `\ud800`}
	s := newScripted(t, func(s *scripted) {
		s.lists = func(method, _ string) string {
			for _, k := range api.Kinds {
				if k.Method() != method {
					continue
				}
				entries := []string{
					fmt.Sprintf(`{%q:"x:good","title":"Gut \u00e4\u200d\ud83d\ude00","description":"a\n\u001bb"}`, k.Name()),
					fmt.Sprintf(`{%q:"x:0","Name":"\u001b"}`, k.Name()),
				}
				for i, c := range bad {
					entries = append(entries,
						fmt.Sprintf(`{%q:"x:%s"}`, k.Name(), c),
						fmt.Sprintf(`{%q:"x:%d","title":"t%s"}`, k.Name(), i, c),
						fmt.Sprintf(`{"name":"n%s",%q:"x:%d"}`, c, k.Name(), i),
						fmt.Sprintf(`{%q:"x:%d","annotations":{"title":"t%s"}}`, k.Name(), i, c))
				}
				return fmt.Sprintf(`{%q:[%s]}`, k.Member(), strings.Join(entries, ","))
			}
			return `{}`
		}
	})
	for _, p := range []string{"", "p_"} {
		g := gatewayOver(t, memory(t), at("b", s, prefix(p)))
		dropped := int64(0)
		for _, k := range api.Kinds {
			list := g.List(t.Context(), sessionBased("s"), k)
			if len(list.Entries) != 1 || !strings.HasSuffix(list.Entries[0].Name, "x:good") {
				t.Errorf("%s: got %d entries, %+v", k, len(list.Entries), list.Entries)
			}
			dropped += int64(4*len(bad) + 1)
		}
		if got := g.Dropped()["default/b"]; got[dropControls] != dropped || len(got) != 1 {
			t.Errorf("counted %v, want %d", got, dropped)
		}
	}
}

// GWN-05: given a backend that nests one entry of a list too deeply, when clients ask for the list, they get the other entries,
// and the one is counted.
func TestListWithADeepEntry(t *testing.T) {
	nested := func(depth int) string { return strings.Repeat("[", depth) + strings.Repeat("]", depth) }
	for name, c := range map[string]struct{ good, bad string }{
		"by a level":         {nested(60), nested(61)},
		"by hundreds":        {nested(1), nested(900)},
		"in its annotations": {nested(1), strings.Repeat(`{"annotations":`, 900) + "1" + strings.Repeat("}", 900)},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScripted(t, func(s *scripted) {
				s.lists = func(method, _ string) string {
					for _, k := range api.Kinds {
						if k.Method() == method {
							return fmt.Sprintf(`{%q:[{%q:"x:good","annotations":%s},{%q:"x:bad","annotations":%s}]}`, k.Member(), k.Name(), c.good, k.Name(), c.bad)
						}
					}
					return `{}`
				}
			})
			g := gatewayOver(t, memory(t), at("b", s))
			for _, k := range api.Kinds {
				list := g.List(t.Context(), sessionBased("s"), k)
				if len(list.Entries) != 1 || list.Entries[0].Name != "x:good" {
					t.Errorf("%s: got %d entries, want x:good alone", k, len(list.Entries))
				}
			}
			if got, want := g.Dropped()["default/b"], int64(len(api.Kinds)); got[dropDeep] != want || len(got) != 1 {
				t.Errorf("counted %v, want %d", got, want)
			}
		})
	}
}

// GWN-05: a list that is no UTF-8 reaches no client.
func TestListThatIsNoUTF8(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.lists = func(method, _ string) string {
			if method != "tools/list" {
				return emptyList(method)
			}
			return "{\"tools\":[{\"name\":\"good\"},{\"name\":\"a\xffb\"},{\"name\":\"c\xc0\x9b\"}]}"
		}
	})
	g := gatewayOver(t, memory(t), at("b", s))
	if list := g.List(t.Context(), sessionBased("s"), api.Tools); len(list.Entries) != 0 {
		t.Errorf("got %+v", list.Entries)
	}
	if got := g.Dropped()["default/b"]; got[upstream.NotJSON] == 0 {
		t.Errorf("counted %v", got)
	}
}

// FuzzEntry holds that whatever a backend lists, no name that a reader finds in what clients get has what steers terminals or the direction
// of text.
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
		if bad != nil || batch || int(kind) >= len(api.Kinds) || strings.ContainsFunc(prefix, steers) {
			return
		}
		v := &view{of: &backend{}}
		v.of.Prefix = prefix
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
			if s, ok := v.(string); ok && strings.ContainsFunc(s, steers) {
				t.Fatalf("%s became %s with %q", text, e.JSON, s)
			}
		}
	})
}

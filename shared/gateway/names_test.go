package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
)

// GWN-05: entries whose names, URIs or titles have control characters or invalid Unicode are dropped and counted. The other
// entries stay.
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
		if got := g.Dropped()["default/b"]; got["an entry of a list with control characters in its name"] != dropped || len(got) != 1 {
			t.Errorf("counted %v, want %d", got, dropped)
		}
	}
}

// GWN-05: an entry that is nested too deeply is dropped and counted. The other entries stay.
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
			if got, want := g.Dropped()["default/b"], int64(len(api.Kinds)); got["an entry of a list that is nested too deeply"] != want || len(got) != 1 {
				t.Errorf("counted %v, want %d", got, want)
			}
		})
	}
}

// GWN-05: a list that is not UTF-8 does not reach clients.
func TestListThatIsNotUTF8(t *testing.T) {
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

package match

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// TestArgumentsOfNoPossibleURI: AUT-06, EVX-03: they are refused before anything is
// done with them, and are not repeated.
func TestArgumentsOfNoPossibleURI(t *testing.T) {
	entry := parse(t, patternCatalog).ByName("github.push")
	for _, owner := range []string{strings.Repeat("x", 3000), strings.Repeat("%", 400), strings.Repeat("ü", 200), "..", ".", "a\x00b"} {
		raw, _ := json.Marshal(map[string]string{"owner": owner})
		_, err := Select(entry, raw)
		if !fault.Is(err, fault.Invalid) || len(fault.Public(err)) > 200 {
			t.Errorf("%.10q: %.400v", owner, err)
		}
	}
	for _, owner := range []string{"*", "%2A", "a/b", "a b", "ü", "...", strings.Repeat("x", 900)} {
		raw, _ := json.Marshal(map[string]string{"owner": owner})
		s, err := Select(entry, raw)
		if err != nil {
			t.Errorf("%.10q: %v", owner, err)
		}
		if got := entry.Expand(map[string]string{"owner": owner, "repo": "r"}); !Matches(s.Pattern.Key, got) {
			t.Errorf("%q does not match %q", s.Pattern.Key, got)
		}
	}
}

// TestUnknownArgument: AUT-06, EVX-03: an argument that the event type does not take is refused, and a long name is not repeated.
func TestUnknownArgument(t *testing.T) {
	entry := parse(t, patternCatalog).ByName("github.push")
	for _, name := range []string{"colour", strings.Repeat("x", 100_000), strings.Repeat("ü", 100_000)} {
		raw, _ := json.Marshal(map[string]int{name: 1})
		_, err := Select(entry, raw)
		data, _ := json.Marshal(fault.DataOf(err))
		if !fault.Is(err, fault.Invalid) || !strings.Contains(string(data), name[:6]) || len(fault.Public(err))+len(data) > 1000 {
			t.Errorf("%.10q: got %.400v with %.400s, want at most 1000 bytes that name it", name, err, data)
		}
	}
}

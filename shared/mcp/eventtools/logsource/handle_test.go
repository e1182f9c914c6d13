package logsource

import (
	"encoding/json"
	"strings"
	"testing"
)

// FuzzHandle tests that a handle survives being written and read again, and that any other text is refused.
func FuzzHandle(f *testing.F) {
	for _, seed := range []string{"ci.deploy~~AAAA", "ci.build~eyJzdGF0dXMiOiJmYWlsZWQifQ~AAAA", "~~", "", "a~W10~b", "a~e30~b", "a~bnVsbA~b", strings.Repeat("~", 9000)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		h, err := parseHandle(text)
		if err != nil {
			if h.name != "" || h.cursor != "" || len(err.Error()) > 300 {
				t.Errorf("%q: %+v, %v", text, h, err)
			}
			return
		}
		if len(h.arguments) > maxHandleArguments || len(h.arguments) > 0 && !json.Valid(h.arguments) {
			t.Errorf("%q has the arguments %q", text, h.arguments)
		}
		if len(h.arguments) == 0 {
			h.arguments = json.RawMessage("{}")
		}
		again, err := parseHandle(h.String())
		if err != nil || again.name != h.name || again.cursor != h.cursor {
			t.Errorf("%q is %q again: %+v, %v", text, h, again, err)
		}
	})
}

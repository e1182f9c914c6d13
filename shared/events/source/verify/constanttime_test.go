package verify

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/constanttime"
)

// TestConstantTime reads the package: what a request brings meets a secret in two lines only, both of which compare
// digests of one length in constant time, and no loop over secrets or signatures ends early.
func TestConstantTime(t *testing.T) {
	t.Run("SRC-02 secrets are compared in constant time", func(t *testing.T) {
		all, err := filepath.Glob("*.go")
		if err != nil {
			t.Fatal(err)
		}
		var files []string
		for _, name := range all {
			if !strings.HasSuffix(name, "_test.go") {
				files = append(files, name)
			}
		}
		constanttime.Check(t, constanttime.Rules{
			Files: files,
			Allowed: map[string]string{
				"p.kind == k":                              "kinds of parts of a template",
				"slices.Contains(o.allowed, o.value)":      "settings",
				"strings.EqualFold(s.Timestamp, s.Header)": "names of headers in settings",
				"strings.EqualFold(p.text, s.Header)":      "names of headers in settings",
			},
			Comparers: map[string]string{
				"check":   "hmac.Equal(got, want)",
				"equalTo": "hmac.Equal(got[:], want[:])",
			},
			Whole: []string{"Verify", "check"},
		})
	})
}

// BenchmarkEqualTo measures whether a key that differs in its first letter is refused as fast as one that differs in
// its last (SRC-02).
func BenchmarkEqualTo(b *testing.B) {
	secret := strings.Repeat("s", MaxSecret)
	same := equalTo(secret)
	early, late := "x"+secret[1:], secret[1:]+"x"
	constanttime.Measure(b, func() bool { return same(early) }, func() bool { return same(late) })
}

package verify

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/constanttime"
)

// TestConstantTime inspects the package's source. Only two lines may compare a part of a request with a secret, and
// both must compare digests of equal length in constant time. Loops over secrets or signatures must not end early.
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

// BenchmarkEqualTo measures whether a key that differs from the secret in the first letter takes as long as one that
// differs in the last (SRC-02).
func BenchmarkEqualTo(b *testing.B) {
	secret := strings.Repeat("s", MaxSecret)
	same := equalTo(secret)
	early, late := "x"+secret[1:], secret[1:]+"x"
	constanttime.Measure(b, func() bool { return same(early) }, func() bool { return same(late) })
}

package auth

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/constanttime"
)

// TestKeys_ConstantTime reads the code: the hash of a token meets those of the keys in one line only, which compares in
// constant time, and every key is compared.
func TestKeys_ConstantTime(t *testing.T) {
	t.Run("AUT-02 keys are compared in constant time", func(t *testing.T) {
		constanttime.Check(t, constanttime.Rules{
			Files:     []string{"keys.go"},
			Allowed:   map[string]string{"x.Principal == AnonymousID": "a principal of the configuration"},
			Comparers: map[string]string{"Authenticate": "subtle.ConstantTimeCompare(sum[:], k.all[i].hash[:])"},
			Whole:     []string{"Authenticate"},
		})
	})
}

// BenchmarkAuthenticate measures whether any token is refused as fast as one that begins as a key does (AUT-02).
func BenchmarkAuthenticate(b *testing.B) {
	var list []Key
	for i := range 100 {
		list = append(list, Key{Principal: "alice", SHA256: hashOf("k" + strings.Repeat("x", i)), Scopes: Scopes()})
	}
	all, err := Keys(list, nil)
	must(b, err)
	refused := func(token string) func() bool {
		h := header("Bearer " + token)
		return func() bool { _, err := all.Authenticate(b.Context(), h); return err == nil }
	}
	constanttime.Measure(b, refused("another"), refused("k"+strings.Repeat("x", 100)))
}

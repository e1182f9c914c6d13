package constanttime

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	for name, tt := range map[string]struct {
		code  string
		rules Rules
		want  string
	}{
		"two texts":              {"func f(a, b string) bool { return a == b }", Rules{}, "compares a == b"},
		"two texts, not equal":   {"func f(a, b string) bool { return a[1:] != b }", Rules{}, "compares a[1:] != b"},
		"a constant":             {`const c = "x"; func f(a string) bool { return a == c || a != "" || len(a) == 3 }`, Rules{}, ""},
		"a switch":               {"func f(a, b string) { switch a { case b: } }", Rules{}, "compares in a switch with b"},
		"a switch of conditions": {"func f(a, b string) { switch { case a == b: } }", Rules{}, "compares a == b"},
		"bytes.Equal":            {`import "bytes"; func f(a, b []byte) bool { return bytes.Equal(a, b) }`, Rules{}, "compares by bytes.Equal(a, b)"},
		"allowed":                {"func f(a, b string) bool { return a == b }", Rules{Allowed: map[string]string{"a == b": "names"}}, ""},
		"allowed, but not there": {"func f() {}", Rules{Allowed: map[string]string{"a == b": "names"}}, "there is no a == b"},
		"in constant time":       {`import "crypto/hmac"; func f(a, b []byte) bool { return hmac.Equal(a, b) }`, Rules{Comparers: map[string]string{"f": "hmac.Equal(a, b)"}}, ""},
		"in constant time, of others": {
			`import "crypto/hmac"; func f(a, b []byte) bool { return hmac.Equal(a, a) }`,
			Rules{Comparers: map[string]string{"f": "hmac.Equal(a, b)"}},
			"f compares secrets by hmac.Equal(a, a)",
		},
		"not any more":           {"func f() {}", Rules{Comparers: map[string]string{"f": "hmac.Equal(a, b)"}}, "there is no f: hmac.Equal(a, b)"},
		"a loop that ends":       {"func f(a []bool) bool { for _, x := range a { if x { return true } }; return false }", Rules{Whole: []string{"f"}}, "f leaves a loop"},
		"a loop that breaks":     {"func f(a []bool) { for range a { break } }", Rules{Whole: []string{"f"}}, "f leaves a loop by break"},
		"a loop that goes on":    {"func f(a []bool) { for range a { continue } }", Rules{Whole: []string{"f"}}, ""},
		"a loop that is no more": {"func f() {}", Rules{Whole: []string{"f"}}, "there is no loop in f"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.go")
			if err := os.WriteFile(file, []byte("package x; "+tt.code), 0o600); err != nil {
				t.Fatal(err)
			}
			tt.rules.Files = []string{file}
			got := strings.Join(faults(t, tt.rules), "\n")
			if (got == "") != (tt.want == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWelch(t *testing.T) {
	series := func(from float64) (out []float64) {
		for i := range 100 {
			out = append(out, from+float64(i%10))
		}
		return out
	}
	if got := welch(series(10), series(10)); got != 0 {
		t.Errorf("equal samples: t = %v", got)
	}
	// Means 10 and 12 of a variance of 8.33 each, 100 samples: 2/sqrt(2*8.33/100) = 4.9, less what is cut off.
	if got := math.Abs(welch(series(10), series(12))); got < 2 || got > 6 {
		t.Errorf("samples two apart: t = %v", got)
	}
}

func BenchmarkMeasure(b *testing.B) {
	secret := strings.Repeat("s", 4096)
	early, late := "x"+secret[1:], secret[1:]+"x"
	b.Run("operator ==", func(b *testing.B) {
		Measure(b, func() bool { return early == secret }, func() bool { return late == secret })
	})
}

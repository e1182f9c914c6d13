package pattern

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestDecimal compares our comparison with a comparison of exact fractions. The product cannot use exact fractions, because a number
// with a large exponent would take a lot of memory.
func TestDecimal(t *testing.T) {
	number := rapid.Custom(func(t *rapid.T) json.Number {
		text := rapid.StringMatching(`-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,4})?`).Draw(t, "mantissa")
		if rapid.Bool().Draw(t, "has exponent") {
			text += rapid.SampledFrom([]string{"e", "E", "e+", "e-"}).Draw(t, "e") + fmt.Sprint(rapid.IntRange(0, 6).Draw(t, "exponent"))
		}
		return json.Number(text)
	})
	exact := func(n json.Number) *big.Rat {
		r, ok := new(big.Rat).SetString(string(n))
		if !ok {
			t.Fatalf("%s is not a number", n)
		}
		return r
	}
	t.Run("SRC-03 numbers are ordered by value", rapid.MakeCheck(func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		c := parseDecimal(a).compare(parseDecimal(b))
		if got, want := min(max(c, -1), 1), exact(a).Cmp(exact(b)); got != want {
			t.Fatalf("%s to %s: got %d, want %d", a, b, got, want)
		}
	}))
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"1e99999999999999999999", "1e10000", 1},
		{"-1e99999999999999999999", "-1e10000", -1},
		{"1e-99999999999999999999", "0", 1},
		{"0e99999999999999999999", "0", 0},
		{"1" + strings.Repeat("0", 1000), "1e1000", 0},
		{"0." + strings.Repeat("0", 999) + "1", "1e-1000", 0},
		{"123456789012345678901234567890.1", "123456789012345678901234567890.2", -1},
	} {
		t.Run(fmt.Sprintf("SRC-03 %.30s to %s", tt.a, tt.b), func(t *testing.T) {
			a, b := parseDecimal(json.Number(tt.a)), parseDecimal(json.Number(tt.b))
			if got := min(max(a.compare(b), -1), 1); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
			if got := min(max(b.compare(a), -1), 1); got != -tt.want {
				t.Errorf("the other way: got %d, want %d", got, -tt.want)
			}
		})
	}
}

// BenchmarkMatches evaluates a typical pattern for GitHub on a large document without a match.
func BenchmarkMatches(b *testing.B) {
	many := `{"body":{"commits":[` + strings.TrimSuffix(strings.Repeat(`{"id":"0123456789","author":{"name":"x"},"added":["a","b"]},`, 5000), ",") + `]}}`
	for name, tt := range map[string]struct{ pattern, doc string }{
		"two headers and an action": {
			`{"headers":{"x-github-event":["pull_request"]},"body":{"action":["opened","closed","reopened"]}}`,
			`{"headers":{"x-github-event":"pull_request","content-type":"application/json"},"body":{"action":"reopened","number":1}}`,
		},
		"5000 elements": {`{"body":{"commits":{"author":{"name":["y"]},"added":[{"wildcard":"*c*d*"}]}}}`, many},
	} {
		b.Run(name, func(b *testing.B) {
			p, err := Parse([]byte(tt.pattern))
			if err != nil {
				b.Fatal(err)
			}
			doc := decode(b, tt.doc)
			b.ReportAllocs()
			for b.Loop() {
				p.Matches(doc)
			}
		})
	}
}

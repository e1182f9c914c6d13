package jsonrpc

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/mcp-events/mcpevents/test/expect"
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
		if got, want := ParseDecimal(a).Compare(ParseDecimal(b)), exact(a).Cmp(exact(b)); got != want {
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
			a, b := ParseDecimal(json.Number(tt.a)), ParseDecimal(json.Number(tt.b))
			expect.Equal(t, "the order", a.Compare(b), tt.want)
			expect.Equal(t, "the comparison the other way", b.Compare(a), -tt.want)
		})
	}
}

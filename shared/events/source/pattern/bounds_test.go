package pattern

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

func wantFaults(t *testing.T, pattern string, want []string) {
	t.Helper()
	_, err := Parse([]byte(pattern))
	if !fault.Is(err, fault.Invalid) {
		t.Fatalf("got %v", err)
	}
	faults, _ := fault.DataOf(err).([]jsonpointer.Fault)
	var got []string
	for _, f := range faults {
		got = append(got, f.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(err.Error(), want[0]) {
		t.Errorf("%q does not name the first fault", err)
	}
}

func TestParse_Bounds(t *testing.T) {
	or := func(alternatives, times int) string {
		var b strings.Builder
		for i := range times {
			if i > 0 {
				b.WriteString(",")
			}
			fmt.Fprintf(&b, `"m%d":{"$or":[`, i)
			for j := range alternatives {
				if j > 0 {
					b.WriteString(",")
				}
				fmt.Fprintf(&b, `{"n%d":[1]}`, j)
			}
			b.WriteString("]}")
		}
		return "{" + b.String() + "}"
	}
	t.Run("SRC-03 a thousand alternatives are allowed", func(t *testing.T) {
		p, err := Parse([]byte(or(10, 3)))
		if err != nil {
			t.Fatal(err)
		}
		if !p.Matches(decode(t, `{"m0":{"n9":1},"m1":{"n5":1},"m2":{"n0":1}}`)) {
			t.Error("does not match")
		}
	})
	t.Run("SRC-03 more are refused before they are built", func(t *testing.T) {
		wantFaults(t, or(2, 10), []string{"/m9: makes the pattern stand for 1024 alternatives, 1000 are allowed"})
	})
	t.Run("SRC-03 a pattern that is too long is refused", func(t *testing.T) {
		wantFaults(t, `{"a":["`+strings.Repeat("x", MaxSize)+`"]}`, []string{"has 8202 bytes, 8192 are allowed"})
	})
	t.Run("SRC-03 a pattern that is too deep is refused", func(t *testing.T) {
		deep := func(n int) string { return strings.Repeat(`{"a":`, n) + `["x"]` + strings.Repeat("}", n) }
		if _, err := Parse([]byte(deep(MaxDepth - 1))); err != nil {
			t.Fatal(err)
		}
		wantFaults(t, deep(MaxDepth), []string{strings.Repeat("/a", MaxDepth) + ": is nested deeper than 64 levels"})
		// Continuing to parse would take quadratic time in the depth.
		wantFaults(t, strings.Repeat("[", MaxSize/2)+strings.Repeat("]", MaxSize/2), []string{strings.Repeat("/0", MaxDepth) + ": is nested deeper than 64 levels"})
	})
	t.Run("SRC-03 too many values in all alternatives are refused", func(t *testing.T) {
		long := `["` + strings.TrimSuffix(strings.Repeat(`x","`, 50), `","`) + `"]`
		pattern := strings.TrimSuffix(or(10, 3), "}") + `,"v":` + long + "}"
		wantFaults(t, pattern, []string{"/v: makes the alternatives of the pattern have 57000 values together, 20000 are allowed"})
	})
	t.Run("SRC-03 a pattern with a hundred faults lists twenty", func(t *testing.T) {
		_, err := Parse([]byte(`{"a":[` + strings.TrimSuffix(strings.Repeat("[],", 100), ",") + `]}`))
		if faults, _ := fault.DataOf(err).([]jsonpointer.Fault); len(faults) != maxFaults || !strings.Contains(err.Error(), "(and 99 more)") {
			t.Errorf("%d faults: %v", len(faults), err)
		}
	})
}

// BenchmarkParse parses the patterns that take the longest.
func BenchmarkParse(b *testing.B) {
	leaves := `{"$or":[` + strings.TrimSuffix(strings.Repeat(`{"a":[1]},`, 800), ",") + `]}`
	members := ""
	for i := range 500 {
		members += fmt.Sprintf(`,"%d":[%d]`, i, i)
	}
	for name, pattern := range map[string]string{
		"deep":         strings.Repeat("[", MaxSize/2) + strings.Repeat("]", MaxSize/2),
		"wide":         "{" + members[1:] + "}",
		"alternatives": leaves,
		"multiplied":   `{"$or":[{"x":[1]},{"y":[1]}],"a":{"$or":[{"x":[1]},{"y":[1]}]},"b":{"$or":[{"x":[1]},{"y":[1]}]},"c":{"$or":[{"x":[1]},{"y":[1]}]},"d":{"$or":[{"x":[1]},{"y":[1]}]},"e":{"$or":[{"x":[1]},{"y":[1]}]},"f":{"$or":[{"x":[1]},{"y":[1]}]},"g":{"$or":[{"x":[1]},{"y":[1]}]},"h":{"$or":[{"x":[1]},{"y":[1]}]}` + members + "}",
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(pattern)))
			for b.Loop() {
				_, _ = Parse([]byte(pattern))
			}
		})
	}
}

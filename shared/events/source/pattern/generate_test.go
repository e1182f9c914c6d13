//go:build unix && !noemulators

package pattern

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// generator makes patterns and documents. Both use only a few names and values, so that patterns match often enough.
type generator struct {
	*rand.Rand
	theme theme
}

// theme limits the operators in a pattern. Event Ruler 2.1.0 gives wrong results for some combinations of them
// ([TestEventRuler_Differences]), so we cannot compare those.
type theme int

const (
	withWildcards theme = iota // at most one in each leaf
	withIgnoredCase
	withAddresses // and documents have no numbers
)

func pick[T any](g *generator, of ...T) T { return of[g.IntN(len(of))] }

var (
	leafNames = []string{"a", "b", "c", "d", "$or"}
	texts     = []string{"", "x", "X", "xy", "yx", "xyx", "x*y", `x\y`, "é", "É", "us-east", "10.0.0.1", "2001:db8::1", "true", "1", "null"}
	numbers   = []string{"0", "-0.0", "1", "1.0", "10e-1", "-1", "2.5", "25E-1", "100", "1e2", "1000000", "-3.75", "9007199254740992"}
)

func (g *generator) text() string {
	b, _ := json.Marshal(pick(g, texts...))
	return string(b)
}

// someText returns a text that is empty in few cases only, because anything-but refuses an empty prefix.
func (g *generator) someText() string {
	if text := g.text(); text != `""` || g.IntN(20) == 0 {
		return text
	}
	return `"x"`
}

func (g *generator) scalar() string {
	number := pick(g, numbers...)
	if g.theme == withAddresses {
		number = g.text()
	}
	return pick(g, g.text(), g.text(), number, pick(g, "true", "false", "null"))
}

func (g *generator) question() question {
	g.theme = pick(g, withWildcards, withIgnoredCase, withAddresses)
	q := question{Pattern: g.object(0, false)}
	for range 4 {
		q.Documents = append(q.Documents, g.document(0))
	}
	return q
}

// object makes an object of a pattern. Within $or it has fewer members, so that the alternatives do not multiply.
func (g *generator) object(depth int, inOr bool) string {
	var members []string
	seen := map[string]bool{}
	for range 1 + g.IntN(2) {
		name := pick(g, leafNames...)
		if seen[name] {
			continue
		}
		seen[name] = true
		var value string
		switch {
		case name == "$or" && depth < 3:
			var alternatives []string
			for range 2 + g.IntN(2) {
				alternatives = append(alternatives, g.object(depth+1, true))
			}
			value = "[" + strings.Join(alternatives, ",") + "]"
		case name == "$or":
			continue
		case depth < 3 && g.IntN(2) > 0 && !inOr, depth < 2 && g.IntN(3) == 0:
			value = g.object(depth+1, inOr)
		default:
			value = g.leaf()
		}
		members = append(members, fmt.Sprintf("%q:%s", name, value))
	}
	if len(members) == 0 {
		return `{"a":` + g.leaf() + `}`
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (g *generator) leaf() string {
	if g.theme == withWildcards && g.IntN(3) == 0 {
		return `[{"wildcard":` + g.wildcard() + `}]`
	}
	var values []string
	for range 1 + g.IntN(3) {
		values = append(values, g.value())
	}
	if g.IntN(100) == 0 {
		values = nil
	}
	return "[" + strings.Join(values, ",") + "]"
}

func (g *generator) value() string {
	ignoring := func() string {
		if g.theme != withIgnoredCase {
			return g.text()
		}
		return pick(g, g.text(), `{"equals-ignore-case":`+g.text()+`}`)
	}
	switch g.IntN(14) {
	case 0:
		return `{"prefix":` + ignoring() + `}`
	case 1:
		return `{"suffix":` + ignoring() + `}`
	case 2, 3:
		return g.special()
	case 4, 5:
		return `{"anything-but":` + g.butWhat() + `}`
	case 6:
		return `{"exists":` + pick(g, "true", "false") + `}`
	case 7:
		return `{"numeric":` + g.numeric() + `}`
	}
	return g.scalar()
}

// special makes an operator that only some themes have.
func (g *generator) special() string {
	switch g.theme {
	case withWildcards:
		return g.text()
	case withIgnoredCase:
		return `{"equals-ignore-case":` + g.text() + `}`
	}
	return `{"cidr":"` + pick(g, "10.0.0.0/8", "10.0.0.1/31", "128.0.0.0/1", "2001:db8::/32", "2000::/3", "11.0.0.0/8") + `"}`
}

func (g *generator) wildcard() string {
	text := pick(g, "*", "x*", "*x", "*y*", "x*x", "x*y*x", `x\*y`, `x\\y`, "us-*t", "xy", "*é*")
	if g.IntN(100) == 0 {
		text = pick(g, "x**", `\x`, `x\`)
	}
	b, _ := json.Marshal(text)
	return string(b)
}

func (g *generator) butWhat() string {
	list := func(of func() string) string {
		return pick(g, of(), "["+of()+"]", "["+of()+","+of()+"]")
	}
	switch kind := g.IntN(6); {
	case kind == 0:
		return list(func() string { return pick(g, numbers...) })
	case kind == 1:
		return `{"prefix":` + list(g.someText) + `}`
	case kind == 2:
		return `{"suffix":` + list(g.someText) + `}`
	case kind == 3 && g.theme == withIgnoredCase:
		return `{"equals-ignore-case":` + list(g.text) + `}`
	case kind == 3 && g.theme == withWildcards:
		return `{"wildcard":` + list(g.wildcard) + `}`
	}
	return list(g.text)
}

func (g *generator) numeric() string {
	n := pick(g, numbers...)
	switch g.IntN(20) {
	case 0:
		return fmt.Sprintf(`[%q,%s,%q,%s]`, pick(g, ">", ">="), n, pick(g, "<", "<="), pick(g, numbers...))
	case 1, 2, 3, 4, 5, 6:
		return fmt.Sprintf(`[%q,%s,%q,%s]`, pick(g, ">", ">="), pick(g, "-1.5", "0", "-10"), pick(g, "<", "<="), pick(g, "1", "2.50", "1e10"))
	}
	return fmt.Sprintf(`[%q,%s]`, pick(g, "=", "<", "<=", ">", ">="), n)
}

func (g *generator) document(depth int) string {
	var members []string
	for _, name := range leafNames[:4] {
		if g.IntN(5) > 0 {
			members = append(members, fmt.Sprintf("%q:%s", name, g.content(depth)))
		}
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (g *generator) content(depth int) string {
	switch {
	case depth < 3 && g.IntN(3) == 0:
		return g.document(depth + 1)
	case depth < 3 && g.IntN(3) == 0:
		var elements []string
		for range g.IntN(4) {
			elements = append(elements, g.content(depth+1))
		}
		return "[" + strings.Join(elements, ",") + "]"
	}
	return g.scalar()
}

package pattern

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

const (
	opExists     = "exists"
	opIgnoreCase = "equals-ignore-case"
)

// isAbsence reports whether v is {"exists": false}.
func isAbsence(v any) bool {
	name, exists := operatorOf(v)
	return name == opExists && exists == false
}

// operatorOf returns the only member of an object, or "" if v is not an object with one member.
func operatorOf(v any) (name string, operand any) {
	if o, _ := v.(map[string]any); len(o) == 1 {
		for name, operand := range o {
			return name, operand
		}
	}
	return "", nil
}

// parseValue parses one allowed value of a leaf and returns the test for it. If the value is not valid, parseValue adds a fault and
// returns nil.
func (p *parser) parseValue(v any, pointer string) test {
	switch v := v.(type) {
	case map[string]any:
		if len(v) == 1 {
			return p.parseOperator(v, pointer)
		}
		p.fail(pointer, "must have one member, an operator, not %d", len(v))
		return nil
	case []any:
		p.fail(pointer, "must be a string, a number, a boolean, null or an operator, not a list")
		return nil
	case json.Number:
		return compareTo(v, relations["="])
	default:
		return func(value any) bool { return value == v }
	}
}

func (p *parser) parseOperator(o any, pointer string) test {
	name, v := operatorOf(o)
	at := pointer + jsonpointer.Member(name)
	switch name {
	case opExists:
		if v == true {
			return func(any) bool { return true }
		}
		p.fail(at, "must be true or false, not %s", kindOf(v))
	case "anything-but":
		return p.anythingBut(v, at)
	case "numeric":
		return p.parseNumeric(v, at)
	case "prefix", "suffix":
		if inner, text := operatorOf(v); inner == opIgnoreCase {
			return p.parseText(name+" "+opIgnoreCase, text, at+"/"+opIgnoreCase)
		}
		return p.parseText(name, v, at)
	case opIgnoreCase, "wildcard", "cidr":
		return p.parseText(name, v, at)
	default:
		p.fail(at, "is not an operator (allowed: anything-but, cidr, equals-ignore-case, exists, numeric, prefix, suffix, wildcard)")
	}
	return nil
}

func (p *parser) parseText(operator string, v any, pointer string) test {
	s, ok := v.(string)
	if !ok {
		p.fail(pointer, "must be a string, not %s", kindOf(v))
		return nil
	}
	var holds func(string) bool
	switch operator {
	case "prefix":
		holds = func(value string) bool { return strings.HasPrefix(value, s) }
	case "suffix":
		holds = func(value string) bool { return strings.HasSuffix(value, s) }
	case opIgnoreCase:
		s = fold(s)
		holds = func(value string) bool { return fold(value) == s }
	case "prefix " + opIgnoreCase:
		s = fold(s)
		holds = func(value string) bool { return strings.HasPrefix(fold(value), s) }
	case "suffix " + opIgnoreCase:
		s = fold(s)
		holds = func(value string) bool { return strings.HasSuffix(fold(value), s) }
	case "wildcard":
		holds = p.parseWildcard(s, pointer)
	case "cidr":
		holds = p.parseCIDR(s, pointer)
	}
	return func(value any) bool {
		text, ok := value.(string)
		return ok && holds(text)
	}
}

// fold maps strings that differ only in case to the same string.
func fold(s string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
			least = min(least, other)
		}
		return least
	}, s)
}

// parseWildcard returns a function that matches texts against s, in which * stands for any characters. The function takes linear time,
// because it looks only for the first occurrence of each part between the wildcards.
func (p *parser) parseWildcard(s, pointer string) func(string) bool {
	parts := []string{""}
	for i := 0; i < len(s); i++ {
		last := &parts[len(parts)-1]
		switch {
		case s[i] == '*' && i > 0 && s[i-1] == '*' && *last == "":
			p.fail(pointer, "has two adjacent wildcards; one is enough")
		case s[i] == '*':
			parts = append(parts, "")
		case s[i] != '\\':
			*last += s[i : i+1]
		case i+1 < len(s) && (s[i+1] == '*' || s[i+1] == '\\'):
			i++
			*last += s[i : i+1]
		default:
			p.fail(pointer, `has a backslash before a character other than * or \`)
		}
	}
	first, middle, last := parts[0], parts[1:], ""
	if len(middle) == 0 {
		return func(value string) bool { return value == first }
	}
	middle, last = middle[:len(middle)-1], middle[len(middle)-1]
	return func(value string) bool {
		rest, ok := strings.CutPrefix(value, first)
		for _, part := range middle {
			_, after, found := strings.Cut(rest, part)
			rest, ok = after, ok && found
		}
		return ok && strings.HasSuffix(rest, last)
	}
}

func (p *parser) parseCIDR(s, pointer string) func(string) bool {
	prefix, err := netip.ParsePrefix(s)
	if err != nil {
		p.fail(pointer, "must be a range of addresses, such as 10.0.0.0/8 or 2001:db8::/32")
		return nil
	}
	return func(value string) bool {
		address, err := netip.ParseAddr(value)
		return err == nil && prefix.Contains(address.Unmap())
	}
}

// anythingBut parses the operand of the operator anything-but, which is one excluded value or a list of them. The returned test passes
// for a value of any type unless an excluded value matches it.
func (p *parser) anythingBut(v any, pointer string) test {
	operator, operand := operatorOf(v)
	if _, ok := v.(map[string]any); ok {
		if !slices.Contains([]string{"prefix", "suffix", opIgnoreCase, "wildcard"}, operator) {
			p.fail(pointer, "must be values or one of the operators prefix, suffix, equals-ignore-case, wildcard")
			return nil
		}
		v, pointer = operand, pointer+"/"+operator
	}
	list, isList := v.([]any)
	if !isList {
		list = []any{v}
	}
	if len(list) == 0 {
		p.fail(pointer, "is an empty list")
	}
	var but []test
	for i, v := range list {
		at := pointer
		if isList {
			at += "/" + strconv.Itoa(i)
		}
		if kindOf(v) != kindOf(list[0]) {
			p.fail(at, "is %s, but the first value is %s; all must be of the same kind", kindOf(v), kindOf(list[0]))
		}
		but = append(but, p.parseException(operator, v, at))
	}
	return func(value any) bool {
		return !slices.ContainsFunc(but, func(t test) bool { return t(value) })
	}
}

func (p *parser) parseException(operator string, v any, pointer string) test {
	switch v := v.(type) {
	case string:
		if operator == "" {
			return p.parseValue(v, pointer)
		}
		if v == "" && (operator == "prefix" || operator == "suffix") {
			p.fail(pointer, "is empty, so that nothing would match")
		}
		return p.parseText(operator, v, pointer)
	case json.Number:
		if operator == "" {
			return p.parseValue(v, pointer)
		}
		p.fail(pointer, "must be a string, not a number")
	default:
		p.fail(pointer, "must be a string or a number, not %s", kindOf(v))
	}
	return nil
}

// compareTo returns a test that compares a number with n. The function holds gets the result of the comparison, which is negative, 0 or
// positive, and decides whether the test passes.
func compareTo(n json.Number, holds func(int) bool) test {
	d := jsonrpc.ParseDecimal(n)
	return func(value any) bool {
		n, ok := value.(json.Number)
		return ok && holds(jsonrpc.ParseDecimal(n).Compare(d))
	}
}

var relations = map[string]func(int) bool{
	"=":  func(c int) bool { return c == 0 },
	"<":  func(c int) bool { return c < 0 },
	"<=": func(c int) bool { return c <= 0 },
	">":  func(c int) bool { return c > 0 },
	">=": func(c int) bool { return c >= 0 },
}

// parseNumeric parses the operand of the numeric operator: ["=", n], a bound such as [">", 0], or a lower and an upper bound such as
// [">=", 0, "<", 10].
func (p *parser) parseNumeric(v any, pointer string) test {
	list, _ := v.([]any)
	var operators []string
	var numbers []json.Number
	for pair := range slices.Chunk(list, 2) {
		operator, _ := pair[0].(string)
		number, ok := pair[len(pair)-1].(json.Number)
		if relations[operator] == nil || !ok {
			operators = nil
			break
		}
		operators, numbers = append(operators, operator), append(numbers, number)
	}
	bounded := len(operators) == 2 && operators[0][0] == '>' && operators[1][0] == '<'
	if len(operators) != 1 && !bounded {
		p.fail(pointer, `must be a list such as ["=", 5], [">", 0] or [">=", 0, "<", 10]`)
		return nil
	}
	if bounded && jsonrpc.ParseDecimal(numbers[0]).Compare(jsonrpc.ParseDecimal(numbers[1])) >= 0 {
		p.fail(pointer, "has a lower bound that is not below the upper one")
		return nil
	}
	var tests []test
	for i, n := range numbers {
		tests = append(tests, compareTo(n, relations[operators[i]]))
	}
	return func(value any) bool {
		return !slices.ContainsFunc(tests, func(t test) bool { return !t(value) })
	}
}

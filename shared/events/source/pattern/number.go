package pattern

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// maxExponent limits the exponents of numbers in patterns. Numbers in documents need no limit, because they are only
// compared with numbers of patterns.
const maxExponent = 10_000

// decimal is a number in a normal form, so that equal numbers are equal values: 0.digits times ten to the power of
// exponent. The first and last digit are not zero, and the number zero has no digits.
type decimal struct {
	negative bool
	digits   string
	exponent int
}

// parseDecimal parses the text of a JSON number. An exponent that does not fit into an int is replaced by the nearest
// int.
func parseDecimal(n json.Number) decimal {
	text, negative := strings.CutPrefix(string(n), "-")
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		exponent, _ = strconv.Atoi(text[i+1:]) // Atoi returns the nearest int if out of range
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	// Keep away from the limits of int, so that the sum cannot overflow.
	const most = 1 << 40
	exponent = min(max(exponent, -most), most) + len(digits) - len(fraction)
	digits = strings.TrimRight(digits, "0")
	if digits == "" {
		return decimal{}
	}
	return decimal{negative, digits, exponent}
}

// compare returns a negative number, zero or a positive number if d is less than, equal to or greater than e.
func (d decimal) compare(e decimal) int {
	switch {
	case d.sign() != e.sign():
		return d.sign() - e.sign()
	case d.exponent != e.exponent:
		return (d.exponent - e.exponent) * d.sign()
	}
	return strings.Compare(d.digits, e.digits) * d.sign()
}

func (d decimal) sign() int {
	switch {
	case d.digits == "":
		return 0
	case d.negative:
		return -1
	}
	return 1
}

// compare returns a test that passes for numbers whose comparison with n satisfies holds.
func (p *parser) compare(n json.Number, pointer string, holds func(int) bool) test {
	d := parseDecimal(n)
	if d.exponent > maxExponent || d.exponent < -maxExponent {
		p.fail(pointer, "is a number with an exponent beyond %d", maxExponent)
		return nil
	}
	return func(value any) bool {
		n, ok := value.(json.Number)
		return ok && holds(parseDecimal(n).compare(d))
	}
}

var relations = map[string]func(int) bool{
	"=":  func(c int) bool { return c == 0 },
	"<":  func(c int) bool { return c < 0 },
	"<=": func(c int) bool { return c <= 0 },
	">":  func(c int) bool { return c > 0 },
	">=": func(c int) bool { return c >= 0 },
}

// numeric parses the operand of the numeric operator: ["=", n], a bound, or a lower and an upper bound.
func (p *parser) numeric(v any, pointer string) test {
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
	if bounded && parseDecimal(numbers[0]).compare(parseDecimal(numbers[1])) >= 0 {
		p.fail(pointer, "has a lower bound that is not below the upper one")
		return nil
	}
	var tests []test
	for i, n := range numbers {
		t := p.compare(n, pointer+"/"+strconv.Itoa(2*i+1), relations[operators[i]])
		if t == nil {
			return nil
		}
		tests = append(tests, t)
	}
	return func(value any) bool {
		return !slices.ContainsFunc(tests, func(t test) bool { return !t(value) })
	}
}

package jsonrpc

import (
	"cmp"
	"encoding/json"
	"strconv"
	"strings"
)

// Decimal is a number in normal form, 0.digits times ten to the power of exponent. The first and last digit are not
// zero, so equal numbers are equal Go values. Zero has no digits.
type Decimal struct {
	negative bool
	digits   string
	exponent int
}

// ParseDecimal parses a JSON number. It replaces an exponent that does not fit into an int by the nearest int.
func ParseDecimal(n json.Number) Decimal {
	text, negative := strings.CutPrefix(string(n), "-")
	mantissa, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		mantissa = text[:i]
		exponent, _ = strconv.Atoi(text[i+1:]) // Atoi returns the nearest int if out of range
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits := strings.TrimLeft(whole+fraction, "0")
	// This limit is far within the range of int, so that the sum below cannot overflow.
	const most = 1 << 40
	exponent = min(max(exponent, -most), most) + len(digits) - len(fraction)
	digits = strings.TrimRight(digits, "0")
	if digits == "" {
		return Decimal{}
	}
	return Decimal{negative, digits, exponent}
}

// Compare compares two numbers like [cmp.Compare].
func (d Decimal) Compare(e Decimal) int {
	switch {
	case d.sign() != e.sign():
		return cmp.Compare(d.sign(), e.sign())
	case d.exponent != e.exponent:
		return cmp.Compare(d.exponent, e.exponent) * d.sign()
	}
	return strings.Compare(d.digits, e.digits) * d.sign()
}

// maxZeros is how many zeros [Decimal.String] writes at most. A number that needs more gets an exponent, because a short number that a
// client sends, such as 1e300, must not become long.
const maxZeros = 21

// String returns the number as JSON. Equal numbers have equal texts: 5.0 and 50e-1 are both 5. Large integers stay exact.
func (d Decimal) String() string {
	if d.digits == "" {
		return "0"
	}
	sign, zeros := "", d.exponent-len(d.digits)
	if d.negative {
		sign = "-"
	}
	switch {
	case zeros > maxZeros || -d.exponent > maxZeros:
		text := d.digits[:1]
		if len(d.digits) > 1 {
			text += "." + d.digits[1:]
		}
		return sign + text + "e" + strconv.Itoa(d.exponent-1)
	case zeros >= 0:
		return sign + d.digits + strings.Repeat("0", zeros)
	case d.exponent > 0:
		return sign + d.digits[:d.exponent] + "." + d.digits[d.exponent:]
	}
	return sign + "0." + strings.Repeat("0", -d.exponent) + d.digits
}

func (d Decimal) sign() int {
	switch {
	case d.digits == "":
		return 0
	case d.negative:
		return -1
	}
	return 1
}

package match

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Span is a range of numbers or times. A value must satisfy all bounds.
type Span struct {
	Time   bool    `json:"t,omitempty"`
	Bounds []Bound `json:"b"`
}

// Bound is a limit of a [Span]. Value is a JSON number or an RFC 3339 time.
type Bound struct {
	Op    string `json:"o"` // one of rangeOps
	Value string `json:"v"`
}

// rangeOps are the operators of a range, with the results of a comparison that satisfy them.
var rangeOps = map[string][]int{"$gt": {1}, "$gte": {0, 1}, "$lt": {-1}, "$lte": {-1, 0}}

// isRange reports whether the argument of a filter is a range.
func isRange(raw json.RawMessage) bool {
	raw = bytes.TrimSpace(raw)
	return len(raw) > 0 && raw[0] == '{'
}

// newSpan reads a range of the given type.
func newSpan(of catalog.RangeType, raw json.RawMessage) (*Span, error) {
	if of == catalog.NoRange {
		return nil, fault.New(fault.Invalid, "a range is not allowed (allowed for what is declared as a number, an integer, or a string of the format date-time)")
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || len(members) == 0 {
		return nil, fault.New(fault.Invalid, "a range has at least one of $gt, $gte, $lt, $lte")
	}
	s := &Span{Time: of == catalog.TimeRange}
	for op, v := range members {
		b := Bound{op, string(bytes.TrimSpace(v))}
		if rangeOps[op] == nil {
			return nil, fault.New(fault.Invalid, "a range has no %.32q (allowed: $gt, $gte, $lt, $lte)", op)
		}
		if s.Time && json.Unmarshal(v, &b.Value) != nil || len(b.Value) > maxBound || !s.readable(b.Value) {
			return nil, fault.New(fault.Invalid, "%s of the range is not a %s of up to %d bytes", op, of, maxBound)
		}
		s.Bounds = append(s.Bounds, b)
	}
	slices.SortFunc(s.Bounds, func(a, b Bound) int { return cmp.Compare(a.Op, b.Op) })
	return s, s.checkNotEmpty()
}

// checkNotEmpty refuses bounds that no value can satisfy.
func (s *Span) checkNotEmpty() error {
	for _, low := range s.Bounds {
		for _, high := range s.Bounds {
			if low.Op[1] != 'g' || high.Op[1] != 'l' {
				continue
			}
			order, _ := s.compare(low.Value, high.Value)
			if order > 0 || order == 0 && !(low.Op == "$gte" && high.Op == "$lte") {
				return fault.New(fault.Invalid, "the range is empty: no value is both %s %s and %s %s", low.Op, low.Value, high.Op, high.Value)
			}
		}
	}
	return nil
}

// maxBound is the maximum length of a bound's text.
const maxBound = 64

func (s *Span) readable(text string) bool {
	if s.Time {
		_, err := event.ParseTime(text)
		return err == nil
	}
	_, err := strconv.ParseFloat(text, 64)
	return err == nil && text != "" && (text[0] == '-' || text[0] >= '0' && text[0] <= '9')
}

// accept reports whether a value of a payload, or an element of it if it is a list, is in the range.
func (s *Span) accept(got any) bool {
	switch got := got.(type) {
	case string:
		return s.Time && s.holds(got)
	case json.Number:
		return !s.Time && s.holds(got.String())
	case []any:
		return slices.ContainsFunc(got, s.accept)
	}
	return false
}

func (s *Span) holds(text string) bool {
	for _, b := range s.Bounds {
		order, ok := s.compare(text, b.Value)
		if !ok || !slices.Contains(rangeOps[b.Op], order) {
			return false
		}
	}
	return len(s.Bounds) > 0
}

func (s *Span) compare(a, b string) (order int, ok bool) {
	if s.Time {
		return compareTimes(a, b)
	}
	return compareNumbers(a, b)
}

func compareTimes(a, b string) (int, bool) {
	x, err := event.ParseTime(a)
	if err != nil {
		return 0, false
	}
	y, err := event.ParseTime(b)
	return x.Compare(y), err == nil
}

// compareNumbers compares two JSON numbers. Rounding keeps their order, so only numbers that round to the same float64 need an exact
// comparison. It is limited to short numbers without an exponent, because e.g. 1e999999 has a million digits.
func compareNumbers(a, b string) (int, bool) {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	for _, err := range []error{errX, errY} {
		if err != nil && !errors.Is(err, strconv.ErrRange) { // a number beyond float64 is read as infinite
			return 0, false
		}
	}
	if x != y || a == b || len(a) > maxBound || strings.ContainsAny(a+b, "eE") {
		return cmp.Compare(x, y), true
	}
	p, okP := new(big.Rat).SetString(a)
	q, okQ := new(big.Rat).SetString(b)
	if !okP || !okQ {
		return 0, false
	}
	return p.Cmp(q), true
}

package match

import (
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// TestRanges: RCH-09.
func TestRanges(t *testing.T) {
	payload := `{"n":100,"f":0.1,"big":9007199254740993,"huge":1e999,"neg":-5,"at":"2026-11-23T12:00:00+01:00","when":"yesterday","list":[1,600],"ok":true,"s":"100"}`
	for _, c := range []struct {
		name, pointer string
		of            catalog.RangeType
		argument      string
		want          bool
	}{
		{"at least, equal", "/n", catalog.NumberRange, `{"$gte":100}`, true},
		{"greater, equal", "/n", catalog.NumberRange, `{"$gt":100}`, false},
		{"less, equal", "/n", catalog.NumberRange, `{"$lt":100.0}`, false},
		{"at most, equal, written otherwise", "/n", catalog.NumberRange, `{"$lte":1e2}`, true},
		{"between", "/n", catalog.NumberRange, `{"$gte":100,"$lt":500}`, true},
		{"one bound does not hold", "/n", catalog.NumberRange, `{"$gte":50,"$lt":100}`, false},
		{"one number", "/n", catalog.NumberRange, `{"$gte":100,"$lte":1e2}`, true},
		{"beyond the precision of float64, between", "/big", catalog.NumberRange, `{"$gt":9007199254740992,"$lt":9007199254740994}`, true},
		{"negative", "/neg", catalog.NumberRange, `{"$lt":-4.5}`, true},
		{"a fraction", "/f", catalog.NumberRange, `{"$gt":0.0999999}`, true},
		{"beyond the precision of float64", "/big", catalog.NumberRange, `{"$gt":9007199254740992}`, true},
		{"beyond it, equal", "/big", catalog.NumberRange, `{"$gt":9007199254740993}`, false},
		{"a number beyond float64", "/huge", catalog.NumberRange, `{"$gt":1e300}`, true},
		{"an element of a list", "/list", catalog.NumberRange, `{"$gt":500}`, true},
		{"no element of a list", "/list", catalog.NumberRange, `{"$gt":1,"$lt":600}`, false},
		{"a text is no number", "/s", catalog.NumberRange, `{"$gte":0}`, false},
		{"a boolean is no number", "/ok", catalog.NumberRange, `{"$gte":0}`, false},
		{"a member that is not there", "/absent", catalog.NumberRange, `{"$gte":0}`, false},
		{"a time of another zone, equal", "/at", catalog.TimeRange, `{"$gte":"2026-11-23T11:00:00Z"}`, true},
		{"a later time", "/at", catalog.TimeRange, `{"$gt":"2026-11-23T11:00:00Z"}`, false},
		{"between times", "/at", catalog.TimeRange, `{"$gt":"2026-11-23T10:59:59.999Z","$lt":"2026-11-23T11:00:00.001Z"}`, true},
		{"a text that is no time", "/when", catalog.TimeRange, `{"$gt":"2000-01-01T00:00:00Z"}`, false},
		{"a number is no time", "/n", catalog.TimeRange, `{"$gt":"2000-01-01T00:00:00Z"}`, false},
	} {
		t.Run("RCH-09 "+c.name, func(t *testing.T) {
			f, err := newFilter(c.pointer, c.of, []byte(c.argument))
			if err != nil {
				t.Fatal(err)
			}
			if got := (&Payload{Event: &event.Event{Data: []byte(payload)}}).Passes([]Filter{f}); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
	for name, c := range map[string]struct {
		of             catalog.RangeType
		argument, want string
	}{
		"where none may be": {catalog.NoRange, `{"$gt":1}`, "a range is not allowed"},
		"without bounds":    {catalog.NumberRange, `{}`, "at least one of"},
		"an unknown bound":  {catalog.NumberRange, `{"$eq":1}`, "allowed: $gt, $gte, $lt, $lte"},
		"a text":            {catalog.NumberRange, `{"$gt":"1"}`, "is not a number"},
		"NaN":               {catalog.NumberRange, `{"$gt":null}`, "is not a number"},
		"a long number":     {catalog.NumberRange, `{"$gt":1` + strings.Repeat("0", 64) + `}`, "up to 64 bytes"},
		"a date":            {catalog.TimeRange, `{"$gt":"2026-11-23"}`, "is not a date-time"},
		"a number as time":  {catalog.TimeRange, `{"$gt":5}`, "is not a date-time"},
		"from above":        {catalog.NumberRange, `{"$gte":500,"$lt":100}`, "the range is empty: no value is both $gte 500 and $lt 100"},
		"of one, without":   {catalog.NumberRange, `{"$gt":100,"$lte":1e2}`, "no value is both $gt 100 and $lte 1e2"},
		"of one, excluded":  {catalog.NumberRange, `{"$gte":100,"$lt":100}`, "no value is both $gte 100 and $lt 100"},
		"by one of three":   {catalog.NumberRange, `{"$gt":1,"$gte":7,"$lte":5}`, "no value is both $gte 7 and $lte 5"},
		"of times":          {catalog.TimeRange, `{"$gte":"2026-11-23T12:00:00Z","$lt":"2026-11-23T12:00:00+01:00"}`, "no value is both $gte 2026-11-23T12:00:00Z and $lt 2026-11-23T12:00:00+01:00"},
		"in a list":         {catalog.NumberRange, `[{"$gt":1}]`, "not allowed"},
	} {
		t.Run("RCH-09 refused: "+name, func(t *testing.T) {
			if _, err := newFilter("/n", c.of, []byte(c.argument)); !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	t.Run("RCH-09 a number with a large exponent or very many digits costs nothing", func(t *testing.T) {
		f, err := newFilter("", catalog.NumberRange, []byte(`{"$gte":0}`))
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, number := range []string{"1e-999999999", "0." + strings.Repeat("0", 200_000) + "1", strings.Repeat("9", 200_000)} {
			if !(&Payload{Event: &event.Event{Data: []byte(number)}}).Passes([]Filter{f}) {
				t.Errorf("%.20s is not let through", number)
			}
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v", took)
		}
	})
}

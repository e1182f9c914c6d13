package event

import (
	"errors"
	"strings"
	"time"
)

// maxTime bounds the text of a time in bytes; the parts of a second may have any number of digits.
const maxTime = 64

var errTime = errors.New("not a date-time of RFC 3339")

// ParseTime reads a date-time of RFC 3339, whose T and Z may be small letters (section 5.6). [time.Parse] takes no small
// letters, and what RFC 3339 has not: a comma before the fraction, and hours of one digit.
func ParseTime(text string) (time.Time, error) {
	if len(text) < len("2006-01-02T15:04:05Z") || len(text) > maxTime || text[len("2006-01-02T15")] != ':' || strings.Contains(text, ",") {
		return time.Time{}, errTime
	}
	if strings.ContainsAny(text, "tz") {
		text = strings.ToUpper(text)
	}
	return time.Parse(time.RFC3339Nano, text)
}

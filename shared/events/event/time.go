package event

import (
	"errors"
	"strings"
	"time"
)

// maxTime is the maximum length of a time in bytes. RFC 3339 itself does not limit the digits of a fraction.
const maxTime = 64

var errTime = errors.New("not a date-time of RFC 3339")

// ParseTime parses a date-time of RFC 3339. T and Z may be in lower case (section 5.6). Unlike [time.Parse], it
// accepts lower case, and refuses a comma before the fraction and hours with one digit.
func ParseTime(text string) (time.Time, error) {
	if len(text) < len("2006-01-02T15:04:05Z") || len(text) > maxTime || text[len("2006-01-02T15")] != ':' || strings.Contains(text, ",") {
		return time.Time{}, errTime
	}
	if strings.ContainsAny(text, "tz") {
		text = strings.ToUpper(text)
	}
	return time.Parse(time.RFC3339Nano, text)
}

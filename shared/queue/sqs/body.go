package sqs

import (
	"bytes"
	"unicode/utf8"
)

// Safe returns a JSON text as SQS takes it. SQS refuses a message with a
// character that XML 1.0 lacks: U+FFFE, U+FFFF and the control characters
// other than tab, line feed and carriage return. They become \uXXXX, which
// means the same, since in JSON they can only stand in a string. A body without
// them is returned as it is.
//
// Valid UTF-8 that is not JSON becomes acceptable to SQS too, but means
// something else afterwards.
func Safe(body []byte) []byte {
	i := refused(body)
	if i < 0 {
		return body
	}
	safe := make([]byte, 0, len(body)+16)
	for i >= 0 {
		r, size := utf8.DecodeRune(body[i:])
		safe = append(safe, body[:i]...)
		safe = append(safe, '\\', 'u', hex[r>>12&15], hex[r>>8&15], hex[r>>4&15], hex[r&15])
		body = body[i+size:]
		i = refused(body)
	}
	return append(safe, body...)
}

const hex = "0123456789abcdef"

// refused returns the index of the first character that SQS refuses, or -1. It
// looks at bytes, as all but a handful of bodies have none.
func refused(body []byte) int {
	for i, c := range body {
		switch {
		case c < 0x20 && c != '\t' && c != '\n' && c != '\r':
			return i
		case c == 0xef && (bytes.HasPrefix(body[i:], []byte("\ufffe")) || bytes.HasPrefix(body[i:], []byte("\uffff"))):
			return i
		}
	}
	return -1
}

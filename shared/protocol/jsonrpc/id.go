package jsonrpc

import (
	"encoding/json"
	"strconv"
)

// SameID reports whether an id or a progress token in a response equals the one that was sent. The responder may have encoded it differently, for
// example "\u0061" for "a" or, if it reads numbers as doubles, 5.0 for 5.
func SameID(got, sent json.RawMessage) bool {
	if string(got) == string(sent) {
		return true
	}
	if len(got) == 0 || len(got) > MaxID {
		return false
	}
	if text, ok := String(got); ok {
		same, ok := String(sent)
		return ok && same == text
	}
	one, err := strconv.ParseFloat(string(got), 64)
	other, err2 := strconv.ParseFloat(string(sent), 64)
	return err == nil && err2 == nil && one == other
}

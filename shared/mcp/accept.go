package mcp

import (
	"iter"
	"net/http"
	"strings"
)

// accepts reports whether the Accept header lets the media type through. None at
// all accepts anything (RFC 9110, section 12.5.1).
func accepts(h http.Header, mediaType string) bool {
	values := h["Accept"]
	if len(values) == 0 {
		return true
	}
	main, _, _ := strings.Cut(mediaType, "/")
	for t := range mediaTypes(values) {
		if strings.EqualFold(t, mediaType) || t == "*/*" || strings.EqualFold(t, main+"/*") {
			return true
		}
	}
	return false
}

// mediaTypes are those that an Accept header lists, without their parameters.
func mediaTypes(values []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, v := range values {
			for part := range strings.SplitSeq(v, ",") {
				t, _, _ := strings.Cut(part, ";")
				if !yield(strings.TrimSpace(t)) {
					return
				}
			}
		}
	}
}

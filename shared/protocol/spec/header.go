package spec

import (
	"encoding/base64"
	"errors"
	"strings"
	"unicode/utf8"
)

// The HTTP headers of the transport, in the canonical form of [http.Header].
const (
	HeaderVersion   = "Mcp-Protocol-Version"
	HeaderMethod    = "Mcp-Method"
	HeaderName      = "Mcp-Name"
	HeaderSession   = "Mcp-Session-Id"
	HeaderLastEvent = "Last-Event-Id"
	// HeaderParameter is the prefix of the headers that repeat arguments of a tool (2026-07-28, Custom Headers from Tool Parameters).
	HeaderParameter = "Mcp-Param-"
)

// Mirrored maps a method to the member of params that [HeaderName] repeats (2026-07-28, Standard Request Headers).
var Mirrored = map[string]string{
	MethodToolsCall:  "name",
	MethodPromptsGet: "name",
	MethodRead:       "uri",

	MethodTasksGet: "taskId", MethodTasksUpdate: "taskId", MethodTasksCancel: "taskId",
}

// Values of Mcp-Name that are not plain ASCII are encoded in Base64 between these marks, for example =?base64?w6k=?= for é (2026-07-28,
// Value Encoding).
const (
	sentinelStart = "=?base64?"
	sentinelEnd   = "?="
)

var errHeaderValue = errors.New("the header value is malformed")

// EncodeHeader encodes a name or a URI as a header value.
func EncodeHeader(s string) string {
	plain := strings.Trim(s, " \t") == s && (!strings.HasPrefix(s, sentinelStart) || !strings.HasSuffix(s, sentinelEnd))
	for i := 0; plain && i < len(s); i++ {
		plain = headerByte(s[i])
	}
	if plain {
		return s
	}
	return sentinelStart + base64.StdEncoding.EncodeToString([]byte(s)) + sentinelEnd
}

// DecodeHeader decodes a header value that [EncodeHeader] has encoded.
func DecodeHeader(value string) (string, error) {
	value = strings.Trim(value, " \t")
	for i := 0; i < len(value); i++ {
		if !headerByte(value[i]) {
			return "", errHeaderValue
		}
	}
	inner, ok := strings.CutPrefix(value, sentinelStart)
	if !ok || !strings.HasSuffix(inner, sentinelEnd) {
		return value, nil
	}
	b, err := base64.StdEncoding.Strict().DecodeString(strings.TrimSuffix(inner, sentinelEnd))
	if err != nil || !utf8.Valid(b) {
		return "", errHeaderValue
	}
	return string(b), nil
}

// headerByte reports whether RFC 9110 allows the character in a header value.
func headerByte(c byte) bool { return c >= ' ' && c <= '~' || c == '\t' }

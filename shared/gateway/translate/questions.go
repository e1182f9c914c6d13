package translate

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Digest is the same for JSON values that are equal but for the order of members and
// how they are written.
func Digest(value json.RawMessage) string {
	if len(value) > 0 {
		value, _ = json.Marshal(jsonrpc.Value(value)) // sorts
	}
	h := sha256.Sum256(value)
	return base64.RawURLEncoding.EncodeToString(h[:18])
}

// QuestionDigest leaves out what differs each time that a backend puts the same question:
// the id of an elicitation, in the URL too, and _meta.
func QuestionDigest(params json.RawMessage) string {
	id, _ := jsonrpc.String(jsonrpc.Member(params, "elicitationId"))
	params = jsonrpc.Without(params, func(name string) bool { return name == "_meta" || name == "elicitationId" })
	if url, ok := jsonrpc.String(jsonrpc.Member(params, "url")); ok && len(id) >= 8 {
		params = jsonrpc.Replace(params, "url", jsonrpc.Quote(strings.ReplaceAll(url, id, "")))
	}
	return Digest(params)
}

// AppendInput appends a member of inputRequests. Nothing notifies of progress between rounds, and
// the revision has no elicitationId.
func AppendInput(b []byte, key, method string, params json.RawMessage) []byte {
	if len(b) > 1 {
		b = append(b, ',')
	}
	b = jsonrpc.AppendString(append(jsonrpc.AppendString(b, key), `:{"method":`...), method)
	if params != nil {
		meta := jsonrpc.Without(jsonrpc.Member(params, "_meta"), func(name string) bool { return name == "progressToken" })
		params = jsonrpc.Without(params, func(name string) bool {
			return name == "elicitationId" || name == "_meta" && len(meta) <= len(`{}`)
		})
		b = append(append(b, `,"params":`...), jsonrpc.Replace(params, "_meta", meta)...)
	}
	return append(b, '}')
}

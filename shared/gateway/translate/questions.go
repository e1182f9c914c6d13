package translate

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Digest returns a hash of a JSON value. It does not depend on the order of members or on formatting.
func Digest(value json.RawMessage) string {
	if len(value) > 0 {
		value, _ = json.Marshal(jsonrpc.Value(value)) // sorts the members
	}
	h := sha256.Sum256(value)
	return base64.RawURLEncoding.EncodeToString(h[:18])
}

// QuestionDigest returns a digest that stays the same when a backend asks the same question again. It ignores _meta and the id of an
// elicitation, including in its URL.
func QuestionDigest(params json.RawMessage) string {
	id, _ := jsonrpc.String(jsonrpc.Member(params, "elicitationId"))
	params = jsonrpc.Without(params, func(name string) bool { return name == "_meta" || name == "elicitationId" })
	if url, ok := jsonrpc.String(jsonrpc.Member(params, "url")); ok && len(id) >= 8 {
		params = jsonrpc.Replace(params, "url", jsonrpc.Quote(strings.ReplaceAll(url, id, "")))
	}
	return Digest(params)
}

// AppendInput appends a member to inputRequests. It removes the progress token, because the gateway reports no progress between rounds, and
// the elicitationId, which the revision does not have.
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

// Package httpjson writes the answers of the HTTP interfaces beside MCP.
package httpjson

import (
	"encoding/json"
	"net/http"
)

// Reply answers with body, which must be of types that JSON has. Nobody may keep the answer.
func Reply(w http.ResponseWriter, status int, body any) {
	b, _ := json.Marshal(body) // as said above
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the caller may be gone
}

package method

import (
	"encoding/json"
	"testing"
)

// GWN-17, SUB-09: the errors that 2026-07-28 has an HTTP status for keep it on their way from a backend.
func TestStatusOfABackendsErrors(t *testing.T) {
	for code, want := range map[string]int{"-32021": 400, "-32020": 400, "-32022": 400, "-32602": 400, "-32601": 404, "-32050": 200} {
		message := json.RawMessage(`{"jsonrpc":"2.0","id":1,"error":{"code":` + code + `,"message":"m"}}`)
		if got := statusOf(message); got != want {
			t.Errorf("%s: got %d, want %d", code, got, want)
		}
	}
}

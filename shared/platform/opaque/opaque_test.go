package opaque

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestOnlyTheIssuedTokenIsDecoded(t *testing.T) {
	want := []byte("a cursor")
	token := Encode(want)
	if got, err := Decode(token); err != nil || !bytes.Equal(got, want) {
		t.Errorf("Decode(%q) = %q, %v, want %q", token, got, err, want)
	}
	for _, changed := range []string{token + "\n", "\n" + token, token[:4] + "\r\n" + token[4:], token + "=", token + " ", token[:len(token)-1] + "t"} {
		expect.Error(t, fmt.Sprintf("the decoding of %q", changed), expect.ErrOf(Decode(changed)))
	}
}

package webhook

import (
	"crypto/rand"
	"encoding/json"
	"testing"

	"github.com/mcp-events/mcpevents/test/constanttime"
)

// TestChallenge_ConstantTime inspects the source. Only one line may compare the challenge with the echo, and it must
// do so in constant time.
func TestChallenge_ConstantTime(t *testing.T) {
	t.Run("EVX-12 the echo is compared with the challenge in constant time", func(t *testing.T) {
		constanttime.Check(t, constanttime.Rules{
			Files:     []string{"challenge.go", "outcome.go"},
			Allowed:   map[string]string{"path == prefix": "paths that an origin declares publicly"},
			Comparers: map[string]string{"echoes": "subtle.ConstantTimeCompare([]byte(echo.Challenge), []byte(nonce))"},
		})
	})
}

// BenchmarkEchoes measures whether an echo that differs in its first letter is refused as quickly as one that differs
// in its last (EVX-12).
func BenchmarkEchoes(b *testing.B) {
	nonce := rand.Text() + rand.Text()
	answer := func(challenge string) []byte {
		body, err := json.Marshal(verification{Type: "verification", Challenge: challenge})
		if err != nil {
			b.Fatal(err)
		}
		return body
	}
	early, late := answer("0"+nonce[1:]), answer(nonce[:len(nonce)-1]+"0") // a nonce does not contain 0
	constanttime.Measure(b, func() bool { return echoes(early, nonce) }, func() bool { return echoes(late, nonce) })
}

//go:build unix

package e2e

import (
	"io"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestDrain tests what SIGTERM does to open streams of every kind. Lambda gives its instances only half a second, in
// which a busy machine may not get to it; TestManagedInstance shows that clients then continue at another instance.
func TestDrain(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{})
	stateless, sessionBased, dialect := s.Stateless("alice"), s.SessionBased(t, "alice", harness.V20251125), s.Dialect("alice", "default")
	sessionBased.Call(t, "resources/subscribe", object{"uri": "event://chat/drain/general/message"}, nil)
	listen := stateless.Listen(t, "drained", object{"resourcesListChanged": true}, nil)
	get := sessionBased.Open(t, "")
	harness.Eventually(t, harness.Patience, "the session's stream is open", func() bool { return len(get.Primes()) > 0 })
	named := dialect.OpenDialect(t, "")
	t.Run("SUB-07 a quiet listen is kept alive, and proxies are told not to buffer it", func(t *testing.T) {
		harness.Eventually(t, harness.Patience, "a comment", func() bool { return listen.Comments() > 0 })
		expect.Equal(t, "X-Accel-Buffering", listen.Header.Get("X-Accel-Buffering"), "no")
	})
	s.Stop()
	last := func(st *harness.Stream) *harness.Message {
		<-st.Ended()
		if st.Err() != io.EOF {
			t.Errorf("a stream ended by %v, want the end of its response", st.Err())
		}
		messages := st.Messages()
		return messages[len(messages)-1]
	}
	t.Run("SUB-02 SUB-06 a listen ends with its result, and all of its messages name its request", func(t *testing.T) {
		if m := last(listen); string(m.ID) != `"drained"` || string(harness.Meta(m.Result, harness.SubscriptionID)) != `"drained"` {
			t.Errorf("last message: %s", m.Raw)
		}
		if first := listen.Messages()[0]; string(harness.Meta(first.Params, harness.SubscriptionID)) != `"drained"` {
			t.Errorf("first message: %s", first.Raw)
		}
	})
	t.Run("SES-03 a session's stream ends with an id and retry", func(t *testing.T) {
		<-get.Ended()
		if get.Err() != io.EOF || get.Retry() == "" || len(get.Primes()) < 2 {
			t.Errorf("ended by %v, retry %q, ids %q", get.Err(), get.Retry(), get.Primes())
		}
	})
	t.Run("SSE-02 a stream of the dialect ends with streamClosed", func(t *testing.T) {
		if m := last(named); m.Method != "streamClosed" || string(m.Params) != `{"reason":"shutdown"}` {
			t.Errorf("last message: %s", m.Raw)
		}
	})
}

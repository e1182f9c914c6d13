//go:build unix

package e2e

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestDrain tests what SIGTERM does to open streams of every kind, stand-alone and with the functions.
func TestDrain(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := harness.StartServer(t, harness.ServerOptions{})
		drain(t, &s.Target, s.Stop)
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		aws := harness.StartAWS(t, harness.AWSOptions{Env: harness.Quick})
		drain(t, &aws.Target, func() { aws.Retire("StreamFunction") })
		t.Run("SUB-06 other instances continue to serve", func(t *testing.T) {
			aws.Stateless("alice").Call(t, "server/discover", nil, nil)
		})
	})
}

// TestADrainThatIsCutShort stops a server while an endpoint delays it for longer than --drain.
func TestADrainThatIsCutShort(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--drain", "200ms"}})
	hanging := harness.NewReceiver(t).Endpoint("hanging")
	hanging.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Hang: true} })
	register(t, s.Stateless("alice"), hanging, "event://ci/build-finished")
	s.Publish(t, build("cut-short", 1))
	hanging.WaitAttempts(t, 1)
	s.Stop()
	if code := s.ExitCode(); code != 0 {
		t.Errorf("the exit code is %d, want 0 because no event is lost", code)
	}
	if out := s.Output(); !strings.Contains(out, `"drain timed out"`) || strings.Contains(out, "mcpevents: context deadline exceeded") {
		t.Errorf("the server does not say what it cut short:\n%s", out)
	}
	hanging.Answer(nil)
	s.Start()
	if d := hanging.WaitAttempts(t, 2); d[1].ID() != "cut-short" {
		t.Errorf("after the next start got %s", d[1].ID())
	}
}

func drain(t *testing.T, s *harness.Target, terminate func()) {
	stateless, sessionBased, dialect := s.Stateless("alice"), s.SessionBased(t, "alice", harness.V20251125), s.Dialect("alice", "default")
	sessionBased.Call(t, "resources/subscribe", object{"uri": "event://chat/drain/general/message"}, nil)
	listen := stateless.Listen(t, "drained", object{"resourcesListChanged": true}, nil)
	get := sessionBased.Open(t, "")
	harness.Eventually(t, harness.Patience, "the session's stream is open", func() bool { return len(get.Primes()) > 0 })
	named := dialect.OpenDialect(t, "")
	began := time.Now()
	terminate()
	for _, st := range []*harness.Stream{listen, get, named} {
		select {
		case <-st.Ended():
		case <-time.After(harness.Patience):
			t.Fatal("a stream continues")
		}
		if st.Err() != io.EOF {
			t.Errorf("a stream ended by %v", st.Err())
		}
	}
	t.Logf("the streams ended after %v", time.Since(began))
	last := func(st *harness.Stream) *harness.Message {
		messages := st.Messages()
		return messages[len(messages)-1]
	}
	t.Run("SUB-06 a listen ends with its result", func(t *testing.T) {
		if m := last(listen); string(m.ID) != `"drained"` || m.Result == nil {
			t.Errorf("last message: %s", m.Raw)
		}
	})
	t.Run("SES-03 a session's stream ends with an id and retry", func(t *testing.T) {
		if get.Retry() == "" || len(get.Primes()) < 2 {
			t.Errorf("retry %q, ids %q", get.Retry(), get.Primes())
		}
	})
	t.Run("SSE-02 a stream of the dialect ends with streamClosed", func(t *testing.T) {
		if m := last(named); m.Method != "streamClosed" || string(m.Params) != `{"reason":"shutdown"}` {
			t.Errorf("last message: %s", m.Raw)
		}
	})
}

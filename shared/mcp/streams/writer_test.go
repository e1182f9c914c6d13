package streams

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// written is a response that records its writes.
type written struct {
	http.ResponseWriter
	writes []string
	err    error
}

func (w *written) Write(b []byte) (int, error) {
	w.writes = append(w.writes, string(b))
	return len(b), w.err
}

// A listen sends all messages that are ready with one write, in their order and each with its own cursor.
func TestReadyMessagesShareAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1})
		expect.OK(t, err)
		defer func() { _ = db.Close() }()
		sealer, err := eventlog.NewSealer(make([]byte, 32))
		expect.OK(t, err)
		log := &eventlog.Log{DB: db}
		tails := stream.New(log, db, sealer)
		defer tails.Close()
		alice := auth.Principal{ID: "alice", Workspace: "default", Scopes: auth.Scopes()}
		topic := stream.TopicPrincipal(alice.ID)
		out := &written{}
		w := &Writer{
			Streams: &Streams{Feeds: tails, Timing: method.Timing{Heartbeat: time.Hour}}, Caller: Caller{Principal: alice, checked: time.Now()},
			interests: interests{resources: true}, subscriptionID: []byte("1"), out: sse.NewWriter(out, 0), wrote: time.Now(),
		}
		expect.OK(t, w.Open(t.Context(), stream.Request{Workspace: alice.Workspace, Topics: []string{topic}}))
		defer w.close()
		notify := func(times int) {
			for range times {
				expect.OK(t, log.Notify(t.Context(), alice.Workspace, topic, []byte(`{}`)))
			}
			synctest.Wait()
		}
		expect.OK(t, w.pass(t.Context()))
		expect.Equal(t, "the writes without a message", len(out.writes), 0)
		notify(3)
		expect.OK(t, w.pass(t.Context()))
		expect.Equal(t, "the writes of three messages", len(out.writes), 1)
		expect.Equal(t, "the messages", strings.Count(out.writes[0], spec.NoteResourcesChange), 3)
		cursors := map[string]bool{}
		for message := range strings.SplitSeq(strings.TrimSpace(out.writes[0]), "\n\n") {
			_, after, _ := strings.Cut(message, spec.MetaCursor+`":"`)
			cursor, _, _ := strings.Cut(after, `"`)
			cursors[cursor] = true
		}
		if len(cursors) != 3 || !cursors[w.ResumeAt()] || cursors[""] {
			t.Errorf("got the cursors %v, and the stream is at %s", cursors, w.ResumeAt())
		}
		out.err = errors.New("the connection is broken")
		notify(1)
		if err := w.pass(t.Context()); !errors.Is(err, method.ErrWriting) {
			t.Errorf("got %v for a write that failed", err)
		}
	})
}

package sqlite

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue/queuetest"
	store "github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// backend is a [Queues] with its file.
type backend struct{ *Queues }

func (backend) Grain() time.Duration { return 200 * time.Millisecond }

// open opens the queues of a file, or of [store.Memory], until the test ends.
func open(t testing.TB, path string, opts Options) *Queues {
	t.Helper()
	q, end := start(t, path, store.Options{}, opts)
	t.Cleanup(end)
	return q
}

// start opens queues for a test that closes them itself.
func start(t testing.TB, path string, file store.Options, opts Options) (q *Queues, end func()) {
	t.Helper()
	db := expect.Value(store.Open(path, file))(t)
	opts.Log = slog.New(slog.DiscardHandler)
	q = expect.Value(Open(db.Engine(), opts))(t)
	return q, func() {
		if err := q.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

func TestQueue(t *testing.T) {
	for name, opts := range map[string]Options{"roomy": {}, "few_messages_and_bytes_in_memory": {MaxReady: 6, MaxBytes: 100}} {
		t.Run(name, func(t *testing.T) {
			queuetest.RunInBubbles(t, func(t *testing.T) queuetest.Backend {
				return backend{open(t, filepath.Join(t.TempDir(), "events.db"), opts)}
			})
		})
	}
	t.Run("memory", func(t *testing.T) {
		queuetest.RunInBubbles(t, func(t *testing.T) queuetest.Backend { return backend{open(t, store.Memory, Options{})} })
	})
}

package sqlite

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/queue/queuetest"
	store "github.com/mcp-events/mcpevents/shared/store/sqlite"
)

// backend is a [Queues] with its file.
type backend struct{ *Queues }

func (backend) Grain() time.Duration { return 200 * time.Millisecond }

func open(t testing.TB, path string, opts Options) *Queues {
	t.Helper()
	db, err := store.Open(path, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	q, err := Open(db.Engine(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return q
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

package client

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/mcp-events/mcpevents/shared/durable"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// Store keeps the cursors of subscriptions, so that a program that starts again goes on where it was. A key names a
// subscription: a short text of letters, digits and .-_ that follows from the server, the event type and the
// arguments. Callers with different rights at a server need stores of their own. Implementations are safe for
// concurrent use.
type Store interface {
	// Load returns the cursor that was saved last, or "" if there is none.
	Load(ctx context.Context, key string) (cursor string, err error)
	// Save returns when a kill of the program no longer loses the cursor.
	Save(ctx context.Context, key, cursor string) error
}

// Dir is a [Store] of files in a directory, which it makes. Each is replaced as a whole and synced, so that a kill
// at any time leaves the old cursor or the new one.
type Dir string

// Load implements [Store].
func (d Dir) Load(ctx context.Context, key string) (string, error) { return d.file(key).Load(ctx, "") }

// Save implements [Store].
func (d Dir) Save(ctx context.Context, key, cursor string) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fault.Wrap(fault.Unavailable, err, "make the directory of cursors")
	}
	return d.file(key).Save(ctx, "", cursor)
}

func (d Dir) file(key string) File { return File(filepath.Join(string(d), key+".cursor")) }

// File is a [Store] for one subscription, whatever its key: a file that is replaced as those of [Dir] are.
type File string

// maxCursor bounds a cursor that is read back, in bytes.
const maxCursor = 64 << 10

// Load implements [Store].
func (f File) Load(context.Context, string) (string, error) {
	file, err := os.Open(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "read the cursor")
	}
	defer func() { _ = file.Close() }()
	b, err := io.ReadAll(io.LimitReader(file, maxCursor+1))
	if err == nil && len(b) > maxCursor {
		err = fault.New(fault.Invalid, "%s is larger than a cursor", string(f))
	}
	return string(b), fault.Wrap(fault.Unavailable, err, "read the cursor")
}

// Save implements [Store].
func (f File) Save(_ context.Context, _, cursor string) error {
	return fault.Wrap(fault.Unavailable, durable.WriteFile(string(f), []byte(cursor)), "save the cursor")
}

// memory is the [Store] of a program that has none.
type memory struct{ cursors sync.Map }

func (m *memory) Load(_ context.Context, key string) (string, error) {
	cursor, _ := m.cursors.Load(key)
	text, _ := cursor.(string)
	return text, nil
}

func (m *memory) Save(_ context.Context, key, cursor string) error {
	m.cursors.Store(key, cursor)
	return nil
}

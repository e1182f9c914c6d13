package client

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/durable"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Store saves the cursors of subscriptions, so that a restarted program continues after the last acknowledged event. Implementations must
// be safe for concurrent use.
//
// The key of a cursor depends on the server, the event type and the arguments. It is a short text of letters, digits and the characters
// .-_, for example order.shipped-1f0c2a9be3d41c77. Two subscriptions with the same key would overwrite each other's cursor. So use
// different stores for callers with different rights at the same server, and for subscriptions that handle the same events in different
// ways.
type Store interface {
	// Load returns the cursor that was saved last for the key, or an empty string if there is no saved cursor.
	Load(ctx context.Context, key string) (cursor string, err error)
	// Save saves a cursor. When Save returns, the cursor must survive a crash of the program. Save must return when ctx ends, because the
	// subscription waits for it. The time limit of ctx is a minute or, once the subscription is closed, five seconds.
	Save(ctx context.Context, key, cursor string) error
}

// Dir is the name of a directory, and a [Store] that keeps each cursor in a file there. It creates the directory if necessary. It
// replaces a file as a whole and syncs it to disk, so that after a crash the file has either the old cursor or the new one.
type Dir string

// Load implements [Store].
func (d Dir) Load(ctx context.Context, key string) (string, error) { return d.file(key).Load(ctx, "") }

// Save implements [Store].
func (d Dir) Save(ctx context.Context, key, cursor string) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fault.Wrap(fault.Unavailable, err, "create the directory of cursors")
	}
	return d.file(key).Save(ctx, "", cursor)
}

func (d Dir) file(key string) File { return File(filepath.Join(string(d), key+".cursor")) }

// File is the name of a file, and a [Store] that keeps the cursor of a single subscription in it, together with the subscription's key.
// Load and Save return [ErrConflict] for any other key, because two subscriptions with one cursor would skip each other's events. An
// empty key matches every subscription. Like [Dir], File replaces the file as a whole.
type File string

// maxCursor limits the size, in bytes, of the cursor in a file.
const maxCursor = 64 << 10

// fileVersion is the version of the format of a [File]. Before version 1, a file contained only the cursor.
const fileVersion = 1

type savedCursor struct {
	Version      int    `json:"version"`
	Subscription string `json:"subscription"`
	Cursor       string `json:"cursor"`
}

// Load implements [Store].
func (f File) Load(_ context.Context, key string) (string, error) {
	saved, err := f.read(key)
	return saved.Cursor, err
}

// Save implements [Store].
func (f File) Save(_ context.Context, key, cursor string) error {
	content := []byte(cursor)
	if key != "" {
		if _, err := f.read(key); err != nil {
			return err
		}
		var err error
		if content, err = json.Marshal(savedCursor{fileVersion, key, cursor}); err != nil {
			return fault.Wrap(fault.Internal, err, "encode the cursor")
		}
	}
	return fault.Wrap(fault.Unavailable, durable.WriteFile(string(f), content), "save the cursor")
}

// read returns the content of the file, or the zero value if the file does not exist. It returns an error if the file belongs to another
// subscription.
func (f File) read(key string) (saved savedCursor, err error) {
	file, err := os.Open(string(f))
	if errors.Is(err, fs.ErrNotExist) {
		return saved, nil
	}
	if err != nil {
		return saved, fault.Wrap(fault.Unavailable, err, "read the cursor")
	}
	defer func() { _ = file.Close() }()
	const limit = 8 * maxCursor // JSON may write a byte of the cursor as six bytes; the rest is for the key
	b, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return saved, fault.Wrap(fault.Unavailable, err, "read the cursor")
	}
	if json.Unmarshal(b, &saved) != nil || saved.Subscription == "" {
		saved = savedCursor{Cursor: string(b)}
	}
	switch {
	case len(b) > limit || len(saved.Cursor) > maxCursor:
		err = fault.New(fault.Invalid, "%s is larger than a cursor", string(f))
	case saved.Version > fileVersion:
		err = fault.New(fault.Invalid, "%s was written by a newer version of this program", string(f))
	case key != "" && saved.Subscription != "" && saved.Subscription != key:
		err = fault.New(fault.Conflict, "%s has the cursor of another subscription, %.200q, which has another server URL, event type or "+
			"arguments: give each subscription a file of its own, or remove the file to begin now", string(f), saved.Subscription)
	}
	if err != nil {
		return savedCursor{}, err
	}
	return saved, nil
}

// memory is the default [Store]. It keeps the cursors in memory for the lifetime of the client.
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

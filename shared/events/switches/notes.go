package switches

import (
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Note is an operator's note about an origin whose endpoints fail, e.g. that its owner knows. It pauses nothing. Notes are
// stored next to the switches, because the same functions may read and write both.
type Note struct {
	Origin string    `json:"origin"`
	Text   string    `json:"text"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
}

func noteKey(workspace, origin string) store.Key {
	return store.Key{Table: store.Settings, Partition: "switch#" + workspace + "#notes", Sort: origin}
}

func decodeNote(it *store.Item) (n Note, err error) {
	err = json.Unmarshal(it.Value, &n)
	return n, fault.Wrap(fault.Internal, err, "decode a note")
}

// SetNote stores a note. It replaces the earlier note of the same origin, if any.
func (s *Set) SetNote(ctx context.Context, workspace string, n Note) error {
	value, _ := json.Marshal(n) // strings and a time always encode
	err := s.DB.Write(ctx, store.Put(store.Item{Key: noteKey(workspace, n.Origin), Value: value, Version: version}))
	return fault.Wrap(fault.Unavailable, err, "write a note")
}

// RemoveNote removes the note of an origin, if it has one.
func (s *Set) RemoveNote(ctx context.Context, workspace, origin string) error {
	return fault.Wrap(fault.Unavailable, s.DB.Write(ctx, store.Delete(noteKey(workspace, origin))), "remove a note")
}

// NotesOf returns the notes of at most [store.MaxGet] origins, by origin. It leaves out origins without a note.
func (s *Set) NotesOf(ctx context.Context, workspace string, origins ...string) (map[string]*Note, error) {
	if len(origins) == 0 {
		return nil, nil
	}
	keys := make([]store.Key, len(origins))
	for i, origin := range origins {
		keys[i] = noteKey(workspace, origin)
	}
	items, err := s.DB.Get(ctx, keys...)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read notes")
	}
	notes := map[string]*Note{}
	for _, it := range items {
		if it == nil {
			continue
		}
		n, err := decodeNote(it)
		if err != nil {
			return nil, err
		}
		notes[n.Origin] = &n
	}
	return notes, nil
}

// Notes returns the notes of a workspace, sorted by origin and starting after the given one. Next is the origin to continue
// from, or "" at the end.
func (s *Set) Notes(ctx context.Context, workspace, after string, limit int) (notes []Note, next string, err error) {
	return listItems(ctx, s.DB, noteKey(workspace, "").Partition, after, limit, decodeNote)
}

// RemoveNotes removes the notes of origins for which isHealthy returns true, and returns their number.
func (s *Set) RemoveNotes(ctx context.Context, workspace string, isHealthy func(origin string) (bool, error)) (removed int, err error) {
	err = store.Each(ctx, s.DB, noteKey(workspace, ""), "read the notes", func(it *store.Item) error {
		healthy, err := isHealthy(it.Sort)
		if err != nil || !healthy {
			return err
		}
		removed++
		return s.RemoveNote(ctx, workspace, it.Sort)
	})
	return removed, err
}

// EachNoteBy calls do for each note that a principal wrote.
func EachNoteBy(ctx context.Context, db store.DB, workspace, principal string, do func(Note) error) error {
	return store.Each(ctx, db, noteKey(workspace, ""), "read the notes", func(it *store.Item) error {
		n, err := decodeNote(it)
		if err != nil || n.By != principal {
			return err
		}
		return do(n)
	})
}

// UnnameNote replaces the name of the principal that wrote a note. It does nothing if the note was removed meanwhile.
func UnnameNote(ctx context.Context, db store.DB, workspace string, n Note, name string) error {
	n.By = name
	return rewrite(ctx, db, noteKey(workspace, n.Origin), n)
}

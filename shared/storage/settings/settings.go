// Package settings keeps an operator's files (the catalogs, the configuration) in the store, so that every process uses the
// same ones: the functions on AWS, and the roles of a stand-alone server.
//
// A changed file goes one way, in both modes:
//
//	parse     catalog.ParseFile, config.ParseFile
//	check     apply.Target, with the checks of catalog, config and the packages that own their sections
//	write     [Write], all files or none
//	refresh   [Cache], behind catalog.Stored and config.Stored
//	announce  [Announce], to clients
//
// A document is two items: a small head with the version, which readers poll, and the compressed text, which they read when
// the version has changed.
package settings

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// MaxText bounds a document's text in bytes before compression.
const MaxText = 4 << 20

func headKey(name string) store.Key {
	return store.Key{Table: store.Settings, Partition: name, Sort: "head"}
}

func textKey(name string) store.Key {
	return store.Key{Table: store.Settings, Partition: name, Sort: "text"}
}

// Version reads the version of a document, from 1; 0 is a document that does not exist.
func Version(ctx context.Context, db store.DB, name string) (int64, error) {
	items, err := db.Get(ctx, headKey(name))
	if err != nil {
		return 0, fault.Wrap(fault.Internal, err, "read the version of %s", name)
	}
	if items[0] == nil {
		return 0, nil
	}
	return items[0].Version, nil
}

// Stored is a document in the store. Version 0 is a document that does not exist.
type Stored struct {
	Name    string
	Text    []byte
	Version int64
}

// Read reads a document.
func Read(ctx context.Context, db store.DB, name string) (Stored, error) {
	d := Stored{Name: name}
	items, err := db.Get(ctx, textKey(name))
	if err != nil {
		return d, fault.Wrap(fault.Internal, err, "read %s", name)
	}
	if items[0] == nil {
		return d, nil
	}
	d.Version = items[0].Version
	d.Text, err = unpack(items[0].Value)
	return d, fault.Wrap(fault.Internal, err, "read %s", name)
}

// Edit replaces the text of a document.
type Edit struct {
	// Old is the document that was checked against the new text.
	Old Stored
	// Text is the new text. It is empty for a document that is removed, so that its versions continue.
	Text []byte
	// Also are more operations for the transaction.
	Also []store.Op
}

// Version returns the document's version after the edit.
func (e Edit) Version() int64 {
	if e.Changes() {
		return e.Old.Version + 1
	}
	return e.Old.Version
}

// Changes reports whether the new text differs from the old one.
func (e Edit) Changes() bool { return e.Old.Version == 0 || !bytes.Equal(e.Old.Text, e.Text) }

// Write writes the edits that change a document, all or none: it compresses all texts and then writes one transaction. Only if
// these are more operations than a transaction holds, about 24 catalogs, it writes several transactions. The error is of kind
// fault.TooLarge for a text that does not fit into an item, and of kind fault.Conflict if an old document is not the stored
// one any more.
func Write(ctx context.Context, db store.DB, edits ...Edit) error {
	var transactions [][]store.Op
	names := make([]string, len(edits))
	for i, e := range edits {
		names[i] = e.Old.Name
		if !e.Changes() {
			continue
		}
		ops, err := e.ops()
		if err != nil {
			return err
		}
		if last := len(transactions) - 1; last >= 0 && len(transactions[last])+len(ops) <= store.MaxTransaction {
			transactions[last] = append(transactions[last], ops...)
		} else {
			transactions = append(transactions, ops)
		}
	}
	for _, ops := range transactions {
		err := db.Write(ctx, ops...)
		if errors.Is(err, store.ErrConflict) {
			return fault.New(fault.Conflict, "another writer changed %s meanwhile; check it and try again", strings.Join(names, " or "))
		}
		if err != nil {
			return fault.Wrap(fault.Internal, err, "write %s", strings.Join(names, ", "))
		}
	}
	return nil
}

// ops returns the operations of an edit that changes its document.
func (e Edit) ops() ([]store.Op, error) {
	packed, err := pack(e.Text)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "write %s", e.Old.Name)
	}
	cond := store.Absent()
	if e.Old.Version > 0 {
		cond = store.VersionIs(e.Old.Version)
	}
	return append([]store.Op{
		store.Put(store.Item{Key: textKey(e.Old.Name), Value: packed, Version: e.Version()}, cond),
		store.Put(store.Item{Key: headKey(e.Old.Name), Version: e.Version()}),
	}, e.Also...), nil
}

// PackedSize returns how many bytes a text needs in the store.
func PackedSize(src []byte) int {
	b := compress(src)
	return b.Len()
}

func compress(src []byte) (b bytes.Buffer) {
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid, and writes to a buffer do not fail
	_, _ = w.Write(src)
	_ = w.Close()
	return b
}

func pack(src []byte) ([]byte, error) {
	if len(src) > MaxText {
		return nil, fault.New(fault.TooLarge, "the text has %d bytes (allowed: up to %d)", len(src), MaxText)
	}
	b := compress(src)
	if b.Len() > store.MaxItem {
		return nil, fault.New(fault.TooLarge, "the compressed text has %d bytes (allowed: up to %d)", b.Len(), store.MaxItem)
	}
	return b.Bytes(), nil
}

func unpack(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	src, err := io.ReadAll(io.LimitReader(r, MaxText+1))
	if err != nil {
		return nil, err
	}
	if len(src) > MaxText {
		return nil, fault.New(fault.Internal, "the stored text has more than %d bytes", MaxText)
	}
	return src, nil
}

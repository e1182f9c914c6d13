// Package settings keeps an operator's files (the catalogs, the configuration) in
// the store, so that every process sees the same ones: the functions on AWS, and the
// roles of an embedded server.
//
//	files ──▶ apply.Apply ──▶ store ──▶ Cache ──▶ catalog.Stored, config.Stored ──▶ all roles
//	          checks, Write     └─────▶ Announce ──▶ streams
//
// A document is two items: a small head with the version, which readers
// poll, and the compressed text, which they read when the version has moved. What
// the text means is the business of shared/events/catalog and shared/app/config; what speaks
// against a change is that of shared/app/apply.
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

func head(name string) store.Key {
	return store.Key{Table: store.Settings, Partition: name, Sort: "head"}
}

func text(name string) store.Key {
	return store.Key{Table: store.Settings, Partition: name, Sort: "text"}
}

// Version reads the version of a document, from 1; 0 is a document that does not exist.
func Version(ctx context.Context, db store.DB, name string) (int64, error) {
	items, err := db.Get(ctx, head(name))
	if err != nil {
		return 0, fault.Wrap(fault.Internal, err, "read the version of %s", name)
	}
	if items[0] == nil {
		return 0, nil
	}
	return items[0].Version, nil
}

// Read reads a document and its version; nil and 0 when it does not exist.
func Read(ctx context.Context, db store.DB, name string) ([]byte, int64, error) {
	items, err := db.Get(ctx, text(name))
	if err != nil {
		return nil, 0, fault.Wrap(fault.Internal, err, "read %s", name)
	}
	if items[0] == nil {
		return nil, 0, nil
	}
	src, err := unpack(items[0].Value)
	if err != nil {
		return nil, 0, fault.Wrap(fault.Internal, err, "read %s", name)
	}
	return src, items[0].Version, nil
}

// Document is a text to store under a name.
type Document struct {
	Name string
	// Text replaces the stored text. An empty text takes the place of a document that is removed, so that its versions
	// continue.
	Text []byte
	// Also returns more operations for the transaction, from the new version and the text before. It may be nil.
	Also func(version int64, old []byte) []store.Op
}

// Written is the outcome for a [Document]. Changed is false if the same text was stored already.
type Written struct {
	Version int64
	Changed bool
}

// Write stores one document; see [WriteAll].
func Write(ctx context.Context, db store.DB, name string, src []byte, also func(version int64, old []byte) []store.Op) (version int64, changed bool, err error) {
	all, err := WriteAll(ctx, db, Document{name, src, also})
	if err != nil {
		return 0, false, err
	}
	return all[0].Version, all[0].Changed, nil
}

// WriteAll stores documents, all or none: it reads and compresses all of them, and writes the changed ones in one
// transaction. Only if these are more than a transaction holds, about 24 catalogs, it writes several transactions. The error
// is of kind fault.TooLarge for a text that does not fit into an item, and of kind fault.Conflict if another writer changed
// one of the documents meanwhile.
func WriteAll(ctx context.Context, db store.DB, docs ...Document) ([]Written, error) {
	all, names := make([]Written, len(docs)), make([]string, len(docs))
	var transactions [][]store.Op
	for i, d := range docs {
		ops, err := d.prepare(ctx, db, &all[i])
		if err != nil {
			return nil, err
		}
		names[i] = d.Name
		if last := len(transactions) - 1; last >= 0 && len(transactions[last])+len(ops) <= store.MaxTransaction {
			transactions[last] = append(transactions[last], ops...)
		} else if len(ops) > 0 {
			transactions = append(transactions, ops)
		}
	}
	for _, ops := range transactions {
		err := db.Write(ctx, ops...)
		if errors.Is(err, store.ErrConflict) {
			return nil, fault.New(fault.Conflict, "%s was changed by another writer meanwhile; look at it and try again", strings.Join(names, " or "))
		}
		if err != nil {
			return nil, fault.Wrap(fault.Internal, err, "write %s", strings.Join(names, ", "))
		}
	}
	return all, nil
}

// prepare returns the operations that store a document, none if it is unchanged.
func (d Document) prepare(ctx context.Context, db store.DB, w *Written) ([]store.Op, error) {
	old, version, err := Read(ctx, db, d.Name)
	if err != nil {
		return nil, err
	}
	w.Version = version
	cond := store.Absent()
	if version > 0 {
		if bytes.Equal(old, d.Text) {
			return nil, nil
		}
		cond = store.VersionIs(version)
	}
	packed, err := pack(d.Text)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "write %s", d.Name)
	}
	w.Version, w.Changed = version+1, true
	ops := []store.Op{
		store.Put(store.Item{Key: text(d.Name), Value: packed, Version: w.Version}, cond),
		store.Put(store.Item{Key: head(d.Name), Version: w.Version}),
	}
	if d.Also != nil {
		ops = append(ops, d.Also(w.Version, old)...)
	}
	return ops, nil
}

func pack(src []byte) ([]byte, error) {
	if len(src) > MaxText {
		return nil, fault.New(fault.TooLarge, "it is larger than %d bytes", MaxText)
	}
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // the level is valid
	if _, err := w.Write(src); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	if b.Len() > store.MaxItem {
		return nil, fault.New(fault.TooLarge, "it is larger than %d bytes when compressed", store.MaxItem)
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
		return nil, fault.New(fault.Internal, "the stored text is larger than %d bytes", MaxText)
	}
	return src, nil
}

// Package settings keeps an operator's files (the catalogs, the configuration) in
// the store, so that every process sees the same ones: the functions on AWS, and the
// roles of an embedded server.
//
//	files ──▶ apply.Apply ──▶ store ──▶ Cache ──▶ catalog.Stored, config.Stored ──▶ all roles
//	          checks, Write     └─────▶ Announce ──▶ streams
//
// A document is two items: a small head with the version, which readers
// poll, and the compressed text, which they read when the version has moved. What
// the text means is the business of shared/catalog and shared/config; what speaks
// against a change is that of shared/settings/apply.
package settings

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
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

// Write stores a document and returns its version. A text that is stored already
// changes nothing. An empty text takes the place of a document that is removed, so that its versions go on. A text that does not fit into an item compressed is of kind
// fault.TooLarge; a write between our read and our write is fault.Conflict. What
// also makes of the new version and the text before is written with it, all or none; it may be nil.
func Write(ctx context.Context, db store.DB, name string, src []byte, also func(version int64, old []byte) []store.Op) (version int64, changed bool, err error) {
	old, version, err := Read(ctx, db, name)
	if err != nil {
		return 0, false, err
	}
	cond := store.Absent()
	if version > 0 {
		if bytes.Equal(old, src) {
			return version, false, nil
		}
		cond = store.VersionIs(version)
	}
	packed, err := pack(src)
	if err != nil {
		return 0, false, fault.Wrap(fault.Internal, err, "write %s", name)
	}
	version++
	ops := []store.Op{
		store.Put(store.Item{Key: text(name), Value: packed, Version: version}, cond),
		store.Put(store.Item{Key: head(name), Version: version}),
	}
	if also != nil {
		ops = append(ops, also(version, old)...)
	}
	err = db.Write(ctx, ops...)
	if errors.Is(err, store.ErrConflict) {
		return 0, false, fault.New(fault.Conflict, "%s was changed by somebody else meanwhile; look at it and try again", name)
	}
	if err != nil {
		return 0, false, fault.Wrap(fault.Internal, err, "write %s", name)
	}
	return version, true, nil
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

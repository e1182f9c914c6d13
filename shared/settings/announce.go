package settings

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/periodic"
	"github.com/mcp-events/mcpevents/shared/store"
)

// What a document changes for clients is announced to them only when every process uses the
// document, so that who asks for a list after the announcement gets the new one at any
// instance. Until then an item beside the documents says that it is still to be
// done; it is written with the document, so that no crash loses it.

// Kind is what a change is of.
type Kind string

// The kinds: a workspace's catalog, and the gateway's backends that belong to a workspace.
const (
	Catalog  Kind = "catalog"
	Backends Kind = "backends"
)

// Change is to be announced to the clients of a workspace. Version is that of the document.
type Change struct {
	Kind      Kind
	Workspace string
	Version   int64
}

const unannouncedPartition = "announce"

const appliedAt = "at" // milliseconds since 1970

// Unannounced says that a version of a document changes something for these workspaces. What was
// said for a document before is replaced, so that it must be of the same workspaces: document is
// a name of its own where they differ. Without workspaces there is nothing to say.
func Unannounced(kind Kind, document string, workspaces []string, version int64, now time.Time) []store.Op {
	if len(workspaces) == 0 {
		return nil
	}
	return []store.Op{store.Put(store.Item{
		Key:     store.Key{Table: store.Settings, Partition: unannouncedPartition, Sort: string(kind) + ":" + document},
		Value:   []byte(strings.Join(workspaces, "\n")),
		Version: version, Counts: map[string]int64{appliedAt: now.UnixMilli()},
	})}
}

// UnannouncedOf is [Unannounced] where each version may be of other workspaces.
func UnannouncedOf(kind Kind, workspaces []string, version int64, now time.Time) []store.Op {
	return Unannounced(kind, strconv.FormatInt(version, 10), workspaces, version, now)
}

// Announce hands on the changes that were stored up to a time, each once unless a crash or another
// announcer comes between: those that every process uses, as after [MaxAge]. The zero time is for the only
// process, which uses all of them. waiting is how many documents are too new.
func Announce(ctx context.Context, db store.DB, until time.Time, announce func(context.Context, Change) error) (waiting int, err error) {
	var errs []error // one that cannot be announced keeps no other from its turn
	err = store.Each(ctx, db, store.Key{Table: store.Settings, Partition: unannouncedPartition}, "read what is to be announced", func(it *store.Item) error {
		if !until.IsZero() && time.UnixMilli(it.Counts[appliedAt]).After(until) {
			waiting++
		} else {
			errs = append(errs, announceOne(ctx, db, *it, announce))
		}
		return ctx.Err()
	})
	return waiting, errors.Join(append(errs, err)...)
}

// AnnounceAll waits until every process uses what is stored, and announces it.
func AnnounceAll(ctx context.Context, db store.DB, announce func(context.Context, Change) error) error {
	for {
		waiting, err := Announce(ctx, db, time.Now().Add(-MaxAge), announce)
		if err != nil || waiting == 0 {
			return err
		}
		if err := periodic.Sleep(ctx, MaxAge/5); err != nil {
			return err
		}
	}
}

func announceOne(ctx context.Context, db store.DB, it store.Item, announce func(context.Context, Change) error) error {
	kind, _, _ := strings.Cut(it.Sort, ":")
	for workspace := range strings.SplitSeq(string(it.Value), "\n") {
		if err := announce(ctx, Change{Kind(kind), workspace, it.Version}); err != nil {
			return err
		}
	}
	err := db.Write(ctx, store.Delete(it.Key, store.VersionIs(it.Version)))
	if errors.Is(err, store.ErrConflict) { // a newer one waits for its turn
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "record what was announced")
}

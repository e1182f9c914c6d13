package settings

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A change of a document is announced to clients only when every process uses the document, so that a client that asks
// for a list after the announcement gets the new one at any instance. Until then an item next to the documents says that
// the announcement is due. It is written with the document, so that no crash loses it.

// Kind is the kind of a changed document.
type Kind string

// The kinds of documents: the catalog of a workspace, and the backends of the gateway that belong to a workspace.
const (
	Catalog  Kind = "catalog"
	Backends Kind = "backends"
	// BackendEvents is the kind of the documents with the event types of a workspace's backends.
	BackendEvents Kind = "backend-events"
)

// Change is a change to announce to the clients of a workspace. Version is the version of the document.
type Change struct {
	Kind      Kind
	Workspace string
	Version   int64
}

const unannouncedPartition = "announce"

// Unannounced returns the operations that record an announcement to make: a version of a document changes something for these
// workspaces. The record replaces the one of an earlier version of the document, so both must have the same workspaces. If
// the workspaces may differ, use [UnannouncedOf].
func Unannounced(kind Kind, document string, workspaces []string, version int64) []store.Op {
	if len(workspaces) == 0 {
		return nil
	}
	return []store.Op{store.Put(store.Item{
		Key:     store.Key{Table: store.Settings, Partition: unannouncedPartition, Sort: string(kind) + ":" + document},
		Value:   []byte(strings.Join(workspaces, "\n")),
		Version: version,
	})}
}

// UnannouncedOf records an announcement like [Unannounced], for documents whose versions may have different workspaces. It keeps a
// record per version.
func UnannouncedOf(kind Kind, workspaces []string, version int64) []store.Op {
	return Unannounced(kind, strconv.FormatInt(version, 10), workspaces, version)
}

// Announce announces the changes that are stored when it is called, each once unless a crash or another announcer
// interferes. Before that it waits until every process uses the documents: for [MaxAge], or not at all in the only
// process. It does not rely on the time at which a document was stored, because the clock of the operator's machine,
// which writes it, may be wrong.
func Announce(ctx context.Context, db store.DB, wait time.Duration, announce func(context.Context, Change) error) error {
	var due []store.Item
	err := store.Each(ctx, db, store.Key{Table: store.Settings, Partition: unannouncedPartition}, "read the changes to announce", func(it *store.Item) error {
		due = append(due, *it)
		return nil
	})
	if err != nil || len(due) == 0 {
		return err
	}
	if err := periodic.Sleep(ctx, wait); err != nil {
		return err
	}
	var errs []error // a change that cannot be announced does not hold up the others
	for _, it := range due {
		errs = append(errs, announceOne(ctx, db, it, announce))
	}
	return errors.Join(errs...)
}

// announceOne announces a change, unless another announcer did so during the wait or a newer version has replaced it. The
// newer version is announced later.
func announceOne(ctx context.Context, db store.DB, it store.Item, announce func(context.Context, Change) error) error {
	now, err := store.One(ctx, db, it.Key, "read a change to announce")
	if err != nil || now == nil || now.Version != it.Version {
		return err
	}
	kind, _, _ := strings.Cut(it.Sort, ":")
	for workspace := range strings.SplitSeq(string(it.Value), "\n") {
		if err := announce(ctx, Change{Kind(kind), workspace, it.Version}); err != nil {
			return err
		}
	}
	err = db.Write(ctx, store.Delete(it.Key, store.VersionIs(it.Version)))
	if errors.Is(err, store.ErrConflict) { // a newer version will be announced later
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "record an announcement")
}

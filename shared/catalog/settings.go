package catalog

import (
	"context"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/config/versioned"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// document names the stored catalog of a workspace.
func document(workspace string) string { return "catalog:" + workspace }

// Applied is the outcome of [Apply].
type Applied struct {
	// Version counts the catalogs of the workspace, from 1.
	Version int64
	// Changed is false when the same text was stored already.
	Changed bool
	// Changes lists what is different from the catalog before.
	Changes []Change
}

// orderKept refuses a catalog that takes [OrderNone] back from an event type. Its log is spread over
// partitions with several writers, where readers in order do not look.
func orderKept(old, next *Catalog) error {
	for _, e := range next.entries {
		before := old.ByName(e.Name)
		if before == nil || before.Pattern() != e.Pattern() {
			at := slices.IndexFunc(old.entries, func(o *Entry) bool { return o.Pattern() == e.Pattern() })
			if at < 0 {
				continue
			}
			before = old.entries[at]
		}
		if before.Unordered() && !e.Unordered() {
			return fault.New(fault.Invalid, "event %s: order cannot go back to %s while the log has its events (allowed: another URI, or remove the event type, "+
				"wait for the retention, and add it again)", e.Name, OrderURI)
		}
	}
	return nil
}

// Apply checks a catalog file and stores it as the workspace's catalog, which every
// function uses within [versioned.MaxAge]. The change is then announced by
// [versioned.Announce]. A faulty file is of kind fault.Invalid, as is one that gives an event type its order back, one that does not fit into an
// item fault.TooLarge, a concurrent change fault.Conflict.
func Apply(ctx context.Context, db store.DB, workspace string, src []byte) (Applied, error) {
	next, err := Parse(src)
	if err != nil {
		return Applied{}, err
	}
	var changes []Change
	switch old, err := Load(ctx, db, workspace); {
	case err == nil:
		if err := orderKept(old, next); err != nil {
			return Applied{}, err
		}
		changes = Diff(old, next)
	case fault.Is(err, fault.NotFound):
		changes = Diff(nil, next)
	case !fault.Is(err, fault.Invalid): // a stored text that is no catalog any more can be replaced
		return Applied{}, err
	}
	version, changed, err := versioned.Write(ctx, db, document(workspace), src, func(version int64, _ []byte) []store.Op {
		return versioned.Unannounced(versioned.Catalog, workspace, []string{workspace}, version, time.Now())
	})
	if err != nil {
		return Applied{}, err
	}
	return Applied{Version: version, Changed: changed, Changes: changes}, nil
}

// Load reads the workspace's catalog. A workspace without one is of kind
// fault.NotFound.
func Load(ctx context.Context, db store.DB, workspace string) (*Catalog, error) {
	src, version, err := versioned.Read(ctx, db, document(workspace))
	if err != nil {
		return nil, err
	}
	if version == 0 {
		return nil, errNoCatalog
	}
	return parseStored(src)
}

// parseStored reads a text that [Apply] has checked.
func parseStored(src []byte) (*Catalog, error) { return parseFile("stored catalog", src, true) }

var errNoCatalog = fault.New(fault.NotFound, "unknown workspace, or a workspace without a catalog")

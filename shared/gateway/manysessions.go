package gateway

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Clients of 2026-07-28 do not end sessions, for they have none: what was begun for them at a
// backend of the earlier revisions stays until the backend forgets it. So it is listed by
// principal and backend, and when there are too many the one that was used least lately is ended. For one that the backend
// has forgotten see exchange.inSession.

const (
	// maxOfPrincipal is how many sessions a principal has with one backend, other than
	// those of its own sessions: one for each set of capabilities and log level that its clients
	// declare. More than a few are no clients in use.
	maxOfPrincipal = 16
	// usedEvery is how exactly the last use of a session is recorded, so that not every
	// call writes.
	usedEvery = 10 * time.Minute
	// endTime bounds how long a new session, or a change of the backends or of their views, waits for the end of old sessions.
	endTime = 2 * time.Second
)

// listKey is where the session of a client with a backend is listed.
func listKey(c api.Client, b *backend) store.Key {
	who, _ := json.Marshal([]string{c.Principal.Workspace, c.Principal.ID}) // strings
	h := sha256.Sum256(who)
	return store.Key{
		Table: store.Sessions, Partition: "gp#" + base64.RawURLEncoding.EncodeToString(h[:]) + "#" + b.server(), Sort: holder(c),
	}
}

// endOldest ends sessions of the principal that it has too many of.
func (ss *sessions) endOldest(ctx context.Context, c api.Client, b *backend) {
	if c.Session != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	own := listKey(c, b)
	page, err := ss.db.Query(ctx, store.Query{Table: own.Table, Partition: own.Partition, Limit: 1000})
	if err != nil {
		ss.log.WarnContext(ctx, "backend sessions not counted", "backend", b.Name, "error", err)
		return
	}
	// The longest unused first; of several the new one last.
	slices.SortStableFunc(page.Items, func(x, y store.Item) int {
		return cmp.Or(x.Expires.Compare(y.Expires), cmp.Compare(isOwn(x, own), isOwn(y, own)))
	})
	for _, it := range page.Items[:max(0, len(page.Items)-maxOfPrincipal)] {
		ss.endListed(ctx, b, c.Token, it.Key)
	}
}

func isOwn(it store.Item, own store.Key) int {
	if it.Sort == own.Sort {
		return 1
	}
	return 0
}

// endListed ends a session by its place in the list.
func (ss *sessions) endListed(ctx context.Context, b *backend, token string, listed store.Key) {
	key := sessionKey(listed.Sort, b)
	items, err := ss.db.Get(ctx, key)
	if err == nil {
		err = ss.db.WriteAll(ctx, store.Delete(key), store.Delete(listed))
	}
	if err != nil {
		ss.log.WarnContext(ctx, "backend session left to expire", "backend", b.Name, "error", err)
		return
	}
	var s backendSession
	if items[0] != nil && json.Unmarshal(items[0].Value, &s) == nil {
		b.end(ctx, token, s)
	}
}

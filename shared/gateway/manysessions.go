package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Clients of 2026-07-28 do not end sessions, for they have none: what was begun for them at a
// backend of the earlier revisions stays until the backend forgets it. So it is listed by
// principal and backend, and when there are too many, the gateway ends sessions in which no call can be under way. For one that the backend
// has forgotten see exchange.inSession.

const (
	// maxOfPrincipal is how many sessions a principal has with one backend, other than
	// those of its own sessions: one for each set of capabilities and log level that its clients
	// declare. More than a few are no clients in use.
	maxOfPrincipal = 16
	// maxInUse is how many it has at most, if calls may be under way in them.
	maxInUse = 64
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

// makeRoom ends sessions of the principal that were not used for so long that no call is under way in them, if it has many. It refuses
// one more where too many are in use.
func (ss *sessions) makeRoom(ctx context.Context, c api.Client, b *backend) error {
	if c.Session != "" {
		return nil
	}
	own := listKey(c, b)
	page, err := ss.db.Query(ctx, store.Query{Table: own.Table, Partition: own.Partition, Limit: 1000})
	if err != nil {
		ss.log.WarnContext(ctx, "backend sessions not counted", "backend", b.Name, "error", err)
		return nil
	}
	others := slices.DeleteFunc(page.Items, func(it store.Item) bool { return it.Sort == own.Sort })
	slices.SortFunc(others, func(x, y store.Item) int { return x.Expires.Compare(y.Expires) }) // the longest unused first
	ending, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	left := len(others)
	for _, it := range others {
		unused := ss.ttl - time.Until(it.Expires)
		if left < maxOfPrincipal || unused <= ss.idle || ending.Err() != nil {
			break
		}
		ss.endListed(ending, b, c.Token, it.Key)
		left--
	}
	if left >= maxInUse {
		return fault.New(fault.Exhausted, "the limit backendSessions of %d is reached at backend %s", maxInUse, b.Name).
			AtLimit("backendSessions", maxInUse)
	}
	return nil
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

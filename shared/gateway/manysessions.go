package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Clients of 2026-07-28 have no sessions and therefore do not end those that the gateway begins for them at session-based
// backends. So the gateway lists these sessions by principal and backend. If a principal has too many, the gateway ends the ones in
// which no call can be running. For sessions that the backend has forgotten, see exchange.inSession.

const (
	// maxOfPrincipal is how many sessions a principal may have with one backend before the gateway ends unused ones. Its
	// clients need one for each combination of capabilities and log level that they declare, and few combinations are in
	// use. Sessions that belong to a client's session do not count.
	maxOfPrincipal = 16
	// maxInUse limits a principal's sessions with one backend if calls may be running in them.
	maxInUse = 64
	// usedEvery is the precision of the recorded last use, so that not every call has to write.
	usedEvery = 10 * time.Minute
	// endTime limits how long a new session, or a change of the backends or views, waits until old sessions have ended.
	endTime = 2 * time.Second
)

// listKey returns the key under which the client's session with a backend is listed.
func listKey(c api.Client, b *backends.Backend) store.Key {
	who, _ := json.Marshal([]string{c.Principal.Workspace, c.Principal.ID}) // cannot fail: these are strings
	h := sha256.Sum256(who)
	return store.Key{
		Table: store.Sessions, Partition: "gp#" + base64.RawURLEncoding.EncodeToString(h[:]) + "#" + b.ServerID(), Sort: holder(c),
	}
}

// makeRoom ends sessions of the principal if there are many. It ends only those that have been unused for so long that no call can
// be running in them. It returns an error if the principal has too many sessions in use.
func (ss *sessions) makeRoom(ctx context.Context, c api.Client, b *backends.Backend) error {
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

// endListed ends a session, given its key in the list.
func (ss *sessions) endListed(ctx context.Context, b *backends.Backend, token string, listed store.Key) {
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
		b.EndSession(ctx, token, s.Version, s.ID)
	}
}

package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/translate"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The gateway begins a session with a session-based backend at the first call that needs one, and keeps it in the store, so that all
// instances use the same one. A client with a session has one session with each backend.
//
// Clients of 2026-07-28 have no session of their own. Their calls to a backend share a session if the clients have the same principal,
// capabilities and log level, because a backend remembers capabilities and level per session. If the backend acts for its callers, the
// clients must also have the same token, because tokens may differ in their permissions.

// backendSession is a client's session with a backend. The store has it as JSON.
type backendSession struct {
	Version spec.Version `json:"v"`
	ID      string       `json:"id"` // empty if the backend assigned none
	// LevelDue is when a call should try again to set the client's log level, in milliseconds since 1970. It is 0 if the level is set.
	LevelDue int64 `json:"l,omitempty"`

	// The version of the session's item in the store; if another call replaces the session, the new item has another version.
	itemVersion int64
}

func (s backendSession) request(body []byte) upstream.Request {
	return upstream.Request{Body: body, Version: s.Version, Session: s.ID}
}

// sessionTTL is how long the store keeps a session with a backend after its last use.
const sessionTTL = 24 * time.Hour

// sessions stores the clients' sessions with backends. The gateway's own sessions are in [backends.ServerInfo].
type sessions struct {
	db     store.DB
	log    *slog.Logger
	key    []byte        // the secret key of the deployment
	idle   time.Duration // no call can be running in a session that has been unused for longer
	broken *metric.Undecodable
}

func decodeSession(it *store.Item) (s backendSession, ok bool) {
	ok = json.Unmarshal(it.Value, &s) == nil
	s.itemVersion = it.Version
	return s, ok
}

// holderOf returns the text that names the owner of a session with a backend in store keys. It is the id of the client's session, if
// there is one. Otherwise it is a hash of the client's principal, capabilities and log level, with the id of its token.
func (ss *sessions) holderOf(c api.Client, b *backends.Backend) string {
	if c.Session != "" {
		return c.Session
	}
	var parts []byte
	for _, part := range []string{c.Principal.Workspace, c.Principal.ID, string(c.Capabilities), c.Level} {
		parts = jsonrpc.AppendString(parts, part)
	}
	h := sha256.Sum256(parts)
	return "p-" + base64.RawURLEncoding.EncodeToString(h[:]) + ss.tokenID(c, b)
}

// tokenID returns a text that differs for each token of a caller, or "" if the backend does not act for its callers. It is a keyed hash,
// so that a reader of the store cannot check guesses of a token, which can be a password.
func (ss *sessions) tokenID(c api.Client, b *backends.Backend) string {
	if !b.ActsForCallers() {
		return ""
	}
	h := hmac.New(sha256.New, ss.key)
	h.Write([]byte("token of a caller\n" + c.Token))
	return "." + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func sessionPartition(holder string) string { return "g#" + holder }

func sessionKey(holder string, b *backends.Backend) store.Key {
	return store.Key{Table: store.Sessions, Partition: sessionPartition(holder), Sort: "b#" + b.ServerID()}
}

// getOrBegin returns the client's session with a backend, and whether it had to begin the session. If the parameter whole is set,
// getOrBegin completes even if ctx is cancelled, because an interrupted handshake could leave an unused session at the backend.
func (ss *sessions) getOrBegin(ctx context.Context, c api.Client, b *backends.Backend, whole bool) (s backendSession, begun bool, err error) {
	ends, limited := ctx.Deadline()
	if whole {
		ctx = context.WithoutCancel(ctx)
	}
	key := sessionKey(ss.holderOf(c, b), b)
	it, err := store.One(ctx, ss.db, key, "read the session with a backend")
	if err != nil {
		return s, false, err
	}
	cond := store.Absent()
	if it != nil {
		var ok bool
		if s, ok = decodeSession(it); ok {
			if s.LevelDue != 0 && time.Now().UnixMilli() >= s.LevelDue {
				ss.setLevel(ctx, c, b, &s)
			} else {
				ss.recordUse(ctx, c, b, it)
			}
			return s, false, nil
		}
		ss.broken.Add(ctx, "session with a backend")
		cond = store.VersionIs(it.Version)
	}
	if whole && limited {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, ends)
		defer cancel()
	}
	if err := ss.makeRoom(ctx, c, b); err != nil {
		return s, false, err
	}
	if s, err = ss.begin(ctx, c, b); err != nil {
		if lacks := unsentError(err); lacks != nil {
			return s, false, lacks
		}
		return s, false, errors.Join(fault.New(fault.Unavailable, "backend %s did not begin a session", b.Name), err)
	}
	s.itemVersion = mathrand.Int64()
	err = ss.db.Write(ctx, ss.put(c, b, s.itemVersion, jsonrpc.Encode(s), cond)...)
	if errors.Is(err, store.ErrConflict) { // another call of the client has stored a session meanwhile, so use that one
		b.EndSession(ctx, c.Token, s.Version, s.ID)
		return ss.getOrBegin(ctx, c, b, whole)
	}
	return s, true, fault.Wrap(fault.Unavailable, err, "keep the session with a backend")
}

// put returns the operations that store a client's session with a backend and restart its time to live.
func (ss *sessions) put(c api.Client, b *backends.Backend, itemVersion int64, value []byte, cond store.Condition) []store.Op {
	until := time.Now().Add(sessionTTL)
	ops := []store.Op{store.Put(store.Item{Key: sessionKey(ss.holderOf(c, b), b), Value: value, Version: itemVersion, Expires: until}, cond)}
	if c.Session == "" {
		ops = append(ops, store.Put(store.Item{Key: ss.listKey(c, b), Expires: until}))
	}
	return ops
}

// recordUse extends the life of a stored session that a call uses. It writes to the store at most once per usedEvery.
func (ss *sessions) recordUse(ctx context.Context, c api.Client, b *backends.Backend, it *store.Item) {
	if time.Until(it.Expires) > sessionTTL-usedEvery {
		return
	}
	err := ss.db.Write(ctx, ss.put(c, b, it.Version, it.Value, store.VersionIs(it.Version))...)
	if err != nil { // the session expires earlier, which is harmless
		ss.log.DebugContext(ctx, "use of backend session not recorded", "backend", b.Name, "error", err)
	}
}

func (ss *sessions) begin(ctx context.Context, c api.Client, b *backends.Backend) (s backendSession, err error) {
	d := upstream.Declared{
		Version: spec.LatestSessionBased, Capabilities: translate.WithoutClientTasks(c.Capabilities), Info: c.Info, Holder: c.Principal.Workspace + "/" + c.Principal.ID,
	}
	if !c.Version.Stateless() {
		d.Version, d.AnswersLate = c.Version, true
	}
	got, err := b.ClientFor(c.Token).Initialize(ctx, d)
	s = backendSession{Version: got.Version, ID: got.Session}
	if err != nil || c.Level == "" || !backends.ParseCapabilities(got.Capabilities).Logging {
		return s, err
	}
	s.LevelDue = ss.tryLevel(ctx, c, b, s)
	return s, nil
}

// levelPause is the pause before a call tries again to set a log level. It is so long that a hanging backend delays only a few calls.
const levelPause = 10 * time.Second

// tryLevel sets the client's log level in a session with a backend. If the backend does not answer, due is when to try again, in
// milliseconds since 1970. It is 0 if the level is set, or if the backend refused, because another try would not help.
func (ss *sessions) tryLevel(ctx context.Context, c api.Client, b *backends.Backend, s backendSession) (due int64) {
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	params := append(append([]byte(`{"level":`), jsonrpc.Quote(c.Level)...), '}')
	_, err := b.ClientFor(c.Token).Ask(ctx, s.request(nil), spec.MethodSetLevel, params)
	if err == nil {
		return 0
	}
	ss.log.WarnContext(ctx, "log level not set at backend", "backend", b.Name, "error", err)
	if errors.Is(err, upstream.ErrAnswer) {
		return 0
	}
	return time.Now().Add(levelPause).UnixMilli()
}

func (ss *sessions) setLevel(ctx context.Context, c api.Client, b *backends.Backend, s *backendSession) {
	was := s.LevelDue
	if s.LevelDue = ss.tryLevel(ctx, c, b, *s); s.LevelDue == was {
		return
	}
	err := ss.db.Write(ctx, ss.put(c, b, s.itemVersion, jsonrpc.Encode(s), store.VersionIs(s.itemVersion))...)
	// A conflict means that another call has replaced the session, and the new session began with the log level.
	if err != nil && !errors.Is(err, store.ErrConflict) {
		ss.log.WarnContext(ctx, "state of log level not recorded", "backend", b.Name, "error", err)
	}
}

// SetLevel sets the client's log level in all its sessions with backends. Later sessions begin with the level. If a backend does not
// answer, the client's next call to that backend tries again.
func (g *Gateway) SetLevel(ctx context.Context, c api.Client) error {
	sessions, err := g.sessions.listFor(ctx, c, g.VisibleTo(ctx, c.Principal))
	if err != nil {
		return err
	}
	forEachSession(sessions, func(b *backends.Backend, s backendSession) { g.sessions.setLevel(ctx, c, b, &s) })
	return nil
}

// forget deletes a stored session that the backend no longer knows, unless another call has already replaced it.
func (ss *sessions) forget(ctx context.Context, c api.Client, b *backends.Backend, s backendSession) error {
	err := ss.db.Write(ctx, store.Delete(sessionKey(ss.holderOf(c, b), b), store.VersionIs(s.itemVersion)), store.Delete(ss.listKey(c, b)))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "forget the session with a backend")
}

func (ss *sessions) listFor(ctx context.Context, c api.Client, at []*backends.Backend) (map[*backends.Backend]backendSession, error) {
	byHolder := map[string][]*backends.Backend{} // the backends by the owner of the client's session with them, see holderOf
	for _, b := range at {
		holder := ss.holderOf(c, b)
		byHolder[holder] = append(byHolder[holder], b)
	}
	out := map[*backends.Backend]backendSession{}
	for holder, some := range byHolder {
		page, err := ss.db.Query(ctx, store.Query{Table: store.Sessions, Partition: sessionPartition(holder), Limit: 1000})
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read the sessions with backends")
		}
		for _, it := range page.Items {
			for _, b := range some {
				if it.Sort != sessionKey("", b).Sort {
					continue
				}
				if s, ok := decodeSession(&it); ok {
					out[b] = s
				}
			}
		}
	}
	return out, nil
}

// End cancels the calls of a client's session, and ends its sessions with all backends.
func (g *Gateway) End(ctx context.Context, c api.Client) error {
	cancelled := g.cancelSession(ctx, c)
	sessions, err := g.sessions.listFor(ctx, c, g.VisibleTo(ctx, c.Principal))
	err = errors.Join(cancelled, err)
	for b, s := range sessions {
		err = errors.Join(err, g.sessions.forget(ctx, c, b, s))
	}
	forEachSession(sessions, func(b *backends.Backend, s backendSession) { b.EndSession(ctx, c.Token, s.Version, s.ID) })
	return err
}

// Notify forwards a notification of a client's session to all backends with which the client has a session.
func (g *Gateway) Notify(ctx context.Context, c api.Client, body json.RawMessage) error {
	sessions, err := g.sessions.listFor(ctx, c, g.VisibleTo(ctx, c.Principal))
	if err != nil {
		return err
	}
	forEachSession(sessions, func(b *backends.Backend, s backendSession) { g.notify(ctx, c, b, s, body) })
	return nil
}

func (g *Gateway) notify(ctx context.Context, c api.Client, b *backends.Backend, s backendSession, body json.RawMessage) {
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	if err := b.ClientFor(c.Token).Send(ctx, s.request(body)); err != nil {
		g.options.Log.WarnContext(ctx, "notification not sent to backend", "backend", b.Name, "error", err)
	}
}

// forEachSession calls the function do for all sessions and waits for these calls. They run concurrently, so that a hanging backend does
// not delay the others.
func forEachSession(sessions map[*backends.Backend]backendSession, do func(*backends.Backend, backendSession)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for b, s := range sessions {
		wg.Go(func() { do(b, s) })
	}
}

// Clients of 2026-07-28 have no sessions that they could end. So the gateway lists the sessions that it begins for them at session-based
// backends, by principal and backend. If a principal has too many, the gateway ends sessions in which no call can be running. For
// sessions that the backend has forgotten, see exchange.inSession.

const (
	// If a principal has maxUnusedSessions other sessions with a backend, the gateway ends unused ones before it begins a new one. A
	// principal needs one session for each combination of capabilities and log level that its clients declare, for example two for two
	// kinds of clients. Sessions that belong to a client's own session do not count.
	maxUnusedSessions = 16
	// maxSessionsInUse limits the sessions of one principal with one backend in which calls may be running. If the backend acts for its
	// callers, the limit is per token, because many workers may share a principal, and all users share the anonymous one.
	maxSessionsInUse = 64
	// usedEvery is the minimum time between two writes that record the use of a session, so that not every call writes to the store.
	usedEvery = 10 * time.Minute
	endTime   = 2 * time.Second // limits ending old sessions before a new one begins
)

// listKey returns the key of the session in the list of its principal's sessions with a backend.
func (ss *sessions) listKey(c api.Client, b *backends.Backend) store.Key {
	principal, _ := json.Marshal([]string{c.Principal.Workspace, c.Principal.ID}) // cannot fail: these are strings
	h := sha256.Sum256(principal)
	return store.Key{
		Table: store.Sessions, Partition: "gp#" + base64.RawURLEncoding.EncodeToString(h[:]) + "#" + b.ServerID(), Sort: ss.holderOf(c, b),
	}
}

// makeRoom ends sessions of the principal with a backend if there are many. It ends only sessions that have been unused for so long that
// no call can be running in them. It returns an error if the client's principal or token has too many sessions in use.
func (ss *sessions) makeRoom(ctx context.Context, c api.Client, b *backends.Backend) error {
	if c.Session != "" {
		return nil
	}
	own := ss.listKey(c, b)
	var others []store.Item
	err := store.Each(ctx, ss.db, own, "count the sessions with a backend", func(it *store.Item) error {
		if it.Sort != own.Sort {
			others = append(others, *it)
		}
		return nil
	})
	if err != nil {
		ss.log.WarnContext(ctx, "backend sessions not counted", "backend", b.Name, "error", err)
		return nil
	}
	slices.SortFunc(others, func(x, y store.Item) int { return x.Expires.Compare(y.Expires) }) // the longest unused first
	ending, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	for len(others) >= maxUnusedSessions && sessionTTL-time.Until(others[0].Expires) > ss.idle && ending.Err() == nil {
		ss.endListed(ending, b, c.Token, others[0].Key)
		others = others[1:]
	}
	token := ss.tokenID(c, b)
	inUse := slices.DeleteFunc(others, func(it store.Item) bool { return !strings.HasSuffix(it.Sort, token) })
	if len(inUse) >= maxSessionsInUse {
		return fault.New(fault.Exhausted, "the limit backendSessions of %d is reached at backend %s", maxSessionsInUse, b.Name).
			AtLimit("backendSessions", maxSessionsInUse)
	}
	return nil
}

// endListed ends a session of the caller. The parameter token is the caller's token, and listed is the key of the session's entry in the
// list of the principal's sessions.
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
	if items[0] == nil {
		return
	}
	if s, ok := decodeSession(items[0]); ok {
		b.EndSession(ctx, token, s.Version, s.ID)
	}
}

package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// A session with a backend of the earlier revisions is begun by the first call
// that needs it and kept in the store, so that every instance uses the same one. It
// belongs to the client's session, or for clients of 2026-07-28 to the principal, what
// the client declares and the log level that it asks for, which a backend keeps per session.

// backendSession is the value of such an item.
type backendSession struct {
	Version spec.Version `json:"v"`
	ID      string       `json:"id"` // empty if the backend gave none
	// LevelDue is when a call sets the client's log level again because it could not be set, in milliseconds since 1970; 0 if it is set.
	LevelDue int64 `json:"l,omitempty"`

	itemVersion int64 // distinguishes its item from one that took its place
}

// sessions are those that clients have with backends. The gateway's own is with what is [known] of a backend.
type sessions struct {
	db     store.DB
	log    *slog.Logger
	ttl    time.Duration
	idle   time.Duration // after which no call can be under way in a session that is not used
	broken *metric.Undecodable
}

// holder names whose sessions with backends these are.
func holder(c api.Client) string {
	if c.Session != "" {
		return c.Session
	}
	h := sha256.New()
	for _, part := range []string{c.Principal.Workspace, c.Principal.ID, string(c.Capabilities), c.Level} {
		b, _ := json.Marshal(part)
		h.Write(b)
	}
	return "p-" + base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

// server names the backend and the server at its URL. What was settled with one server is nothing
// to another one that the operator puts behind the same name: it neither gets a session's id nor
// an answer that was meant for the first.
func (b *backend) server() string {
	h := sha256.Sum256([]byte(b.URL))
	return b.Name + "#" + base64.RawURLEncoding.EncodeToString(h[:12])
}

func sessionPartition(holder string) string { return "g#" + holder }

func sessionKey(holder string, b *backend) store.Key {
	return store.Key{Table: store.Sessions, Partition: sessionPartition(holder), Sort: "b#" + b.server()}
}

// of finds the client's session with a backend, or begins one.
func (ss *sessions) of(ctx context.Context, c api.Client, b *backend) (s backendSession, begun bool, err error) {
	key := sessionKey(holder(c), b)
	items, err := ss.db.Get(ctx, key)
	if err != nil {
		return s, false, fault.Wrap(fault.Unavailable, err, "read the session with a backend")
	}
	cond := store.Absent()
	if items[0] != nil {
		if json.Unmarshal(items[0].Value, &s) == nil {
			s.itemVersion = items[0].Version
			if s.LevelDue != 0 && time.Now().UnixMilli() >= s.LevelDue {
				ss.setLevel(ctx, c, b, &s)
			} else {
				ss.used(ctx, c, b, items[0])
			}
			return s, false, nil
		}
		ss.broken.Add(ctx, "session with a backend")
		cond = store.VersionIs(items[0].Version)
	}
	if err := ss.makeRoom(ctx, c, b); err != nil {
		return s, false, err
	}
	if s, err = ss.begin(ctx, c, b); err != nil {
		return s, false, fault.Wrap(fault.Unavailable, err, "begin a session with backend %s", b.Name)
	}
	s.itemVersion = mathrand.Int64()
	value, _ := json.Marshal(s) // strings
	err = ss.db.Write(ctx, ss.put(c, b, s.itemVersion, value, cond)...)
	if errors.Is(err, store.ErrConflict) { // another call of the client was first: one session is enough
		b.end(ctx, c.Token, s)
		return ss.of(ctx, c, b)
	}
	return s, true, fault.Wrap(fault.Unavailable, err, "keep the session with a backend")
}

// put are the operations that keep the session of a client for a time from now.
func (ss *sessions) put(c api.Client, b *backend, itemVersion int64, value []byte, cond store.Condition) []store.Op {
	until := time.Now().Add(ss.ttl)
	ops := []store.Op{store.Put(store.Item{Key: sessionKey(holder(c), b), Value: value, Version: itemVersion, Expires: until}, cond)}
	if c.Session == "" {
		ops = append(ops, store.Put(store.Item{Key: listKey(c, b), Expires: until}))
	}
	return ops
}

// used records that a session is used, if that was not done lately.
func (ss *sessions) used(ctx context.Context, c api.Client, b *backend, it *store.Item) {
	if time.Until(it.Expires) > ss.ttl-usedEvery {
		return
	}
	err := ss.db.Write(ctx, ss.put(c, b, it.Version, it.Value, store.VersionIs(it.Version))...)
	if err != nil { // it ends sooner
		ss.log.DebugContext(ctx, "use of backend session not recorded", "backend", b.Name, "error", err)
	}
}

// begin initializes a session with what the client declared.
func (ss *sessions) begin(ctx context.Context, c api.Client, b *backend) (s backendSession, err error) {
	d := upstream.Declared{Version: spec.LatestSessionBased, Capabilities: c.Capabilities, Info: c.Info}
	if !c.Version.Stateless() {
		d.Version = c.Version
	}
	got, err := b.caller(c.Token).Initialize(ctx, d)
	s = backendSession{Version: got.Version, ID: got.Session}
	if err != nil || c.Level == "" || !capabilitiesOf(got.Capabilities).Logging {
		return s, err
	}
	s.LevelDue = ss.tryLevel(ctx, c, b, s)
	return s, nil
}

// levelPause is how long calls wait before they set a log level again that could not be set. So a backend that hangs delays few of them.
const levelPause = 10 * time.Second

// tryLevel asks a backend for log messages within a session. It returns when to try again if the backend could not be asked. A backend
// that refuses is left alone.
func (ss *sessions) tryLevel(ctx context.Context, c api.Client, b *backend, s backendSession) (due int64) {
	ctx, cancel := context.WithTimeout(ctx, notifyTime)
	defer cancel()
	params := append(append([]byte(`{"level":`), jsonrpc.Quote(c.Level)...), '}')
	_, err := b.caller(c.Token).Ask(ctx, upstream.Request{Version: s.Version, Session: s.ID}, spec.MethodSetLevel, params)
	if err == nil {
		return 0
	}
	ss.log.WarnContext(ctx, "log level not set at backend", "backend", b.Name, "error", err)
	if errors.Is(err, upstream.ErrAnswer) {
		return 0
	}
	return time.Now().Add(levelPause).UnixMilli()
}

// setLevel sets the log level in a session that is kept, and records whether that has to be repeated.
func (ss *sessions) setLevel(ctx context.Context, c api.Client, b *backend, s *backendSession) {
	was := s.LevelDue
	if s.LevelDue = ss.tryLevel(ctx, c, b, *s); s.LevelDue == was {
		return
	}
	value, _ := json.Marshal(s) // strings and a number
	err := ss.db.Write(ctx, ss.put(c, b, s.itemVersion, value, store.VersionIs(s.itemVersion))...)
	if err != nil && !errors.Is(err, store.ErrConflict) { // with a conflict the session is another one, which has the level
		ss.log.WarnContext(ctx, "state of log level not recorded", "backend", b.Name, "error", err)
	}
}

// SetLevel asks the backends that a client has a session with for the log messages that it wants. Sessions that begin later ask for
// them then, and those whose backend could not be asked do so with their next call.
func (g *Gateway) SetLevel(ctx context.Context, c api.Client) error {
	sessions, err := g.sessions.all(ctx, c, g.backends.visible(ctx, c.Principal))
	if err != nil {
		return err
	}
	atOnce(sessions, func(b *backend, s backendSession) { g.sessions.setLevel(ctx, c, b, &s) })
	return nil
}

// forget forgets a session that the backend does not know any more, unless another call has
// begun a new one in its place.
func (ss *sessions) forget(ctx context.Context, c api.Client, b *backend, s backendSession) error {
	err := ss.db.Write(ctx, store.Delete(sessionKey(holder(c), b), store.VersionIs(s.itemVersion)), store.Delete(listKey(c, b)))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "forget the session with a backend")
}

// end ends a session with the backend; token is the caller's whose it is.
func (b *backend) end(ctx context.Context, token string, s backendSession) {
	c := b.own
	c.Credentials = credentials{backend: b, token: token}.add
	if err := c.End(ctx, s.Version, s.ID); err != nil {
		b.options.Log.DebugContext(ctx, "backend session not ended", "backend", b.Name, "error", err)
	}
}

// all are those that a client has with the backends.
func (ss *sessions) all(ctx context.Context, c api.Client, backends []*backend) (map[*backend]backendSession, error) {
	page, err := ss.db.Query(ctx, store.Query{Table: store.Sessions, Partition: sessionPartition(holder(c)), Limit: 1000})
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the sessions with backends")
	}
	out := map[*backend]backendSession{}
	for _, it := range page.Items {
		for _, b := range backends {
			var s backendSession
			if it.Sort == sessionKey("", b).Sort && json.Unmarshal(it.Value, &s) == nil {
				s.itemVersion = it.Version
				out[b] = s
			}
		}
	}
	return out, nil
}

// End ends a client's sessions with all backends.
func (g *Gateway) End(ctx context.Context, c api.Client) error {
	sessions, err := g.sessions.all(ctx, c, g.backends.visible(ctx, c.Principal))
	for b, s := range sessions {
		err = errors.Join(err, g.sessions.forget(ctx, c, b, s))
	}
	atOnce(sessions, func(b *backend, s backendSession) { b.end(ctx, c.Token, s) })
	return err
}

// Notify hands a notification of a client's session on to the backends that it has a
// session with: that it cancelled a request, that its roots changed.
func (g *Gateway) Notify(ctx context.Context, c api.Client, body json.RawMessage) error {
	sessions, err := g.sessions.all(ctx, c, g.backends.visible(ctx, c.Principal))
	if err != nil {
		return err
	}
	atOnce(sessions, func(b *backend, s backendSession) {
		ctx, cancel := context.WithTimeout(ctx, notifyTime)
		defer cancel()
		if err := b.caller(c.Token).Send(ctx, upstream.Request{Body: body, Version: s.Version, Session: s.ID}); err != nil {
			g.options.Log.WarnContext(ctx, "notification not sent to backend", "backend", b.Name, "error", err)
		}
	})
	return nil
}

// atOnce does something with all of a client's sessions at the same time, so that a backend that hangs
// keeps nothing from the others, and waits.
func atOnce(sessions map[*backend]backendSession, do func(*backend, backendSession)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for b, s := range sessions {
		wg.Go(func() { do(b, s) })
	}
}

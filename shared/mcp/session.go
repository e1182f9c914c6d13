package mcp

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/eventlog"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/metric"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Sessions of the earlier revisions lie in the store, so that any instance
// serves them. A session is one partition:
//
//   - the session itself
//     #          how many URIs it is subscribed to
//     stream     which of its GET streams is the newest
//     open       in the dialect: that this stream is open
//     u#HASH     one URI that it is subscribed to
//     i#HASH     in the dialect: a request id that was used
//
// The partition is named by a hash of the id: who reads the store cannot take a
// session over.
type sessions struct {
	db      store.DB
	ttl     time.Duration
	maxURIs int
	broken  *metric.Undecodable
}

// session is what is known of one.
type session struct {
	Workspace string          `json:"ws"`
	Principal string          `json:"pr"`
	Version   mcpspec.Version `json:"ver"`
	// Payloads and Events say which extensions the client declared.
	Payloads bool `json:"pay,omitempty"`
	Events   bool `json:"ev,omitempty"`
	// Capabilities and Client are what the client declared, for backends.
	Capabilities json.RawMessage `json:"cap,omitempty"`
	Client       json.RawMessage `json:"cli,omitempty"`
	// Dialect is set for a session of the dialect, which is unknown elsewhere.
	Dialect bool `json:"di,omitempty"`
	// Level is the least severity of log messages that the client wants; empty for none.
	Level string `json:"lv,omitempty"`

	id      string // known while a request is served that carries it
	key     string // the hash of the id
	expires time.Time
	item    store.Item
}

// subscribed is one URI of a session, in its canonical form.
type subscribed struct {
	URI string `json:"u"`
	// After is the log's position when it was subscribed. An item of an earlier release has the
	// time instead.
	After int64     `json:"p,omitempty"`
	Since time.Time `json:"t,omitzero"`
	// Open is set for a parent or a wildcard.
	Open bool `json:"o,omitempty"`
	// Backend names whose resource it is, if it is one's.
	Backend string `json:"b,omitempty"`
}

func (u subscribed) after() int64 {
	if u.Since.IsZero() {
		return u.After
	}
	return u.Since.Add(-2 * eventlog.MaxSkew).UnixMicro()
}

// urisPage is how many subscriptions of a session are read at once.
const urisPage = 200

// errNoSession is a session that is unknown, ended, expired or another principal's: they
// look alike.
var errNoSession = errors.New("mcp: no such session")

const (
	sortSession = "-"
	sortCount   = "#"
	sortStream  = "stream"
	sortOpen    = "open"
	sortURI     = "u#"
	sortUsed    = "i#"
	countURIs   = "n"
)

func sessionKey(id string) string {
	h := sha256.Sum256([]byte("session\x00" + id))
	return base64.RawURLEncoding.EncodeToString(h[:])
}

func sessionItem(key, sort string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "s#" + key, Sort: sort}
}

// create makes a session. Its id is 32 random bytes.
func (s *sessions) create(ctx context.Context, sess session) (*session, error) {
	sess.id = randomText(32)
	sess.key = sessionKey(sess.id)
	sess.expires = time.Now().Add(s.ttl)
	value, _ := json.Marshal(sess) // strings and booleans
	sess.item = store.Item{Key: sessionItem(sess.key, sortSession), Value: value, Version: 1, Expires: sess.expires}
	if err := s.db.Write(ctx, store.Put(sess.item, store.Absent())); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "make a session")
	}
	return &sess, nil
}

// load finds the caller's session, and lengthens its life when half of it is over.
func (s *sessions) load(ctx context.Context, id string, p auth.Principal, dialect bool) (*session, error) {
	key := sessionKey(id)
	items, err := s.db.Get(ctx, sessionItem(key, sortSession))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the session")
	}
	if items[0] == nil {
		return nil, errNoSession
	}
	sess := s.decode(ctx, id, key, items[0])
	if sess == nil {
		return nil, errNoSession
	}
	if sess.Workspace != p.Workspace || sess.Principal != p.ID || sess.Dialect != dialect {
		return nil, errNoSession
	}
	if time.Until(sess.expires) < s.ttl/2 {
		if err := s.touch(ctx, sess); err != nil {
			return nil, err
		}
	}
	return sess, nil
}

// touch puts off the expiry of all items of a session.
func (s *sessions) touch(ctx context.Context, sess *session) error {
	expires := time.Now().Add(s.ttl)
	item := sess.item
	item.Version++
	item.Expires = expires
	err := s.db.Write(ctx, store.Put(item, store.VersionIs(sess.item.Version)))
	if errors.Is(err, store.ErrConflict) {
		return nil // somebody else did, or it was just ended: the next request will see
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "prolong the session")
	}
	uris, err := s.uris(ctx, sess.key)
	if err != nil {
		return err
	}
	for _, it := range uris {
		it.Expires = expires
		// Not to bring back what was unsubscribed meanwhile.
		if err := s.db.Write(ctx, store.Put(it, store.Exists())); err != nil && !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "prolong the session")
		}
	}
	sess.expires = expires
	// Counting anew also mends what a crash left wrong.
	err = s.db.Write(ctx, store.Put(store.Item{
		Key: sessionItem(sess.key, sortCount), Counts: map[string]int64{countURIs: int64(len(uris))}, Expires: expires,
	}))
	return fault.Wrap(fault.Unavailable, err, "prolong the session")
}

// subscribe adds a URI to the session. Doing it twice is doing it once.
func (s *sessions) subscribe(ctx context.Context, sess *session, u subscribed) error {
	value, _ := json.Marshal(u)
	key := uriKey(sess.key, u.URI)
	count := store.Add(sessionItem(sess.key, sortCount), map[string]int64{countURIs: 1}, map[string]int64{countURIs: int64(s.maxURIs)})
	count.Item.Expires = sess.expires
	err := s.db.Write(ctx,
		store.Check(sessionItem(sess.key, sortSession), store.Exists()),
		store.Put(store.Item{Key: key, Value: value, Expires: sess.expires}, store.Absent()),
		count,
	)
	if err == nil || !errors.Is(err, store.ErrConflict) {
		return fault.Wrap(fault.Unavailable, err, "write the session's subscription")
	}
	items, err := s.db.Get(ctx, sessionItem(sess.key, sortSession), key)
	switch {
	case err != nil:
		return fault.Wrap(fault.Unavailable, err, "read the session")
	case items[0] == nil:
		return errNoSession
	case items[1] != nil:
		return nil
	}
	return limitReached("streamURIs", s.maxURIs)
}

// unsubscribe removes a URI; one that is not there is no fault.
func (s *sessions) unsubscribe(ctx context.Context, sess *session, uri string) error {
	err := s.db.Write(ctx,
		store.Delete(uriKey(sess.key, uri), store.Exists()),
		store.Add(sessionItem(sess.key, sortCount), map[string]int64{countURIs: -1}, nil),
	)
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "remove the session's subscription")
}

// subscriptions lists the URIs of the session.
func (s *sessions) subscriptions(ctx context.Context, key string) ([]subscribed, error) {
	items, err := s.uris(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.decodeURIs(ctx, items), nil
}

// decodeURIs leaves out what cannot be decoded.
func (s *sessions) decodeURIs(ctx context.Context, items []store.Item) []subscribed {
	out := make([]subscribed, 0, len(items))
	for _, it := range items {
		var u subscribed
		if json.Unmarshal(it.Value, &u) != nil {
			s.broken.Add(ctx, "subscription of a session")
			continue
		}
		out = append(out, u)
	}
	return out
}

func (s *sessions) uris(ctx context.Context, key string) ([]store.Item, error) {
	q := store.Query{
		Table: store.Sessions, Partition: sessionItem(key, sortURI).Partition,
		After: sortURI, Until: sortURI + "~", Limit: urisPage,
	}
	var items []store.Item
	for {
		page, err := s.db.Query(ctx, q)
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read the session's subscriptions")
		}
		if items = append(items, page.Items...); !page.More {
			return items, nil
		}
		q.After = page.Last
	}
}

func uriKey(sess, uri string) store.Key {
	h := sha256.Sum256([]byte(uri))
	return sessionItem(sess, sortURI+base64.RawURLEncoding.EncodeToString(h[:]))
}

// takeOver makes the stream the newest of its session. It reports whether the
// session had one before.
func (s *sessions) takeOver(ctx context.Context, sess *session, connection string) (before bool, err error) {
	key := sessionItem(sess.key, sortStream)
	items, err := s.db.Get(ctx, key)
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read the session's stream")
	}
	err = s.db.Write(ctx, store.Put(store.Item{Key: key, Value: []byte(connection), Expires: time.Now().Add(s.ttl)}))
	return items[0] != nil, fault.Wrap(fault.Unavailable, err, "take over the session's stream")
}

// served reads the session of an open stream anew. It returns nil when the
// session is over or has a newer stream.
func (s *sessions) served(ctx context.Context, sess *session, connection string) (*session, error) {
	items, err := s.db.Get(ctx, sessionItem(sess.key, sortSession), sessionItem(sess.key, sortStream))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the session")
	}
	if items[0] == nil || items[1] == nil || string(items[1].Value) != connection {
		return nil, nil
	}
	return s.decode(ctx, sess.id, sess.key, items[0]), nil
}

// decode reads a session; nil is one that cannot be read, which is as one that there is not: its client begins another.
func (s *sessions) decode(ctx context.Context, id, key string, item *store.Item) *session {
	sess := &session{id: id, key: key, expires: item.Expires, item: *item}
	if json.Unmarshal(item.Value, sess) != nil {
		s.broken.Add(ctx, "session")
		return nil
	}
	return sess
}

// change writes a session in another form, over whatever another request wrote
// meanwhile.
func (s *sessions) change(ctx context.Context, sess *session, alter func(*session)) error {
	for range 5 {
		items, err := s.db.Get(ctx, sessionItem(sess.key, sortSession))
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "read the session")
		}
		if items[0] == nil {
			return errNoSession
		}
		now := s.decode(ctx, sess.id, sess.key, items[0])
		if now == nil {
			return errNoSession
		}
		alter(now)
		item := now.item
		item.Value, _ = json.Marshal(now) // strings and booleans
		item.Version++
		err = s.db.Write(ctx, store.Put(item, store.VersionIs(now.item.Version)))
		if err == nil {
			*sess = *now
			return nil
		}
		if !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "write the session")
		}
	}
	return fault.New(fault.Unavailable, "the session is being changed by other requests")
}

// remove ends the session and returns what it was subscribed to.
func (s *sessions) remove(ctx context.Context, sess *session) ([]subscribed, error) {
	// First the session itself: without it nothing can be added any more.
	if err := s.db.Write(ctx, store.Delete(sessionItem(sess.key, sortSession))); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "end the session")
	}
	items, err := s.uris(ctx, sess.key)
	if err != nil {
		return nil, err
	}
	ops := []store.Op{store.Delete(sessionItem(sess.key, sortStream)), store.Delete(sessionItem(sess.key, sortCount))}
	for _, it := range items {
		ops = append(ops, store.Delete(it.Key))
	}
	return s.decodeURIs(ctx, items), fault.Wrap(fault.Unavailable, s.db.WriteAll(ctx, ops...), "end the session")
}

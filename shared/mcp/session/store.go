// Package session keeps the sessions of the session-based revisions in the store, so that any
// instance serves them.
//
// What a session is subscribed to, which of its streams is the newest and which request ids were
// used belong here; how a request names its session, and what its stream sends, do not: see
// shared/mcp. A session is read and written by [Store] alone.
package session

import (
	"context"
	"crypto/rand"
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

// Store has the sessions. A session is one partition:
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
type Store struct {
	DB store.DB
	// MaxURIs is how many URIs a session may be subscribed to.
	MaxURIs int
	// Broken counts what cannot be decoded.
	Broken *metric.Undecodable
}

// Session is what is known of one.
type Session struct {
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

	ID      string `json:"-"` // known while a request is served that carries it
	Key     string `json:"-"` // the hash of the id
	expires time.Time
	item    store.Item
}

// URI is one that a session is subscribed to, in its canonical form.
type URI struct {
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

// Position is that of the log when it was subscribed.
func (u URI) Position() int64 {
	if u.Since.IsZero() {
		return u.After
	}
	return u.Since.Add(-2 * eventlog.MaxSkew).UnixMicro()
}

// TTL is how long an unused session lives.
const TTL = 24 * time.Hour

// ErrNone is a session that is unknown, ended, expired or another principal's: they
// look alike.
var ErrNone = errors.New("mcp: no such session")

const (
	sortSession = "-"
	sortCount   = "#"
	sortStream  = "stream"
	sortOpen    = "open"
	sortURI     = "u#"
	sortUsed    = "i#"
	countURIs   = "n"
)

// Key names a session by its id: in the store, and on the topic of its stream.
func Key(id string) string {
	h := sha256.Sum256([]byte("session\x00" + id))
	return base64.RawURLEncoding.EncodeToString(h[:])
}

func itemKey(key, sort string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "s#" + key, Sort: sort}
}

// ListKey is the partition in which the sessions of a principal are listed by their keys. One of an earlier release is in
// it once it was prolonged.
func ListKey(workspace, principal string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "sp#" + workspace + "#" + principal}
}

// Partition is that of a session's items.
func Partition(key string) store.Key { return itemKey(key, sortSession) }

func (s *Session) listed() store.Item {
	key := ListKey(s.Workspace, s.Principal)
	key.Sort = s.Key
	return store.Item{Key: key, Expires: s.expires}
}

// Create makes a session. Its id is 32 random bytes.
func (s *Store) Create(ctx context.Context, sess Session) (*Session, error) {
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails (Go 1.24)
	sess.ID = base64.RawURLEncoding.EncodeToString(id)
	sess.Key = Key(sess.ID)
	sess.expires = time.Now().Add(TTL)
	value, _ := json.Marshal(sess) // strings and booleans
	sess.item = store.Item{Key: itemKey(sess.Key, sortSession), Value: value, Version: 1, Expires: sess.expires}
	if err := s.DB.Write(ctx, store.Put(sess.item, store.Absent()), store.Put(sess.listed())); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "make a session")
	}
	return &sess, nil
}

// Load finds the caller's session, and lengthens its life when half of it is over.
func (s *Store) Load(ctx context.Context, id string, p auth.Principal, dialect bool) (*Session, error) {
	key := Key(id)
	items, err := s.DB.Get(ctx, itemKey(key, sortSession))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the session")
	}
	if items[0] == nil {
		return nil, ErrNone
	}
	sess := s.decode(ctx, id, key, items[0])
	if sess == nil || sess.Workspace != p.Workspace || sess.Principal != p.ID || sess.Dialect != dialect {
		return nil, ErrNone
	}
	if time.Until(sess.expires) < TTL/2 {
		if err := s.touch(ctx, sess); err != nil {
			return nil, err
		}
	}
	return sess, nil
}

// touch puts off the expiry of all items of a session.
func (s *Store) touch(ctx context.Context, sess *Session) error {
	expires := time.Now().Add(TTL)
	item := sess.item
	item.Version++
	item.Expires = expires
	prolonged := *sess
	prolonged.expires = expires
	err := s.DB.Write(ctx, store.Put(item, store.VersionIs(sess.item.Version)), store.Put(prolonged.listed()))
	if errors.Is(err, store.ErrConflict) {
		return nil // another request did, or it was just ended: the next request will see
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "prolong the session")
	}
	uris, err := s.uris(ctx, sess.Key)
	if err != nil {
		return err
	}
	for _, it := range uris {
		it.Expires = expires
		// Not to bring back what was unsubscribed meanwhile.
		if err := s.DB.Write(ctx, store.Put(it, store.Exists())); err != nil && !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "prolong the session")
		}
	}
	sess.expires = expires
	// Counting anew also mends what a crash left wrong.
	err = s.DB.Write(ctx, store.Put(store.Item{
		Key: itemKey(sess.Key, sortCount), Counts: map[string]int64{countURIs: int64(len(uris))}, Expires: expires,
	}))
	return fault.Wrap(fault.Unavailable, err, "prolong the session")
}

// Subscribe adds a URI to the session. Doing it twice is doing it once.
func (s *Store) Subscribe(ctx context.Context, sess *Session, u URI) error {
	value, _ := json.Marshal(u)
	key := uriKey(sess.Key, u.URI)
	count := store.Add(itemKey(sess.Key, sortCount), map[string]int64{countURIs: 1}, map[string]int64{countURIs: int64(s.MaxURIs)})
	count.Item.Expires = sess.expires
	err := s.DB.Write(ctx,
		store.Check(itemKey(sess.Key, sortSession), store.Exists()),
		store.Put(store.Item{Key: key, Value: value, Expires: sess.expires}, store.Absent()),
		count,
	)
	if err == nil || !errors.Is(err, store.ErrConflict) {
		return fault.Wrap(fault.Unavailable, err, "write the session's subscription")
	}
	items, err := s.DB.Get(ctx, itemKey(sess.Key, sortSession), key)
	switch {
	case err != nil:
		return fault.Wrap(fault.Unavailable, err, "read the session")
	case items[0] == nil:
		return ErrNone
	case items[1] != nil:
		return nil
	}
	return LimitReached("streamURIs", s.MaxURIs)
}

// Unsubscribe removes a URI; one that is not there is no fault.
func (s *Store) Unsubscribe(ctx context.Context, sess *Session, uri string) error {
	err := s.DB.Write(ctx,
		store.Delete(uriKey(sess.Key, uri), store.Exists()),
		store.Add(itemKey(sess.Key, sortCount), map[string]int64{countURIs: -1}, nil),
	)
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "remove the session's subscription")
}

// Subscriptions lists the URIs of the session.
func (s *Store) Subscriptions(ctx context.Context, key string) ([]URI, error) {
	items, err := s.uris(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.decodeURIs(ctx, items), nil
}

// decodeURIs leaves out what cannot be decoded.
func (s *Store) decodeURIs(ctx context.Context, items []store.Item) []URI {
	out := make([]URI, 0, len(items))
	for _, it := range items {
		var u URI
		if json.Unmarshal(it.Value, &u) != nil {
			s.Broken.Add(ctx, "subscription of a session")
			continue
		}
		out = append(out, u)
	}
	return out
}

func (s *Store) uris(ctx context.Context, key string) (items []store.Item, err error) {
	q := store.Query{Table: store.Sessions, Partition: itemKey(key, sortURI).Partition, After: sortURI, Until: sortURI + "~", Limit: 200}
	err = store.EachOf(ctx, s.DB, q, "read the session's subscriptions", func(it *store.Item) error {
		items = append(items, *it)
		return nil
	})
	return items, err
}

func uriKey(sess, uri string) store.Key {
	h := sha256.Sum256([]byte(uri))
	return itemKey(sess, sortURI+base64.RawURLEncoding.EncodeToString(h[:]))
}

// TakeOver makes the stream the newest of its session. It reports whether the
// session had one before.
func (s *Store) TakeOver(ctx context.Context, sess *Session, connection string) (before bool, err error) {
	key := itemKey(sess.Key, sortStream)
	items, err := s.DB.Get(ctx, key)
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "read the session's stream")
	}
	err = s.DB.Write(ctx, store.Put(store.Item{Key: key, Value: []byte(connection), Expires: time.Now().Add(TTL)}))
	return items[0] != nil, fault.Wrap(fault.Unavailable, err, "take over the session's stream")
}

// Served reads the session of an open stream anew. It returns nil when the
// session is over or has a newer stream.
func (s *Store) Served(ctx context.Context, sess *Session, connection string) (*Session, error) {
	items, err := s.DB.Get(ctx, itemKey(sess.Key, sortSession), itemKey(sess.Key, sortStream))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the session")
	}
	if items[0] == nil || items[1] == nil || string(items[1].Value) != connection {
		return nil, nil
	}
	return s.decode(ctx, sess.ID, sess.Key, items[0]), nil
}

// decode reads a session; nil is one that cannot be read, which is as one that there is not: its client begins another.
func (s *Store) decode(ctx context.Context, id, key string, item *store.Item) *Session {
	sess := &Session{ID: id, Key: key, expires: item.Expires, item: *item}
	if json.Unmarshal(item.Value, sess) != nil {
		s.Broken.Add(ctx, "session")
		return nil
	}
	return sess
}

// Change writes a session in another form, over whatever another request wrote
// meanwhile.
func (s *Store) Change(ctx context.Context, sess *Session, alter func(*Session)) error {
	for range 5 {
		items, err := s.DB.Get(ctx, itemKey(sess.Key, sortSession))
		if err != nil {
			return fault.Wrap(fault.Unavailable, err, "read the session")
		}
		if items[0] == nil {
			return ErrNone
		}
		now := s.decode(ctx, sess.ID, sess.Key, items[0])
		if now == nil {
			return ErrNone
		}
		alter(now)
		item := now.item
		item.Value, _ = json.Marshal(now) // strings and booleans
		item.Version++
		err = s.DB.Write(ctx, store.Put(item, store.VersionIs(now.item.Version)))
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

// Remove ends the session and returns what it was subscribed to.
func (s *Store) Remove(ctx context.Context, sess *Session) ([]URI, error) {
	// First the session itself: without it nothing can be added any more.
	if err := s.DB.Write(ctx, store.Delete(itemKey(sess.Key, sortSession)), store.Delete(sess.listed().Key)); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "end the session")
	}
	items, err := s.uris(ctx, sess.Key)
	if err != nil {
		return nil, err
	}
	ops := []store.Op{store.Delete(itemKey(sess.Key, sortStream)), store.Delete(itemKey(sess.Key, sortCount))}
	for _, it := range items {
		ops = append(ops, store.Delete(it.Key))
	}
	return s.decodeURIs(ctx, items), fault.Wrap(fault.Unavailable, s.DB.WriteAll(ctx, ops...), "end the session")
}

// LimitReached names the limit that a request would go over.
func LimitReached(name string, most int) error {
	return fault.New(fault.Exhausted, "the limit %s of %d is reached", name, most).
		AtLimit(name, float64(most))
}

// Package session stores the clients' MCP sessions, so that any instance of the server can serve a session. Only the protocol revisions
// up to 2025-11-25 have sessions. Only [Store] reads and writes sessions, except that package erase deletes the sessions of an erased
// principal.
package session

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	mathrand "math/rand/v2"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Store stores sessions. A session is one partition with these items, by sort key:
//
//	"-"       the session itself
//	"#"       the number of its URIs
//	"stream"  the newest of its GET streams; the item has version 0 once a stream has begun
//	"quiet"   the cursor at which a stream ended without having sent an event id; see [Store.RecordQuietEnd]
//	"open"    in the named-event dialect: the newest stream is open
//	"u#HASH"  one of the URIs that the session is subscribed to
//	"i#HASH"  in the named-event dialect: a used request id
//
// The items "#", "stream", "quiet" and "u#HASH" expire up to [TTL] later than the session. Without this margin, a URI could expire
// before its session: if one request prolongs the session, another request that read the session before still writes its URI
// with the old expiry.
//
// The name of the partition is a hash of the session's id, so that someone who reads the store cannot learn the id and use the session.
type Store struct {
	DB      store.DB
	MaxURIs int // the maximum number of URIs of a session
	// Max returns the maximum number of sessions of a principal. Nil means no limit.
	Max    func(ctx context.Context, p auth.Principal) int
	Broken *metric.Undecodable // counts items that cannot be decoded
	// Prolong prolongs a session's subscription to a backend's URI until the given time. [Store.Load] calls it for each of these URIs when
	// it prolongs the session. It may be nil.
	Prolong func(ctx context.Context, sess *Session, uri URI, until time.Time) error

	decoded bounded.Map[string, *Session]  // decoded sessions by key, because each request needs its session
	used    bounded.Map[string, time.Time] // when [Store.recordUse] last recorded a use, by session key
}

// Session is the state of a session.
type Session struct {
	Workspace string       `json:"ws"`
	Principal string       `json:"pr"`
	Version   spec.Version `json:"ver"`
	// Payloads is true if the client declared [spec.OwnExtension], and Events if it declared [spec.EventsExtension].
	Payloads bool `json:"pay,omitempty"`
	Events   bool `json:"ev,omitempty"`
	// Capabilities and Client are the capabilities and the clientInfo that the client declared, which backends receive.
	Capabilities json.RawMessage `json:"cap,omitempty"`
	Client       json.RawMessage `json:"cli,omitempty"`
	// Dialect is true for a session of the named-event dialect. Such a session can be used only at /mcp/{workspace}, and other sessions
	// only at /mcp.
	Dialect bool `json:"di,omitempty"`
	// Level is the lowest severity of the log messages that the client wants. It is empty if the client wants no log messages.
	Level string `json:"lv,omitempty"`

	ID      string `json:"-"` // known only while a request with the id is served
	Key     string `json:"-"` // the hash of the id
	expires time.Time
	item    store.Item
}

// URI is a URI that a session is subscribed to, in canonical form.
type URI struct {
	URI string `json:"u"`
	// After is the position of the end of the event log at the time when the client subscribed to the URI. The session's first stream begins
	// with the events after this position.
	After int64 `json:"p,omitempty"`
	// Open is true if the URI has wildcards or is a parent, for example event://incidents, which stands for all URIs below it.
	Open    bool   `json:"o,omitempty"`
	Backend string `json:"b,omitempty"` // the backend that the resource belongs to, if any
}

const (
	TTL = 24 * time.Hour // how long an unused session lives
	// firstTTL is how long a new session lives if its client does not use it. The first use prolongs it to TTL.
	firstTTL = 5 * time.Minute
	// usedEvery limits how often a process records that a session is in use: at most once per session in this time.
	usedEvery = 10 * time.Minute
)

// ErrNone is the error for a session that is unknown, has ended or expired, or belongs to another principal. Callers cannot
// distinguish these cases.
var ErrNone = errors.New("mcp: no such session")

const (
	sortSession = "-"
	sortCount   = "#"
	sortStream  = "stream"
	sortQuiet   = "quiet"
	sortOpen    = "open"
	sortURI     = "u#"
	sortUsed    = "i#"
	countURIs   = "n"
)

// Key returns the key of the session with the given id: a hash that names the session in the store, and in the event log's topic for
// its stream.
func Key(id string) string { return hash("session\x00" + id) }

func hash(text string) string {
	h := sha256.Sum256([]byte(text))
	return base64.RawURLEncoding.EncodeToString(h[:])
}

func itemKey(key, sort string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "s#" + key, Sort: sort}
}

// ListKey returns the key of the partition with the list of a principal's sessions. The sort key of an entry is the session's key.
func ListKey(workspace, principal string) store.Key {
	return store.Key{Table: store.Sessions, Partition: "sp#" + workspace + "#" + principal}
}

// Partition returns the key of the item that stores a session. All other items of the session are in the same partition. The parameter is
// [Session.Key], not the session's id.
func Partition(key string) store.Key { return itemKey(key, sortSession) }

// listEntry returns the entry of the session in the list of its principal's sessions. Its version is the time at which the
// session was last used, in seconds since 1970. It may lag behind by up to usedEvery.
func (s *Session) listEntry() store.Item {
	key := ListKey(s.Workspace, s.Principal)
	key.Sort = s.Key
	return store.Item{Key: key, Version: time.Now().Unix(), Expires: s.NeedsUntil()}
}

// NeedsUntil returns the time until which other data of the session must be kept, for example the session's URIs and its subscriptions at
// backends. This data outlives the session by [TTL]; see [Store].
func (s *Session) NeedsUntil() time.Time { return s.expires.Add(TTL) }

// Create creates a session. It expires after firstTTL unless [Store.Load] prolongs it. A session of the named-event dialect lives
// for [TTL] from the start, because its client may send no further request while it reads the session's stream.
func (s *Store) Create(ctx context.Context, sess Session) (*Session, error) {
	id := make([]byte, 32)
	_, _ = rand.Read(id) // never fails (Go 1.24)
	sess.ID = base64.RawURLEncoding.EncodeToString(id)
	sess.Key = Key(sess.ID)
	life := firstTTL
	if sess.Dialect {
		life = TTL
	}
	sess.expires = time.Now().Add(life)
	sess.item = store.Item{Key: itemKey(sess.Key, sortSession), Value: jsonrpc.Encode(sess), Version: 1, Expires: sess.expires}
	if err := s.DB.Write(ctx, store.Put(sess.item, store.Absent()), store.Put(sess.listEntry())); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "make a session")
	}
	return &sess, nil
}

// FindSurplus returns the session that must end before the principal may begin another one: the one that has been unused for the
// longest time. It returns nil if the principal has fewer sessions than [Store.Max].
func (s *Store) FindSurplus(ctx context.Context, p auth.Principal) (*Session, error) {
	if s.Max == nil || p.Anonymous {
		return nil, nil
	}
	key := ListKey(p.Workspace, p.ID)
	var n int
	var oldest store.Item
	now := time.Now()
	err := store.Each(ctx, s.DB, key, "list the sessions of a principal", func(it *store.Item) error {
		if expired := it.Expires.Add(-TTL); expired.Before(now) {
			return nil // the session has expired, and only its entry in the list still exists
		}
		if n++; n == 1 || it.Version < oldest.Version {
			oldest = *it
		}
		return nil
	})
	if err != nil || n < s.Max(ctx, p) {
		return nil, err
	}
	return &Session{Workspace: p.Workspace, Principal: p.ID, Key: oldest.Key.Sort}, nil
}

// Load returns the caller's session, or ErrNone. The parameter dialect is true if the request came to /mcp/{workspace}, which serves an
// older protocol, the named-event dialect. Only sessions with [Session.Dialect] are valid there. Load prolongs the session if less than
// half of [TTL] is left.
func (s *Store) Load(ctx context.Context, id string, p auth.Principal, dialect bool) (*Session, error) {
	key := Key(id)
	it, err := store.One(ctx, s.DB, itemKey(key, sortSession), "read the session")
	if err != nil {
		return nil, err
	}
	sess := s.decode(ctx, id, key, it)
	if sess == nil || sess.Workspace != p.Workspace || sess.Principal != p.ID || sess.Dialect != dialect {
		return nil, ErrNone
	}
	if time.Until(sess.expires) < TTL/2 {
		if err := s.touch(ctx, sess); err != nil {
			return nil, err
		}
	}
	s.recordUse(ctx, sess)
	return sess, nil
}

// recordUse writes to the principal's list of sessions that a session is in use, at most once per usedEvery.
func (s *Store) recordUse(ctx context.Context, sess *Session) {
	if time.Until(sess.expires) > TTL-usedEvery {
		return // the session was prolonged just now, which also updated the list
	}
	if last, ok := s.used.Get(sess.Key); ok && time.Since(last) < usedEvery {
		return
	}
	s.used.Put(sess.Key, time.Now())
	// The condition Exists keeps this write from restoring the entry of a session that another request has just ended. If the write fails,
	// the session only counts as unused for longer than it is.
	_ = s.DB.Write(ctx, store.Put(sess.listEntry(), store.Exists()))
}

// touch prolongs a session. It prolongs the session's URIs and its subscriptions at backends first, so that they do not end before the
// session if the process dies in between.
func (s *Store) touch(ctx context.Context, sess *Session) error {
	prolonged := *sess
	prolonged.expires = time.Now().Add(TTL)
	uris, err := s.uris(ctx, sess.Key)
	if err != nil {
		return err
	}
	for _, it := range uris {
		if !it.Expires.Before(prolonged.expires) {
			continue // the item outlives the prolonged session, so leave it until the session is prolonged again
		}
		it.Expires = prolonged.NeedsUntil()
		// The condition Exists keeps this write from restoring a URI that another request has just unsubscribed.
		if err := s.DB.Write(ctx, store.Put(it, store.Exists())); err != nil && !errors.Is(err, store.ErrConflict) {
			return fault.Wrap(fault.Unavailable, err, "prolong the session")
		}
	}
	if s.Prolong != nil {
		for _, u := range s.decodeURIs(ctx, uris) {
			if u.Backend == "" {
				continue
			}
			if err := s.Prolong(ctx, sess, u, prolonged.NeedsUntil()); err != nil {
				return err
			}
		}
	}
	// Write the item with the number of URIs again, so that it does not expire. This also corrects a number that differs from the
	// stored URIs.
	err = s.DB.Write(ctx, store.Put(store.Item{
		Key: itemKey(sess.Key, sortCount), Counts: map[string]int64{countURIs: int64(len(uris))}, Expires: prolonged.NeedsUntil(),
	}))
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "prolong the session")
	}
	prolonged.item.Version++
	prolonged.item.Expires = prolonged.expires
	err = s.DB.Write(ctx, store.Put(prolonged.item, store.VersionIs(sess.item.Version)), store.Put(prolonged.listEntry()))
	if errors.Is(err, store.ErrConflict) {
		return nil // another request has prolonged, changed or ended the session; the next request reads it again
	}
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "prolong the session")
	}
	*sess = prolonged
	return nil
}

// Subscribe adds a URI to the session. It has no effect if the session already has the URI from the same backend. If another backend has
// the resource now, Subscribe replaces the session's record of the URI and returns the previous record.
//
// If another request changes the subscription at the same time, Subscribe tries again, up to five times.
func (s *Store) Subscribe(ctx context.Context, sess *Session, u URI) (replaced *URI, err error) {
	value, _ := json.Marshal(u)
	key := uriKey(sess.Key, u.URI)
	count := store.Add(itemKey(sess.Key, sortCount), map[string]int64{countURIs: 1}, map[string]int64{countURIs: int64(s.MaxURIs)})
	count.Item.Expires = sess.NeedsUntil()
	item := store.Item{Key: key, Value: value, Expires: sess.NeedsUntil()}
	live := store.Check(itemKey(sess.Key, sortSession), store.Exists())
	for range 5 {
		err = s.DB.Write(ctx, live, store.Put(item, store.Absent()), count)
		if err == nil || !errors.Is(err, store.ErrConflict) {
			return nil, fault.Wrap(fault.Unavailable, err, "write the session's subscription")
		}
		items, err := s.DB.Get(ctx, itemKey(sess.Key, sortSession), key)
		switch {
		case err != nil:
			return nil, fault.Wrap(fault.Unavailable, err, "read the session")
		case items[0] == nil:
			return nil, ErrNone
		case items[1] == nil:
			return nil, LimitReached("streamURIs", s.MaxURIs)
		}
		have := s.decodeURIs(ctx, []store.Item{*items[1]})
		if len(have) == 0 || have[0].Backend == u.Backend {
			return nil, nil
		}
		err = s.DB.Write(ctx, live, store.Put(item, store.Exists()))
		if !errors.Is(err, store.ErrConflict) {
			return &have[0], fault.Wrap(fault.Unavailable, err, "write the session's subscription")
		}
	}
	return nil, fault.New(fault.Unavailable, "the session's subscription is being changed by other requests")
}

// Unsubscribe removes a URI from the session. It has no effect if the session does not have the URI.
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

// FindSubscription returns the session's record of a URI, or nil if the session is not subscribed to it.
func (s *Store) FindSubscription(ctx context.Context, sess *Session, uri string) (*URI, error) {
	it, err := store.One(ctx, s.DB, uriKey(sess.Key, uri), "read the session's subscription")
	if err != nil || it == nil {
		return nil, err
	}
	if found := s.decodeURIs(ctx, []store.Item{*it}); len(found) > 0 {
		return &found[0], nil
	}
	return nil, nil
}

// ListSubscriptions lists the URIs of the session.
func (s *Store) ListSubscriptions(ctx context.Context, key string) ([]URI, error) {
	items, err := s.uris(ctx, key)
	if err != nil {
		return nil, err
	}
	return s.decodeURIs(ctx, items), nil
}

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

func uriKey(sess, uri string) store.Key { return itemKey(sess, sortURI+hash(uri)) }

// EarlierStreams tells a session's new stream about the session's earlier streams.
type EarlierStreams struct {
	// Exists is set if the session had a stream before. If the first two streams of a session begin at the same moment, Exists
	// is set for only one of them.
	Exists bool
	// Begun is set if the client has received the beginning of one of the earlier streams; see [Store.RecordStreamBegun].
	Begun bool
	// QuietEnd is the cursor that [Store.RecordQuietEnd] recorded for the session's previous stream, or empty.
	QuietEnd string
}

// TakeOver makes a stream the newest one of its session, and reports on the session's earlier streams. The parameter connection
// identifies the new stream.
func (s *Store) TakeOver(ctx context.Context, sess *Session, connection string) (EarlierStreams, error) {
	for range 5 {
		item := store.Item{Key: itemKey(sess.Key, sortStream), Value: []byte(connection), Expires: sess.NeedsUntil()}
		items, err := s.DB.Get(ctx, item.Key, itemKey(sess.Key, sortQuiet))
		if err != nil {
			return EarlierStreams{}, fault.Wrap(fault.Unavailable, err, "read the session's stream")
		}
		newest := items[0]
		condition := store.Absent()
		earlier := EarlierStreams{Exists: newest != nil}
		if earlier.Exists {
			condition = store.VersionIs(newest.Version)
		}
		if earlier.Begun = earlier.Exists && newest.Version == 0; !earlier.Begun {
			item.Version = pendingVersion(connection)
		}
		if earlier.Begun && items[1] != nil {
			if of, cursor, _ := strings.Cut(string(items[1].Value), " "); of == string(newest.Value) {
				earlier.QuietEnd = cursor
			}
		}
		err = s.DB.Write(ctx, store.Put(item, condition))
		if err == nil || !errors.Is(err, store.ErrConflict) {
			return earlier, fault.Wrap(fault.Unavailable, err, "take over the session's stream")
		}
	}
	return EarlierStreams{}, fault.New(fault.Unavailable, "the session's stream is being taken over by other requests")
}

// RecordStreamBegun records that the client has received the beginning of a stream, so that it can resume the stream. It has no effect if
// a newer stream has taken over, which records its own beginning.
func (s *Store) RecordStreamBegun(ctx context.Context, sess *Session, connection string) error {
	item := store.Item{Key: itemKey(sess.Key, sortStream), Value: []byte(connection), Expires: sess.NeedsUntil()}
	err := s.DB.Write(ctx, store.Put(item, store.VersionIs(pendingVersion(connection))))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "record the session's first stream")
}

// RecordQuietEnd records the cursor at which a stream ended without having sent an event id. Its client has no id from which to resume,
// so the session's next stream begins at this cursor (see [Store.TakeOver]).
func (s *Store) RecordQuietEnd(ctx context.Context, sess *Session, connection, cursor string) error {
	err := s.DB.Write(ctx, store.Put(store.Item{
		Key: itemKey(sess.Key, sortQuiet), Value: []byte(connection + " " + cursor), Expires: sess.NeedsUntil(),
	}))
	return fault.Wrap(fault.Unavailable, err, "record where the session's stream has ended")
}

// pendingVersion returns the version of the session's "stream" item while a connection has opened a stream that has not begun yet. Once
// the stream has begun, the version is 0. Each connection has a different pending version, so that [Store.RecordStreamBegun] notices if a
// newer stream has taken over.
func pendingVersion(connection string) int64 {
	h := sha256.Sum256([]byte(connection))
	return int64(binary.BigEndian.Uint64(h[:])>>1) | 1
}

// ReloadForStream reads the session of an open stream again. It returns nil if the session has ended, or if it has a newer stream than
// the given connection.
func (s *Store) ReloadForStream(ctx context.Context, sess *Session, connection string) (*Session, error) {
	items, err := s.DB.Get(ctx, itemKey(sess.Key, sortSession), itemKey(sess.Key, sortStream))
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the session")
	}
	if items[0] == nil || items[1] == nil || string(items[1].Value) != connection {
		return nil, nil
	}
	return s.decode(ctx, sess.ID, sess.Key, items[0]), nil
}

// maxDecoded is the maximum size, in bytes of JSON, of the sessions that decode caches in decoded form. With this limit, the whole
// cache takes at most 20 MiB.
const maxDecoded = 1 << 10

// decode decodes the item of a session. It returns nil for a nil item and for an item that it cannot decode. Callers treat nil as an
// unknown session, so that the client begins a new one.
func (s *Store) decode(ctx context.Context, id, key string, item *store.Item) *Session {
	if item == nil {
		return nil
	}
	kept, ok := s.decoded.Get(key)
	if !ok || !bytes.Equal(kept.item.Value, item.Value) {
		kept = &Session{Key: key, item: *item}
		if json.Unmarshal(item.Value, kept) != nil {
			s.Broken.Add(ctx, "session")
			return nil
		}
		if len(item.Value) <= maxDecoded {
			s.decoded.Put(key, kept)
		}
	}
	sess := *kept
	sess.ID, sess.expires, sess.item = id, item.Expires, *item
	return &sess
}

// Change reads the session again, applies the function alter to it, and stores it. After a conflict with another request it tries again,
// up to five times.
func (s *Store) Change(ctx context.Context, sess *Session, alter func(*Session)) error {
	for range 5 {
		it, err := store.One(ctx, s.DB, itemKey(sess.Key, sortSession), "read the session")
		if err != nil {
			return err
		}
		now := s.decode(ctx, sess.ID, sess.Key, it)
		if now == nil {
			return ErrNone
		}
		alter(now)
		item := now.item
		item.Value, _ = json.Marshal(now) // cannot fail, because all its raw members are valid JSON
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

// Remove ends the session and returns its subscriptions.
func (s *Store) Remove(ctx context.Context, sess *Session) ([]URI, error) {
	// Delete the session first, so that no request can add items to it.
	if err := s.DB.Write(ctx, store.Delete(itemKey(sess.Key, sortSession)), store.Delete(sess.listEntry().Key)); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "end the session")
	}
	items, err := s.uris(ctx, sess.Key)
	if err != nil {
		return nil, err
	}
	ops := []store.Op{store.Delete(itemKey(sess.Key, sortStream)), store.Delete(itemKey(sess.Key, sortQuiet)), store.Delete(itemKey(sess.Key, sortCount))}
	for _, it := range items {
		ops = append(ops, store.Delete(it.Key))
	}
	return s.decodeURIs(ctx, items), fault.Wrap(fault.Unavailable, s.DB.WriteAll(ctx, ops...), "end the session")
}

// LimitReached returns the error for a request that would exceed a limit.
func LimitReached(name string, most int) error {
	return fault.New(fault.Exhausted, "the limit %s of %d is reached", name, most).
		AtLimit(name, float64(most))
}

// RecordRequestID records a request id of the session, and reports whether it is the first request with this id at any
// instance. It forgets an id after [TTL], which limits the number of stored ids of a session that lives long.
func (s *Store) RecordRequestID(ctx context.Context, sess *Session, id json.RawMessage) (fresh bool, err error) {
	text := "n" + string(id)
	if value, ok := jsonrpc.String(id); ok { // use the decoded value, because a string can be encoded in several ways
		text = "s" + value
	}
	err = s.DB.Write(ctx, store.Put(store.Item{Key: itemKey(sess.Key, sortUsed+hash(text)), Expires: time.Now().Add(TTL)}, store.Absent()))
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	return err == nil, fault.Wrap(fault.Unavailable, err, "record a request id")
}

// RecordStreamOpen records that the session's newest stream is open. The record expires at the given time, by which the stream must have
// ended. The lease identifies the record for [Store.RecordStreamClosed].
func (s *Store) RecordStreamOpen(ctx context.Context, key string, until time.Time) (lease int64, err error) {
	lease = mathrand.Int64N(1<<62) + 1
	err = s.DB.Write(ctx, store.Put(store.Item{Key: itemKey(key, sortOpen), Version: lease, Expires: until}))
	return lease, fault.Wrap(fault.Unavailable, err, "record the open stream")
}

// RecordStreamClosed removes the record of [Store.RecordStreamOpen] unless a newer stream has replaced the record.
func (s *Store) RecordStreamClosed(ctx context.Context, key string, lease int64) error {
	err := s.DB.Write(ctx, store.Delete(itemKey(key, sortOpen), store.VersionIs(lease)))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "record the end of the stream")
}

// HasOpenStream reports whether a stream of the session is open at any instance.
func (s *Store) HasOpenStream(ctx context.Context, key string) (bool, error) {
	it, err := store.One(ctx, s.DB, itemKey(key, sortOpen), "look for the session's stream")
	return it != nil, err
}

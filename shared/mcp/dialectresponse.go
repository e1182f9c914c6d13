package mcp

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/store"
	"github.com/mcp-events/mcpevents/shared/stream"
)

// An answer that is to go out on the caller's open stream travels as a notice on
// the session's topic of the log, because the stream may be open at another instance.
// It may hold what must not lie in the store in clear (the secret of a webhook), so
// it is sealed with a key that only the session's id gives, and of the id the store
// has but a hash.

// maxResponse is the largest answer in bytes that a notice carries. In Base64 it
// stays below [store.MaxItem]. A larger one is the answer to the POST itself.
const maxResponse = 256 << 10

// responseNotice is such a notice.
type responseNotice struct {
	Response []byte `json:"response,omitempty"`
}

// respond sends what was recorded to the open stream of the session. It reports
// whether it did; if not, the POST has to be answered. That is so as well of
// everything that HTTP has a status for, and of what has no body.
func (d dialect) respond(c *call, kept *recorder) bool {
	body := kept.body.Bytes()
	if kept.status != http.StatusOK || len(body) == 0 || len(body) > maxResponse || kept.header.Get(mcpspec.HeaderSession) != "" {
		return false
	}
	ctx := c.request.Context()
	open, err := d.endpoint.sessions.streaming(ctx, c.session.key)
	if err != nil {
		d.endpoint.faults.log(ctx, "open stream not found, the answer goes to the POST", err)
	}
	if !open {
		return false
	}
	err = d.endpoint.options.Log.Notify(ctx, c.principal.Workspace, stream.TopicSession(c.session.key),
		mustJSON(responseNotice{sealResponse(c.session.id, body)}))
	if err != nil {
		d.endpoint.faults.log(ctx, "answer not sent to its stream, it goes to the POST", err)
	}
	return err == nil
}

func responseCipher(session string) cipher.AEAD {
	key := sha256.Sum256([]byte("response\x00" + session))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has the right size
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // as above
	}
	return aead
}

func sealResponse(session string, text []byte) []byte {
	return responseCipher(session).Seal(nil, nil, text, nil)
}

func openResponse(session string, sealed []byte) ([]byte, error) {
	return responseCipher(session).Open(nil, nil, sealed, nil)
}

// use records a request id of the session. It reports whether it was not used
// before, at any instance. An id is remembered for as long as a session lives
// unused, which bounds what is stored.
func (s *sessions) use(ctx context.Context, sess *session, id json.RawMessage) (fresh bool, err error) {
	text := "n" + string(id)
	if value, ok := jsonrpc.String(id); ok { // one string can be written in several ways
		text = "s" + value
	}
	h := sha256.Sum256([]byte(text))
	err = s.db.Write(ctx, store.Put(store.Item{
		Key:     sessionItem(sess.key, sortUsed+base64.RawURLEncoding.EncodeToString(h[:])),
		Expires: time.Now().Add(s.ttl),
	}, store.Absent()))
	if errors.Is(err, store.ErrConflict) {
		return false, nil
	}
	return err == nil, fault.Wrap(fault.Unavailable, err, "record a request id")
}

// opened says until when at the latest the session's newest stream is open.
func (s *sessions) opened(ctx context.Context, key string, until time.Time) (lease int64, err error) {
	lease = rand.Int64N(1<<62) + 1
	err = s.db.Write(ctx, store.Put(store.Item{Key: sessionItem(key, sortOpen), Version: lease, Expires: until}))
	return lease, fault.Wrap(fault.Unavailable, err, "record the open stream")
}

// closed takes [sessions.opened] back, unless a newer stream has followed.
func (s *sessions) closed(ctx context.Context, key string, lease int64) error {
	err := s.db.Write(ctx, store.Delete(sessionItem(key, sortOpen), store.VersionIs(lease)))
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "record the end of the stream")
}

// streaming reports whether a stream of the session is open somewhere.
func (s *sessions) streaming(ctx context.Context, key string) (bool, error) {
	items, err := s.db.Get(ctx, sessionItem(key, sortOpen))
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "look for the session's stream")
	}
	return items[0] != nil, nil
}

// redeclare writes what the client of a session declared by a later initialize,
// and tells its stream.
func (h *sessionMethods) redeclare(c *call, s session) error {
	ctx := c.request.Context()
	if err := h.sessions.change(ctx, c.session, func(now *session) {
		now.Version, now.Payloads, now.Events = s.Version, s.Payloads, s.Events
	}); err != nil {
		return err
	}
	if h.log == nil {
		return nil
	}
	return h.notify(ctx, c)
}

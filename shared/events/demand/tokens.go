package demand

import (
	"bytes"
	"context"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Some backends need the token of the caller that wants their events (see package catalog). The relay subscribes there with this token.
// So the demand contains the token, encrypted with a key that is derived from the deployment's key. Removing the demand also removes the
// token.

const maxToken = 16 << 10 // bytes of the Authorization header that contains the token

func (r *Registry) cipher(ctx context.Context) (cipher.AEAD, error) {
	if r.Key == nil {
		return nil, fault.New(fault.Internal, "there is no key for the tokens of callers")
	}
	secret, err := r.Key(ctx)
	if err != nil {
		return nil, err
	}
	return opaque.NewCipher(secret, "mcpevents callers' tokens")
}

// chooseToken returns the new value of a demand's stored item, the parameter had. The value contains the caller's token t or, if it is
// valid for longer, the stored token. The result replaced reports whether the value has another token than the stored item. Without a
// valid token, chooseToken returns an error of kind Unauthenticated.
func (r *Registry) chooseToken(ctx context.Context, key store.Key, uri string, had *store.Item, t auth.Token) (value []byte, replaced bool, err error) {
	stored, err := r.openToken(ctx, key, had)
	if err != nil {
		return nil, false, err
	}
	expired := hasExpired(t)
	switch {
	case len(t.Header) > maxToken:
		return nil, false, fault.New(fault.Invalid, "the token has %d bytes (allowed: %d)", len(t.Header), maxToken)
	case stored.Header != "" && (t.Header == "" || expired || stored.Header == t.Header || outlives(stored, t)):
		return had.Value, false, nil
	case t.Header == "" || expired:
		return nil, false, fault.New(fault.Unauthenticated, "events of backend %s need a valid token of the caller", catalog.BackendOf(uri))
	}
	sealer, err := r.cipher(ctx)
	if err != nil {
		return nil, false, err
	}
	text, _ := json.Marshal(t) // cannot fail for a string and a time
	return sealer.Seal([]byte(uri+"\n"), nil, text, []byte(key.Partition+"\n"+key.Sort)), true, nil
}

func hasExpired(t auth.Token) bool { return !t.Expires.IsZero() && !time.Now().Before(t.Expires) }

// outlives reports whether the token t is valid for longer than the other one.
func outlives(t, other auth.Token) bool {
	return !other.Expires.IsZero() && (t.Expires.IsZero() || t.Expires.After(other.Expires))
}

// openToken decrypts the token of the demand that an item stores. It returns the zero token if the demand has no token, or if the token
// is no longer valid.
func (r *Registry) openToken(ctx context.Context, key store.Key, it *store.Item) (t auth.Token, err error) {
	if it == nil {
		return t, nil
	}
	opener, err := r.cipher(ctx)
	if err != nil {
		return t, err
	}
	_, sealed, _ := bytes.Cut(it.Value, []byte("\n"))
	text, err := opener.Open(nil, nil, sealed, []byte(key.Partition+"\n"+key.Sort))
	if err != nil || json.Unmarshal(text, &t) != nil || hasExpired(t) {
		return auth.Token{}, nil
	}
	return t, nil
}

// callerKey returns the key of the demand for a URI whose events are for a single principal. The URI contains a hash of this principal.
func callerKey(workspace, uri string) store.Key {
	return store.Key{Table: store.Sessions, Partition: partition(workspace, catalog.BackendOf(uri)), Sort: catalog.CallerOf(uri) + "#" + hash(uri)}
}

// LoadToken returns the token with which the relay subscribes to a URI whose events are for a single principal. It returns the zero token
// if there is no valid token.
func (r *Registry) LoadToken(ctx context.Context, workspace, uri string) (auth.Token, error) {
	key := callerKey(workspace, uri)
	it, err := store.One(ctx, r.DB, key, "read a caller's token")
	if err != nil {
		return auth.Token{}, err
	}
	return r.openToken(ctx, key, it)
}

// DropToken removes a token that the backend has refused. If another token has replaced it meanwhile, DropToken does nothing.
func (r *Registry) DropToken(ctx context.Context, workspace, uri string, refused auth.Token) error {
	key := callerKey(workspace, uri)
	it, err := store.One(ctx, r.DB, key, "read a caller's token")
	if err != nil || it == nil {
		return err
	}
	if t, err := r.openToken(ctx, key, it); err != nil || t.Header != refused.Header {
		return err
	}
	next, read := *it, it.Version
	next.Key, next.Value, next.Version = key, []byte(uri), read+1
	err = r.DB.Write(ctx, store.Put(next, store.VersionIs(read)))
	if errors.Is(err, store.ErrConflict) {
		return nil // a client has stored another token meanwhile; if the backend refuses it, too, the relay drops it then
	}
	return fault.Wrap(fault.Unavailable, err, "remove a caller's token")
}

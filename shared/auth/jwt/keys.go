package jwt

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// How long keys are used.
const (
	// fresh is how long keys are used without looking whether they changed: a key
	// that the issuer took away is refused after this.
	fresh = 5 * time.Minute
	// usable is how long they are used while the issuer cannot be reached.
	usable = time.Hour
	// pause is the least time between two fetches, so that tokens with made-up keys
	// cost the issuer nothing. A new key of its own is seen after this.
	pause = 5 * time.Second
	// retry is the same while there still are usable keys.
	retry = 30 * time.Second
	// patience bounds a fetch, metadata included.
	patience = 5 * time.Second
)

// keySet holds the keys of one issuer.
type keySet struct {
	issuer string
	fetch  fetcher
	now    func() time.Time
	log    *slog.Logger

	generation atomic.Int64 // counts the fetches that brought keys

	mu      sync.Mutex
	keys    []jose.JSONWebKey
	fetched time.Time     // when keys were asked for; zero before the first
	tried   time.Time     // when the last fetch began
	failed  error         // of the last fetch
	running chan struct{} // closed when the fetch under way ends; nil without one

	// Used by the fetch under way alone.
	url    string // of the keys; empty before it was found
	pinned bool   // the operator gave it
}

// find returns the keys that the token may be signed with. None says that the
// issuer has no such key; fault.Unavailable that it is not known.
//
// Of many callers that need a fetch one makes it and the others wait for it; those
// that still have a usable key do not wait.
func (k *keySet) find(ctx context.Context, kid string, alg jose.SignatureAlgorithm) ([]jose.JSONWebKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	found := k.match(kid, alg)
	switch {
	case len(found) > 0 && k.now().Sub(k.fetched) < fresh:
		return found, nil
	case k.running != nil && len(found) == 0:
		if err := k.wait(ctx); err != nil {
			return nil, err
		}
		found = k.match(kid, alg)
	case k.running == nil && k.due(len(found) > 0):
		k.refresh(ctx)
		found = k.match(kid, alg)
	}
	if len(found) == 0 && k.failed != nil {
		return nil, fault.Wrap(fault.Unavailable, k.failed, "the keys of the authorization server cannot be fetched at the moment")
	}
	return found, nil
}

// freshUntil is until when keys are used without looking whether they changed.
func (k *keySet) freshUntil() time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.fetched.Add(fresh)
}

// wait waits for the fetch under way. It is called with the lock and gives it up meanwhile.
func (k *keySet) wait(ctx context.Context) error {
	running := k.running
	k.mu.Unlock()
	defer k.mu.Lock()
	select {
	case <-running:
		return nil
	case <-ctx.Done():
		return fault.Wrap(fault.Unavailable, ctx.Err(), "wait for the keys of the authorization server")
	}
}

// due reports whether it is time for another fetch.
func (k *keySet) due(usable bool) bool {
	wait := pause
	if usable && k.failed != nil {
		wait = retry
	}
	return k.tried.IsZero() || k.now().Sub(k.tried) >= wait
}

// refresh fetches the keys. It is called with the lock and gives it up meanwhile.
// The caller may go away; others wait for what it fetches.
func (k *keySet) refresh(ctx context.Context) {
	k.running, k.tried = make(chan struct{}), k.now()
	k.mu.Unlock()
	fetching, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	keys, err := []jose.JSONWebKey(nil), error(fault.New(fault.Internal, "the fetch of keys did not end"))
	defer func() { // also after a panic
		cancel()
		k.mu.Lock()
		if k.failed = err; err == nil {
			k.keys, k.fetched = keys, k.tried
			k.generation.Add(1)
		}
		close(k.running)
		k.running = nil
	}()
	if keys, err = k.load(fetching); err != nil {
		k.log.WarnContext(ctx, "issuer keys not fetched", "issuer", k.issuer, "error", err)
	}
}

// load fetches the keys, and before that where they are, if that is not known. After
// a failure it is looked up again.
func (k *keySet) load(ctx context.Context) ([]jose.JSONWebKey, error) {
	if k.url == "" {
		url, err := k.fetch.keysURL(ctx, k.issuer)
		if err != nil {
			return nil, err
		}
		k.url = url
	}
	keys, err := k.fetch.keys(ctx, k.url)
	if err != nil && !k.pinned {
		k.url = ""
	}
	return keys, err
}

// match finds the keys with the id that fit the algorithm. A token without an id
// can only be of an issuer with a single key for its algorithm, or everybody
// could make us try many.
func (k *keySet) match(kid string, alg jose.SignatureAlgorithm) []jose.JSONWebKey {
	if k.fetched.IsZero() || k.now().Sub(k.fetched) >= usable {
		return nil
	}
	var found []jose.JSONWebKey
	for _, key := range k.keys {
		if (kid == "" || key.KeyID == kid) && fits(key, alg) {
			found = append(found, key)
		}
	}
	if kid == "" && len(found) > 1 {
		return nil
	}
	return found
}

// fits reports whether a key is one of the algorithm: of its kind and, if the key
// says so, for it alone. So a public key never becomes a shared secret.
func fits(key jose.JSONWebKey, alg jose.SignatureAlgorithm) bool {
	if key.Algorithm != "" && key.Algorithm != string(alg) {
		return false
	}
	switch k := key.Key.(type) {
	case *rsa.PublicKey:
		return strings.HasPrefix(string(alg), "RS") || strings.HasPrefix(string(alg), "PS")
	case *ecdsa.PublicKey:
		return map[jose.SignatureAlgorithm]int{jose.ES256: 256, jose.ES384: 384, jose.ES512: 521}[alg] == k.Curve.Params().BitSize
	case ed25519.PublicKey:
		return alg == jose.EdDSA
	}
	return false
}

// minRSA is the fewest bits of an RSA key (RFC 7518, section 3.3).
const minRSA = 2048

// forSignatures reports whether a key of a set can be used at all.
func forSignatures(key *jose.JSONWebKey) bool {
	if !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" {
		return false
	}
	r, ok := key.Key.(*rsa.PublicKey)
	return !ok || r.N.BitLen() >= minRSA
}

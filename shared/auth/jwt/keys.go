package jwt

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
)

// How long keys are used.
const (
	// fresh is how long keys are used without another fetch. A key that the issuer removes is refused after this time.
	fresh = 5 * time.Minute
	// usable is how long keys are used while the issuer cannot be reached.
	usable = time.Hour
	// pause is the shortest time between two fetches, so that tokens with made-up keys cause few requests to the issuer. A new key of
	// the issuer is found after this time.
	pause = 5 * time.Second
	// retry is the pause after a failed fetch while the old keys are usable.
	retry = 30 * time.Second
	// patience limits a fetch, including the metadata.
	patience = 5 * time.Second
)

// keySet holds the keys of one issuer.
type keySet struct{ *refresh.Value[*issuerKeys] }

// issuerKeys are the keys that one fetch returned.
type issuerKeys struct{ keys []jose.JSONWebKey }

// newKeySet returns the keys of an issuer. They are at url or, if that is empty, where the issuer's metadata says.
func newKeySet(issuer, url string, f fetcher, o *Options) *keySet {
	found := url // only the running fetch uses it
	fetch := func(ctx context.Context) (keys []jose.JSONWebKey, err error) {
		if found == "" {
			if found, err = f.keysURL(ctx, issuer); err != nil {
				return nil, err
			}
		}
		if keys, err = f.keys(ctx, found); err != nil {
			found = url // the issuer may have moved its keys
		}
		return keys, err
	}
	load := func(ctx context.Context, _ *issuerKeys) (*issuerKeys, error) {
		keys, err := fetch(ctx)
		if err != nil {
			o.Log.WarnContext(ctx, "issuer keys not fetched", "issuer", issuer, "error", err)
		}
		return &issuerKeys{keys}, err
	}
	return &keySet{refresh.New(refresh.Options{
		Name: "the keys of the authorization server", Fresh: fresh, Shared: usable, Stale: usable,
		Backoff: retry, EmptyBackoff: pause, Timeout: patience, Now: o.Now,
	}, load)}
}

// find returns the keys that the token may be signed with, and the fetch they are from. No keys mean that the issuer has no
// such key, and fault.Unavailable that it cannot be known.
func (k *keySet) find(ctx context.Context, kid string, alg jose.SignatureAlgorithm) ([]jose.JSONWebKey, *issuerKeys, error) {
	all, err := k.Get(ctx)
	found := all.match(kid, alg)
	if err == nil && len(found) == 0 { // it may be a new key
		all, err = k.Within(ctx, pause)
		found = all.match(kid, alg)
	}
	if err != nil {
		return nil, nil, fault.Wrap(fault.Unavailable, err, "the keys of the authorization server cannot be fetched at the moment")
	}
	return found, all, nil
}

// freshUntil returns when the keys of a fetch have to be fetched again. It returns the zero time if they have been replaced.
func (k *keySet) freshUntil(keys *issuerKeys) time.Time {
	current, loaded := k.Peek()
	if current != keys {
		return time.Time{}
	}
	return loaded.Add(fresh)
}

// match returns the keys with the id that fit the algorithm. A token without an id matches only if the issuer has a single
// key for its algorithm. Otherwise anyone could make us try many keys.
func (k *issuerKeys) match(kid string, alg jose.SignatureAlgorithm) []jose.JSONWebKey {
	if k == nil {
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

// fits reports whether a key can be used with an algorithm: it has the right type and does not name another algorithm. This prevents an
// attacker from using a public key as a shared secret.
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

// minRSA is the smallest size of an RSA key in bits (RFC 7518, section 3.3).
const minRSA = 2048

// canVerify reports whether a key can verify signatures.
func canVerify(key *jose.JSONWebKey) bool {
	if !key.IsPublic() || !key.Valid() || key.Use != "" && key.Use != "sig" {
		return false
	}
	r, ok := key.Key.(*rsa.PublicKey)
	return !ok || r.N.BitLen() >= minRSA
}

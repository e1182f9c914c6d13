package auth

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Key is a static key of --auth keys. Only its hash is stored. A key must have at least 16 random bytes, because a plain hash does not
// protect a password.
type Key struct {
	Principal string
	// Workspace is [DefaultWorkspace] if it is empty.
	Workspace string
	Scopes    []string
	// SHA256 is the SHA-256 of the key as 64 hexadecimal digits.
	SHA256 string
	// Expires is the time from which the key is refused. The zero time means never.
	Expires time.Time
	// Path allows the key to be part of a URL, see [SecretPath].
	Path bool
	// Claims are used in the access rules of the catalog, like the claims of a token.
	Claims map[string]string
}

type hashedKey struct {
	hash      [sha256.Size]byte
	principal Principal
}

func (k *hashedKey) isExpired(now time.Time) bool {
	return !k.principal.Expires.IsZero() && !now.Before(k.principal.Expires)
}

// StaticKeys authenticates callers with static keys. It is also a [Directory]. Create it with [Keys].
type StaticKeys struct {
	all    []hashedKey
	byName map[name][]int // indices of all
	now    func() time.Time
}

// MaxKeys is the largest number of keys. It is limited because the key of each request is compared with all of them.
const MaxKeys = 10_000

var (
	principalID   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@:|/-]{0,127}$`)
	workspaceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
)

// ValidPrincipal reports whether id can name a principal.
func ValidPrincipal(id string) bool { return principalID.MatchString(id) }

// ValidWorkspace reports whether name can name a workspace: up to 64 letters, digits, - and _, beginning with a letter or digit.
func ValidWorkspace(name string) bool { return workspaceName.MatchString(name) }

// Keys returns an authenticator for static keys, which callers send as "Authorization: Bearer KEY". The error is of kind fault.Invalid if
// a key is malformed or listed twice, or if there are more than [MaxKeys]. A nil clock is time.Now.
func Keys(list []Key, now func() time.Time) (*StaticKeys, error) {
	if now == nil {
		now = time.Now
	}
	if len(list) > MaxKeys {
		return nil, fault.New(fault.Invalid, "there are more than %d keys", MaxKeys)
	}
	k := &StaticKeys{now: now, all: make([]hashedKey, 0, len(list)), byName: map[name][]int{}}
	seen := make(map[[sha256.Size]byte]bool, len(list))
	for i, x := range list {
		h, err := hashKey(x)
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "key %d", i+1)
		}
		if seen[h.hash] {
			return nil, fault.New(fault.Invalid, "key %d: the same hash is listed twice", i+1)
		}
		seen[h.hash] = true
		who := name{h.principal.Workspace, h.principal.ID}
		k.byName[who] = append(k.byName[who], len(k.all))
		k.all = append(k.all, h)
	}
	return k, nil
}

// Check returns an error of kind fault.Invalid if the key is malformed.
func (x Key) Check() error {
	_, err := hashKey(x)
	return err
}

func hashKey(x Key) (hashedKey, error) {
	h := hashedKey{}
	sum, err := hex.DecodeString(x.SHA256)
	if err != nil || len(sum) != sha256.Size {
		return h, fault.New(fault.Invalid, "sha256 is not 64 hexadecimal digits")
	}
	h.hash = [sha256.Size]byte(sum)
	x.Workspace = cmp.Or(x.Workspace, DefaultWorkspace)
	switch {
	case !ValidPrincipal(x.Principal):
		return h, fault.New(fault.Invalid, "principal %q is not a name of letters, digits and ._@:|/-", x.Principal)
	case x.Principal == AnonymousID:
		return h, fault.New(fault.Invalid, "principal %q is reserved for --auth none", x.Principal)
	case !ValidWorkspace(x.Workspace):
		return h, fault.New(fault.Invalid, "workspace %q is not a name of letters, digits, - and _", x.Workspace)
	}
	h.principal = Principal{ID: x.Principal, Workspace: x.Workspace, Scopes: slices.Clone(x.Scopes), Expires: x.Expires, ByPath: x.Path}
	if len(x.Claims) > 0 {
		h.principal.Claims = make(map[string][]string, len(x.Claims))
		for name, value := range x.Claims {
			h.principal.Claims[name] = []string{value}
		}
	}
	return h, nil
}

// Authenticate compares the hash of the token with all keys. It takes the same time whichever key matches, and however many bytes of a
// key match.
func (k *StaticKeys) Authenticate(_ context.Context, h http.Header) (Principal, error) {
	token, err := Bearer(h)
	if err != nil {
		return Principal{}, err
	}
	sum := sha256.Sum256([]byte(token))
	found := -1
	for i := range k.all {
		eq := subtle.ConstantTimeCompare(sum[:], k.all[i].hash[:])
		found = subtle.ConstantTimeSelect(eq, i, found)
	}
	if found < 0 {
		return Principal{}, ErrInvalidToken
	}
	if k.all[found].isExpired(k.now()) {
		return Principal{}, ErrInvalidToken
	}
	return k.all[found].principal, nil
}

// Directory returns principals without a request from them. It is used to decide whether their subscriptions may continue.
type Directory interface {
	// Principals returns a principal for each credential that the principal has now, with the scopes and claims of that credential. It
	// returns none if the principal can no longer authenticate. The result may be seconds old unless latest is set.
	Principals(ctx context.Context, workspace, id string, latest bool) ([]Principal, error)
}

// Principals implements [Directory] with the keys that have not expired.
func (k *StaticKeys) Principals(_ context.Context, workspace, id string, _ bool) ([]Principal, error) {
	var out []Principal
	for _, i := range k.byName[name{workspace, id}] {
		if key := &k.all[i]; !key.isExpired(k.now()) {
			out = append(out, key.principal)
		}
	}
	return out, nil
}

// name identifies a principal.
type name struct{ workspace, id string }

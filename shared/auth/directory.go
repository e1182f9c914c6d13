package auth

import "context"

// Directory knows principals who are not calling just now, for decisions about what
// they were granted before.
type Directory interface {
	// Principals lists what a principal's credentials are worth now, each by itself; none
	// when no caller can have that name any more. The answer may be seconds old
	// unless latest is set.
	Principals(ctx context.Context, workspace, id string, latest bool) ([]Principal, error)
}

// Principals implements [Directory]: the keys of that name that have not expired.
func (k *StaticKeys) Principals(_ context.Context, workspace, id string, _ bool) ([]Principal, error) {
	var out []Principal
	for _, i := range k.byName[name{workspace, id}] {
		if key := &k.all[i]; !key.expired(k.now()) {
			out = append(out, key.principal)
		}
	}
	return out, nil
}

// name distinguishes principals.
type name struct{ workspace, id string }

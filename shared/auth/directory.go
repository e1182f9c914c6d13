package auth

import "context"

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

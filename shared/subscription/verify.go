package subscription

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/store"
)

// verify makes sure that the target wants deliveries for this principal, by a
// challenge unless it is known (EVX-12).
func (g *Registrar) verify(ctx context.Context, p auth.Principal, target, id string, key []byte) error {
	if slices.ContainsFunc(g.Options.VerifiedTargets, func(prefix string) bool { return strings.HasPrefix(target, prefix) }) {
		return nil
	}
	h := sha256.Sum256([]byte(target))
	record := store.Key{
		Table: store.Subscriptions, Partition: "v#" + p.Workspace + "#" + p.ID, Sort: hex.EncodeToString(h[:]),
	}
	if known, err := store.One(ctx, g.Service.Records.DB, record, "read the verification"); err != nil || known != nil {
		return err
	}
	if err := g.countVerification(ctx, target); err != nil {
		return err
	}
	if err := g.Targets.Verify(ctx, target, id, key); err != nil {
		return err
	}
	err := g.Service.Records.DB.Write(ctx, store.Put(store.Item{Key: record, Expires: g.now().Add(verificationTTL)}))
	return fault.Wrap(fault.Unavailable, err, "record the verification")
}

// maxVerifications is how often all processes together challenge a host in a minute: as often as one alone may
// (webhook.Options.Challenges), or a fleet would be an amplifier (SRF-07).
const maxVerifications = 160

func (g *Registrar) countVerification(ctx context.Context, target string) error {
	u, err := url.Parse(target)
	if err != nil {
		return fault.New(fault.Invalid, "the target is no URL") // Check has refused it
	}
	now, h := g.now(), sha256.Sum256([]byte(strings.ToLower(u.Hostname())))
	op := store.Add(store.Key{
		Table: store.Subscriptions, Partition: "vh#" + hex.EncodeToString(h[:]), Sort: fmt.Sprint(now.Unix() / 60),
	}, map[string]int64{"n": 1}, map[string]int64{"n": maxVerifications})
	op.Item.Expires = now.Add(2 * time.Minute)
	if err := g.Service.Records.DB.Write(ctx, op); errors.Is(err, store.ErrConflict) {
		return fault.New(fault.Exhausted, "too many verifications of this host; try again later").
			AtLimit("verificationsPerHost", maxVerifications)
	} else if err != nil {
		return fault.Wrap(fault.Unavailable, err, "count the verifications of a host")
	}
	return nil
}

// fingerprint shows whether a refresh brings the secret that is stored, which
// register can seal but not open.
func fingerprint(secret string) []byte {
	h := sha256.Sum256([]byte("fingerprint\x00" + secret))
	return h[:8]
}

package subscription

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// The limits on challenges (EVX-12, SRF-07). Many principals may share one host, as all callbacks of ChatGPT do, so only failed
// challenges count against a host, and the host's total stops only principals that have failed there themselves. All processes
// share the counters.
const (
	// maxPending is how many challenges of a principal may be waiting for one host at the same time.
	maxPending = 20
	// maxFailed is how often a principal may fail at one host within a failureWindow.
	maxFailed = 20
	// maxFailedByAll is how often all principals together may fail at a host within a failureWindow. After that, a principal
	// that has failed there once has to wait for the next window.
	maxFailedByAll = 100
	failureWindow  = 5 * time.Minute
)

// verify checks that the target wants deliveries for this principal. It sends a challenge unless the principal has verified the
// target within the last day or the operator vouches for it (EVX-12).
func (g *Registrar) verify(ctx context.Context, p auth.Principal, target, id string, key []byte) error {
	if slices.ContainsFunc(g.Options.VerifiedTargets, func(prefix string) bool { return strings.HasPrefix(target, prefix) }) {
		return nil
	}
	u, err := url.Parse(target)
	if err != nil {
		return fault.New(fault.Invalid, "the target is no URL") // checkTarget has already refused it
	}
	db, c := g.Service.Records.DB, g.challengeOf(ctx, p, u.Hostname())
	record := verificationKey(p.Workspace, p.ID, hash(target))
	items, err := db.Get(ctx, record, c.failures, c.byAll)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the verification")
	}
	if items[0] != nil {
		return nil
	}
	if err := c.checkFailures(items[1], items[2]); err != nil {
		return err
	}
	if err := c.begin(ctx, db); err != nil {
		return err
	}
	failure := g.Targets.Verify(ctx, target, id, key)
	// A caller that hangs up must not keep its failure from being counted.
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if failure != nil {
		c.fail(done, db)
		return failure
	}
	err = db.Write(done, store.Put(store.Item{Key: record, Expires: g.now().Add(verificationTTL)}), c.add(c.failures, pendingCount, -1))
	return fault.Wrap(fault.Unavailable, err, "record the verification")
}

const (
	pendingCount = "p"
	failedCount  = "n"
	sentCount    = "n"
)

// challenge is one challenge and the counters that limit it.
type challenge struct {
	sent     store.Key // what the principal has sent in this minute
	failures store.Key // what the principal has pending, and has failed, at this host in this window
	byAll    store.Key // what all principals have failed at this host in this window
	max      int64     // how many the principal may send in a minute
	host     string
	at       time.Time
	expires  time.Time
}

func (g *Registrar) challengeOf(ctx context.Context, p auth.Principal, host string) challenge {
	now, host := g.now(), strings.TrimSuffix(strings.ToLower(host), ".")
	window := now.Unix() / int64(failureWindow/time.Second)
	c := challenge{
		sent:     verificationCountKey(p.Workspace, p.ID, fmt.Sprintf("sent#%d", now.Unix()/60)),
		failures: verificationCountKey(p.Workspace, p.ID, fmt.Sprintf("failed#%s#%d", hash(host), window)),
		byAll:    store.Key{Table: store.Subscriptions, Partition: "vh#" + hash(host), Sort: fmt.Sprintf("failed#%d", window)},
		max:      quota.DefaultVerifications, host: host, at: now, expires: now.Add(2 * failureWindow),
	}
	if g.Options.Verifications != nil {
		c.max = g.Options.Verifications(ctx, p.Workspace, p.ID)
	}
	return c
}

func verificationKey(workspace, principal, sort string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "v#" + workspace + "#" + principal, Sort: sort}
}

func verificationCountKey(workspace, principal, sort string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "vp#" + workspace + "#" + principal, Sort: sort}
}

func hash(s string) string {
	h := sha256.Sum256([]byte(s))
	return hex.EncodeToString(h[:])
}

func countOf(it *store.Item, name string) int64 {
	if it == nil {
		return 0
	}
	return it.Counts[name]
}

// checkFailures refuses a challenge of a principal that has failed too often at the host.
func (c challenge) checkFailures(own, byAll *store.Item) error {
	switch n := countOf(own, failedCount); {
	case n >= maxFailed:
		return quota.ExceededFor("failedVerifications", maxFailed, c.untilNext(failureWindow),
			"%d verifications of %.128s failed within five minutes; try again later", n, c.host)
	case n > 0 && countOf(byAll, failedCount) >= maxFailedByAll:
		return quota.ExceededFor("failedVerificationsPerHost", maxFailedByAll, c.untilNext(failureWindow),
			"%.128s fails the verifications of many callers, yours among them; try again in five minutes", c.host)
	}
	return nil
}

// untilNext returns how many seconds are left of the current window.
func (c challenge) untilNext(window time.Duration) int {
	seconds := int64(window / time.Second)
	return int(seconds - c.at.Unix()%seconds)
}

// begin counts a challenge that is about to be sent. A refused one counts nowhere.
func (c challenge) begin(ctx context.Context, db store.DB) error {
	sent, pending := c.add(c.sent, sentCount, 1), c.add(c.failures, pendingCount, 1)
	sent.Limits = map[string]int64{sentCount: c.max}
	pending.Limits = map[string]int64{pendingCount: maxPending}
	err := db.Write(ctx, sent, pending)
	if !errors.Is(err, store.ErrConflict) {
		return fault.Wrap(fault.Unavailable, err, "count the verifications of a principal")
	}
	has, err := store.One(ctx, db, c.sent, "count the verifications of a principal")
	switch {
	case err != nil:
		return err
	case countOf(has, sentCount) >= c.max:
		return quota.ExceededFor(quota.Verifications, float64(c.max), c.untilNext(time.Minute),
			"the limit of %d verifications per minute is reached; try again in a minute", c.max)
	}
	return quota.Exceeded("pendingVerifications", maxPending, "%d verifications of %.128s are waiting for an answer; try again when they have ended", maxPending, c.host)
}

// fail counts a failed challenge against the principal and the host.
func (c challenge) fail(ctx context.Context, db store.DB) {
	own := c.add(c.failures, pendingCount, -1)
	own.Item.Counts[failedCount] = 1
	for _, op := range []store.Op{own, c.add(c.byAll, failedCount, 1)} {
		if err := db.Write(ctx, op); err != nil {
			slog.WarnContext(ctx, "failed verification not counted", "error", err)
		}
	}
}

func (c challenge) add(key store.Key, name string, n int64) store.Op {
	op := store.Add(key, map[string]int64{name: n}, nil)
	op.Item.Expires = c.expires
	return op
}

// fingerprint shows whether a refresh brings the secret that is stored, which
// register can seal but not open.
func fingerprint(secret string) []byte {
	h := sha256.Sum256([]byte("fingerprint\x00" + secret))
	return h[:8]
}

// Package challenge makes sure that an endpoint wants webhooks before the server sends it any.
//
// A [Verifier] sends a challenge to a new endpoint, which must echo it. Challenges are requests to hosts that callers choose. So the
// package also limits them, so that callers cannot use the server to flood a third party with requests.
package challenge

import (
	"cmp"
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

// These limits on challenges (EVX-12, SRF-07) count the challenges of all processes. Many principals may use endpoints at the same host,
// for example ChatGPT's, so only failed challenges count against a host. After many failures, only principals that have failed at the
// host themselves are refused.
const (
	// maxPending is how many of a principal's challenges may be waiting for a host's response at the same time.
	maxPending = 20
	// maxFailed is how many of a principal's challenges may fail at one host within a failureWindow.
	maxFailed = 20
	// maxFailedByAll is how many challenges of all principals together may fail at a host within a failureWindow. After that, a principal
	// with at least one failure at the host must wait for the next window.
	maxFailedByAll = 100
	failureWindow  = 5 * time.Minute
	// verifiedFor is how long a verified endpoint needs no further challenge.
	verifiedFor = 24 * time.Hour
)

// Verifier sends challenges to endpoints, and limits how many it sends.
type Verifier struct {
	DB  store.DB
	Now func() time.Time
	// Send sends a challenge, signed unless key is nil, and returns nil if the endpoint echoed it.
	Send func(ctx context.Context, url, subscriptionID string, key []byte) error
	// Trusted are URL prefixes of endpoints that need no challenge, because the operator vouches for them.
	Trusted []string
	// PerMinute returns how many challenges per minute a principal may cause. Nil means [quota.DefaultVerifications] for all principals.
	PerMinute func(ctx context.Context, workspace, principal string) int64
	// Log receives failures; nil is [slog.Default].
	Log *slog.Logger
}

// Verify sends a challenge to the endpoint, unless the principal has verified the endpoint within a day or the operator vouches for it
// (EVX-12).
func (v Verifier) Verify(ctx context.Context, p auth.Principal, endpoint, subscriptionID string, key []byte) error {
	if slices.ContainsFunc(v.Trusted, func(prefix string) bool { return isBelow(prefix, endpoint) }) {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "parse the endpoint's URL")
	}
	c := v.challenge(ctx, p, u.Hostname())
	record := RecordKey(p.Workspace, p.ID, endpoint)
	items, err := v.DB.Get(ctx, record, c.failures, c.byAll)
	if err != nil {
		return fault.Wrap(fault.Unavailable, err, "read the verification")
	}
	if items[0] != nil {
		return nil
	}
	if err := c.checkFailures(items[1], items[2]); err != nil {
		return err
	}
	if err := c.begin(ctx, v.DB); err != nil {
		return err
	}
	failure := v.Send(ctx, endpoint, subscriptionID, key)
	// Count the result of the challenge even if the client has disconnected.
	done, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if failure != nil {
		c.fail(done, v.DB, cmp.Or(v.Log, slog.Default()))
		return failure
	}
	err = v.DB.Write(done, store.Put(store.Item{Key: record, Expires: v.Now().Add(verifiedFor)}), c.add(c.failures, pendingCount, -1))
	return fault.Wrap(fault.Unavailable, err, "record the verification")
}

// isBelow reports whether the endpoint's URL begins with the prefix and has no dot segments after it. With dot segments, the URL could
// leave the prefix, as in https://example.com/hooks/../other.
func isBelow(prefix, endpoint string) bool {
	rest, ok := strings.CutPrefix(endpoint, prefix)
	path, _, _ := strings.Cut(strings.ToLower(rest), "?")
	return ok && !strings.Contains(strings.ReplaceAll(path, "%2e", "."), "..")
}

// RecordKey returns the key of the record that a principal has verified an endpoint.
func RecordKey(workspace, principal, endpoint string) store.Key {
	k := recordsKey(workspace, principal)
	k.Sort = hash(endpoint)
	return k
}

// Partitions returns the partitions that store a principal's verified endpoints and its counters of challenges, by the kind of data.
func Partitions(workspace, principal string) map[string]store.Key {
	return map[string]store.Key{
		"verifications":      recordsKey(workspace, principal),
		"verificationCounts": countKey(workspace, principal, "-"),
	}
}

const (
	pendingCount = "p"
	failedCount  = "n"
	sentCount    = "n"
)

// challenge describes a challenge to a host. It has the keys of the counters that limit such challenges.
type challenge struct {
	sent     store.Key // counts the challenges that the principal sent in this minute
	failures store.Key // counts the principal's pending and failed challenges at this host in this window
	byAll    store.Key // counts the failed challenges of all principals at this host in this window
	max      int64     // how many challenges the principal may send in a minute
	host     string
	at       time.Time
	expires  time.Time
}

func (v Verifier) challenge(ctx context.Context, p auth.Principal, host string) challenge {
	now, host := v.Now(), strings.TrimSuffix(strings.ToLower(host), ".")
	window := now.Unix() / int64(failureWindow/time.Second)
	c := challenge{
		sent:     countKey(p.Workspace, p.ID, fmt.Sprintf("sent#%d", now.Unix()/60)),
		failures: countKey(p.Workspace, p.ID, fmt.Sprintf("failed#%s#%d", hash(host), window)),
		byAll:    store.Key{Table: store.Subscriptions, Partition: "vh#" + hash(host), Sort: fmt.Sprintf("failed#%d", window)},
		max:      quota.DefaultVerifications, host: host, at: now, expires: now.Add(2 * failureWindow),
	}
	if v.PerMinute != nil {
		c.max = v.PerMinute(ctx, p.Workspace, p.ID)
	}
	return c
}

func recordsKey(workspace, principal string) store.Key {
	return store.Key{Table: store.Subscriptions, Partition: "v#" + workspace + "#" + principal, Sort: "-"}
}

func countKey(workspace, principal, sort string) store.Key {
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

// checkFailures refuses the challenge after [maxFailed] failures of the principal at the host. It also refuses the challenge after
// [maxFailedByAll] failures of all principals at the host, if at least one of them was the principal's. The parameters own and byAll are
// the items that count these failures.
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

// untilNext returns how many seconds are left of the current time window, for example of the current minute for a window of one minute.
func (c challenge) untilNext(window time.Duration) int {
	seconds := int64(window / time.Second)
	return int(seconds - c.at.Unix()%seconds)
}

// begin counts a challenge before it is sent. It returns an error if the principal has reached its limit of challenges per minute, or if
// [maxPending] of the principal's challenges to this host have no response yet.
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

func (c challenge) fail(ctx context.Context, db store.DB, log *slog.Logger) {
	own := c.add(c.failures, pendingCount, -1)
	own.Item.Counts[failedCount] = 1
	for _, op := range []store.Op{own, c.add(c.byAll, failedCount, 1)} {
		if err := db.Write(ctx, op); err != nil {
			log.WarnContext(ctx, "failed verification not counted", "error", err)
		}
	}
}

func (c challenge) add(key store.Key, name string, n int64) store.Op {
	op := store.Add(key, map[string]int64{name: n}, nil)
	op.Item.Expires = c.expires
	return op
}

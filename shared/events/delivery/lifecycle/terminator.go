package lifecycle

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Terminator ends subscriptions that may not continue, for example because their principal lost access. It deletes an MCP Events
// subscription and sends a signed termination notice (SEP-3415, Subscription Termination). It disables a SEP-1803 subscription.
type Terminator struct {
	Queue         queue.Sender
	Subscriptions Terminable
	Lists         *subscription.Lists
	Review        *review.Review
	// ErrorObject returns the error member of a termination notice: code, message and data.
	ErrorObject func(profile spec.Profile, reason error) json.RawMessage
	// Profile is the version of the MCP Events extension for subscriptions that name none. It determines the format of the notice that tells a
	// subscriber that its subscription has ended.
	Profile spec.Profile
	// Plain lists URL prefixes of endpoints that get no notices, because these endpoints expect only events.
	Plain []string
	Now   func() time.Time
	Log   *slog.Logger

	rechecking  sync.Mutex
	rechecked   map[string]string // the fingerprint of the catalog for which both rechecks are done, by workspace
	interrupted string            // the workspace at which the last recheck ran out of time
}

// Terminable are the operations on subscriptions that a terminator needs. [subscription.Service] implements it.
type Terminable interface {
	Lookup(ctx context.Context, workspace, principal, id string) (*subscription.Subscription, error)
	Terminate(ctx context.Context, workspace, principal, id string,
		judge func(*subscription.Subscription) error, also func(*subscription.Subscription, error) []store.Op) (*subscription.Subscription, error)
}

func (t *Terminator) now() time.Time { return periodic.Clock(t.Now)() }

func (t *Terminator) log() *slog.Logger { return cmp.Or(t.Log, slog.Default()) }

// Terminate checks a subscription against the latest catalog and the principal's latest keys, and ends the subscription if it may not
// continue. One transaction ends the subscription and stores its termination notice, so that a crash cannot lose the notice.
func (t *Terminator) Terminate(ctx context.Context, workspace, principal, id string) (ended bool, err error) {
	var (
		notice *state.Delivery
		reason error
	)
	judge := func(sub *subscription.Subscription) error {
		_, reason = t.Review.CheckSubscription(ctx, sub, refresh.Latest)
		return reason
	}
	sub, err := t.Subscriptions.Terminate(ctx, workspace, principal, id, judge, func(sub *subscription.Subscription, why error) []store.Op {
		if notice = nil; sub.Plain || t.isPlain(sub.Target.URL) {
			return nil
		}
		notice = t.newNotice(sub, why)
		return []store.Op{store.Put(notice.Item(), store.Absent()), store.Put(notice.DueItem())}
	})
	if err != nil || sub == nil {
		return false, err
	}
	t.log().InfoContext(ctx, "subscription terminated", "workspace", workspace, "subscription", id, "reason", reason, "notice", notice != nil)
	if notice == nil {
		return true, nil
	}
	if err := t.Queue.Send(ctx, queue.Slow, notice.NextTask().Outgoing(0)); err != nil {
		// The notice is stored, so the periodic job for due deliveries will send it.
		t.log().WarnContext(ctx, "termination notice postponed", "subscription", id, "error", err)
	}
	return true, nil
}

func (t *Terminator) isPlain(url string) bool {
	return slices.ContainsFunc(t.Plain, func(prefix string) bool { return strings.HasPrefix(url, prefix) })
}

func (t *Terminator) newNotice(sub *subscription.Subscription, reason error) *state.Delivery {
	body, _ := json.Marshal(struct { // cannot fail, because the error member is valid JSON already
		Type  string          `json:"type"`
		Error json.RawMessage `json:"error"`
	}{"terminated", t.ErrorObject(cmp.Or(sub.Profile, t.Profile), reason)})
	now, subscriber := t.now(), sub.Subscriber()
	del := state.NewNotice(sub.Workspace, &subscriber, sub.Name, "terminated", now)
	del.Due, del.DueAt, del.Made, del.Control.Body = now, now.Add(state.Backup), now, body
	return del
}

// Ending is the number of subscriptions in a workspace that a change of the catalog would end for one reason.
type Ending struct {
	Workspace     string
	Reason        string
	Subscriptions int
}

// CountEndings counts the subscriptions that would end if the given catalogs replaced the current ones. It leaves out subscriptions that
// also end without the change. A workspace without a new catalog keeps its current one.
func (t *Terminator) CountEndings(ctx context.Context, next catalog.Source) ([]Ending, error) {
	workspaces, err := t.Lists.Workspaces(ctx)
	if err != nil {
		return nil, err
	}
	var out []Ending
	for _, workspace := range workspaces {
		found, err := t.endingsOf(ctx, workspace, next)
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "look at the subscriptions of workspace %s", workspace)
		}
		out = append(out, found...)
	}
	return out, nil
}

func (t *Terminator) endingsOf(ctx context.Context, workspace string, next catalog.Source) ([]Ending, error) {
	cat, err := next.Catalog(ctx, workspace)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	used, err := t.Review.Catalog.Catalog(ctx, workspace)
	if err != nil && !fault.Is(err, fault.NotFound) {
		return nil, err
	}
	last, err := t.Lists.RecheckState(ctx, workspace)
	if err != nil || last.Settled == cat.Fingerprint() || used != nil && used.Fingerprint() == cat.Fingerprint() {
		return nil, err
	}
	after := &review.Review{DB: t.Review.DB, Catalog: next, Directory: t.Review.Directory}
	reasons, seen := map[string]int{}, map[string]bool{}
	judge := func(sub *subscription.Subscription) error {
		var now, then *subscription.Terminated
		_, err := after.CheckSubscription(ctx, sub, refresh.Cached)
		if !errors.As(err, &then) {
			return err
		}
		if gone, err := t.hasNoKey(ctx, sub); gone || err != nil { // the subscription ends whatever the catalog says
			return err
		}
		if used != nil {
			if _, err := t.Review.CheckSubscription(ctx, sub, refresh.Cached); errors.As(err, &now) {
				return nil
			}
		}
		reasons[fault.Public(then.Reason)]++
		return nil
	}
	for _, scope := range affectedScopes(last.Terms, cat.HashTerms()) {
		for place := ""; ; {
			subs, following, err := t.Lists.ListScope(ctx, workspace, scope, place)
			if err != nil {
				return nil, err
			}
			for _, s := range subs {
				if seen[s.ID] {
					continue
				}
				seen[s.ID] = true
				sub, err := t.Subscriptions.Lookup(ctx, workspace, s.Principal, s.ID)
				if sub != nil {
					err = judge(sub)
				}
				if err != nil && !errors.Is(err, subscription.ErrUndecodable) {
					return nil, err
				}
			}
			if place = following; place == "" {
				break
			}
		}
	}
	changes := catalog.Diff(used, cat)
	var out []Ending
	for reason, n := range reasons {
		out = append(out, Ending{workspace, withChanges(reason, changes), n})
	}
	slices.SortFunc(out, func(a, b Ending) int { return cmp.Compare(a.Reason, b.Reason) })
	return out, nil
}

// withChanges adds the breaking changes of an event type, for example that a filter was removed, to a reason that says that the type's
// schema has changed. It returns other reasons unchanged.
func withChanges(reason string, changes []catalog.Change) string {
	var what []string
	for _, c := range changes {
		if c.Breaking && reason == fault.Public(subscription.SchemaChanged(c.Event, "")) {
			what = append(what, c.What)
		}
	}
	if len(what) == 0 {
		return reason
	}
	return fmt.Sprintf("%s (%s)", reason, strings.Join(what, ", "))
}

// hasNoKey reports whether the subscription's principal no longer has a key with the scope to subscribe.
func (t *Terminator) hasNoKey(ctx context.Context, sub *subscription.Subscription) (bool, error) {
	if t.Review.Directory == nil {
		return false, nil
	}
	principals, err := t.Review.Directory.Principals(ctx, sub.Workspace, sub.Principal, refresh.Cached)
	if err != nil {
		return false, fault.Wrap(fault.Unavailable, err, "look up the principal")
	}
	return !slices.ContainsFunc(principals, func(p auth.Principal) bool { return p.Has(auth.ScopeSubscribe) }), nil
}

// EndingsError returns an error that lists the subscriptions that would end, or nil if the list is empty.
func EndingsError(endings []Ending) error {
	if len(endings) == 0 {
		return nil
	}
	total, parts := 0, make([]string, len(endings))
	for i, x := range endings {
		total += x.Subscriptions
		parts[i] = fmt.Sprintf("%d in workspace %s because %s", x.Subscriptions, x.Workspace, x.Reason)
	}
	return fault.New(fault.Invalid, "the changed catalog would end %d live webhook subscriptions: %s; to allow this, pass --allow-breaking", total, strings.Join(parts, ", "))
}

// Each delivery checks whether its subscription may continue, but a subscription without events has no deliveries. So once a minute,
// Recheck looks for workspaces whose catalog has changed since the last recheck. It checks their subscriptions to event types that were
// removed, or whose terms have changed, for example the access rule (see [catalog.Catalog.HashTerms]).
//
// Each change is rechecked twice: immediately, and again after [settleAfter]. In between, other processes may still use the old catalog,
// for up to [settings.MaxAge], and accept subscriptions to a removed event type.

// settleAfter is the time between the first and the second recheck of a changed catalog.
const settleAfter = 20 * time.Second

// Recheck terminates the subscriptions that may not continue after a change of the catalog, and returns their number. It begins with the
// workspaces for which the previous recheck had no time, and continues an interrupted workspace at its position. A workspace
// that fails does not stop the others.
func (t *Terminator) Recheck(ctx context.Context) (ended int, err error) {
	t.rechecking.Lock()
	defer t.rechecking.Unlock()
	workspaces, err := t.Lists.Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	if t.rechecked == nil {
		t.rechecked = map[string]string{}
	}
	if i, found := slices.BinarySearch(workspaces, t.interrupted); found || i > 0 {
		if found {
			i++
		}
		workspaces = slices.Concat(workspaces[i:], workspaces[:i])
	}
	var errs []error
	for _, workspace := range workspaces {
		n, err := t.recheckWorkspace(ctx, workspace)
		ended += n
		if ctx.Err() != nil {
			t.interrupted = workspace
			return ended, ctx.Err()
		}
		errs = append(errs, fault.Wrap(fault.Unavailable, err, "recheck the subscriptions of workspace %s", workspace))
	}
	return ended, errors.Join(errs...)
}

func (t *Terminator) recheckWorkspace(ctx context.Context, workspace string) (ended int, err error) {
	cat, err := t.Review.Catalog.Catalog(ctx, workspace)
	if fault.Is(err, fault.NotFound) {
		return 0, nil // a workspace without a catalog has no events
	}
	if err != nil || t.rechecked[workspace] == cat.Fingerprint() {
		return 0, err
	}
	last, err := t.Lists.RecheckState(ctx, workspace)
	if err != nil {
		return 0, err
	}
	next, now := last, t.now()
	switch {
	case last.Settled == cat.Fingerprint() && last.Seen == "":
		t.rechecked[workspace] = last.Settled
		return 0, nil
	case last.Seen != cat.Fingerprint():
		next.Seen, next.Since = cat.Fingerprint(), subscription.SecondsOf(now)
	case now.Unix()-int64(last.Since) < int64(settleAfter/time.Second):
		return 0, nil
	default:
		next = subscription.RecheckState{Settled: cat.Fingerprint(), Terms: cat.HashTerms()}
	}
	// The field Step identifies a recheck: by the catalog, and by whether it is the first or the second recheck for this catalog. If the
	// stored position has the same Step, this recheck was interrupted at that position, and continues there. Otherwise it begins with the
	// first scope.
	at := subscription.RecheckPosition{Step: next.Settled + next.Seen}
	if last.At.Step == at.Step {
		at = last.At
	}
	for _, scope := range affectedScopes(last.Terms, cat.HashTerms()) {
		if scope < at.Scope {
			continue
		}
		if scope != at.Scope {
			at.Scope, at.After = scope, ""
		}
		n, err := t.recheckScope(ctx, workspace, last, &at)
		if ended += n; err != nil {
			return ended, err
		}
	}
	next.At = subscription.RecheckPosition{}
	return ended, t.Lists.SetRecheckState(ctx, workspace, next)
}

// affectedScopes returns, sorted, the scopes of event types that were removed or whose hash changed. The parameters before and after are
// the results of [catalog.Catalog.HashTerms] for the old and the new catalog.
//
// It also returns the scope of parents, i.e. of patterns for all URIs below one URI, because their subscriptions may get events of these
// types, too.
func affectedScopes(before, after map[string]string) (scopes []string) {
	for name, t := range before {
		if after[name] != t {
			scopes = append(scopes, match.ScopeOf(name))
		}
	}
	if len(scopes) > 0 {
		scopes = append(scopes, match.ScopeOf(""))
	}
	slices.Sort(scopes)
	return scopes
}

// recheckScope checks the subscriptions in the list that at.Scope names, for example all subscriptions to one event type. It terminates the
// subscriptions that are no longer allowed, and returns their number. It begins after the list entry at.After. After each page of the list,
// it stores the position that it has reached, so that an interrupted recheck resumes there.
func (t *Terminator) recheckScope(ctx context.Context, workspace string, last subscription.RecheckState, at *subscription.RecheckPosition) (ended int, err error) {
	var errs []error
	for {
		subs, next, err := t.Lists.ListScope(ctx, workspace, at.Scope, at.After)
		if err != nil {
			return ended, err
		}
		for _, s := range subs {
			terminated, err := t.Terminate(ctx, workspace, s.Principal, s.ID)
			switch {
			case errors.Is(err, subscription.ErrUndecodable):
				t.log().ErrorContext(ctx, "subscription not rechecked", "workspace", workspace, "subscription", s.ID, "error", err)
			case err != nil:
				errs = append(errs, err)
			case terminated:
				ended++
			}
			if ctx.Err() != nil {
				return ended, ctx.Err()
			}
		}
		if err := errors.Join(errs...); err != nil || next == "" {
			return ended, err
		}
		at.After = next
		last.At = *at
		if err := t.Lists.SetRecheckState(ctx, workspace, last); err != nil {
			return ended, err
		}
	}
}

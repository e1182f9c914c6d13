// Package judge decides whether a subscriber receives an event, and explains afterwards why the subscriber did or did not receive it.
//
// Package delivery calls [Decide] before each attempt. [Explainer] finds the outcome of an event for each subscription from the stored
// delivery or the delivery log. If these have no attempt, it calls Decide again.
package judge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
)

// Decision says whether to send an event that the subscriber's filters accept, or why not.
type Decision int

// The decisions.
const (
	Undecided Decision = iota // [Decide] was not called, for example because a filter had rejected the event
	Send
	NotPermitted // the principal has no right to the event
	TypeRemoved  // the event's type is no longer in the catalog, so its access rule is unknown
	Replayed     // the subscription is suspended, and its next refresh replays the event from the log
	Suspended    // the subscription is suspended, and the event joins its backlog
	Paused       // a switch pauses the delivery
)

// Ruling says whether a subscriber receives an event now, or why not. If the decision is [Paused], Switch is the switch that pauses the
// delivery.
type Ruling struct {
	Decision
	Switch switches.Name
}

// Decide decides whether a subscriber, whose filters accept the event, receives it now. The parameter right says which events the
// principal may receive, and set has the switches that pause deliveries. If set is nil, no delivery is [Paused].
func Decide(ctx context.Context, set *switches.Set, right review.Right, sub *subscription.Subscriber, e *event.Event) (Ruling, error) {
	may, err := right.MayReceive(ctx, e)
	switch {
	case errors.Is(err, review.ErrTypeRemoved):
		return Ruling{Decision: TypeRemoved}, nil
	case err != nil:
		return Ruling{}, err
	case !may:
		return Ruling{Decision: NotPermitted}, nil
	case sub.Suspended != 0 && lifecycle.WillBeReplayed(sub, e):
		return Ruling{Decision: Replayed}, nil
	case sub.Suspended != 0:
		return Ruling{Decision: Suspended}, nil
	case set == nil:
		return Ruling{Decision: Send}, nil
	}
	which, err := set.FindPaused(ctx, e.Workspace, e.Name, subscription.OriginOf(sub.Target.URL))
	switch {
	case err != nil:
		return Ruling{}, err
	case which != "":
		return Ruling{Decision: Paused, Switch: which}, nil
	case sub.Paused != 0:
		return Ruling{Decision: Paused, Switch: switches.SubscriptionSwitch(sub.ID)}, nil
	}
	return Ruling{Decision: Send}, nil
}

// explainJudged sets the outcome of an event without a stored delivery from the decision that [Decide] would make now. If the
// subscription was suspended or paused only after the event, explainJudged sets no outcome, because that does not explain why the event
// was not delivered at its time.
func (x *Explainer) explainJudged(ctx context.Context, s *subject, o *Outcome) error {
	switch {
	case o.isEnded():
		o.setEnded()
		return nil
	case s.Lost:
		return nil
	}
	ruling, err := x.judge(ctx, s, o)
	if err != nil || o.Kind != "" {
		return err
	}
	began := s.Published.Add(settling)
	switch ruling.Decision {
	case Suspended, Replayed:
		if o.Subscription.Suspended.Time().Before(began) {
			o.setSuspended()
		}
	case Paused:
		sw, err := x.Switches.Get(ctx, s.Workspace, ruling.Switch)
		if err != nil || sw == nil || sw.At.After(began) {
			return err
		}
		return x.explainPause(ctx, s, o, ruling.Switch)
	}
	return nil
}

// judge finds out whether the subscription would get an event that has no stored delivery. If the subscription does not ask for the
// event, was created after it or may not receive it, judge sets the outcome. Otherwise the caller derives the outcome from the returned
// ruling.
func (x *Explainer) judge(ctx context.Context, s *subject, o *Outcome) (Ruling, error) {
	sub := o.Subscription
	if !sub.Covers(s.URI) {
		o.explainOther(s)
		return Ruling{}, nil
	}
	if sub.Created.After(s.Published) && o.Attempts == 0 {
		o.Kind, o.At, o.Why = kindLater, sub.Created, "it subscribed after the event was published"
		return Ruling{}, nil
	}
	if f := (&match.Payload{Event: s.Event.Event}).FindRejecting(sub.Filters); f != nil {
		o.explainFilter(s, f)
		return Ruling{}, nil
	}
	return x.judgeEvent(ctx, s, o)
}

// judgeEvent calls [Decide] for an event, as package delivery does. If the subscription may not receive the event, judgeEvent sets the
// outcome. Otherwise the caller derives the outcome from the returned ruling.
func (x *Explainer) judgeEvent(ctx context.Context, s *subject, o *Outcome) (Ruling, error) {
	sub := o.Subscription
	right, err := x.Review.CheckSubscription(ctx, sub, refresh.Cached)
	if end, is := errors.AsType[*subscription.Terminated](err); is {
		o.Kind, o.Why = kindEnded, "the subscription ends with the next delivery: "+fault.Public(end.Reason)
		if fault.Is(end.Reason, fault.Forbidden) {
			o.Kind, o.Why = kindNotPermitted, "its principal has no right to these events any more"
		}
		return Ruling{}, nil
	}
	if err != nil {
		return Ruling{}, err
	}
	subscriber := sub.Subscriber()
	ruling, err := Decide(ctx, x.Switches, right, &subscriber, s.Event.Event)
	switch {
	case err != nil:
	case ruling.Decision == NotPermitted:
		o.Kind, o.Why = kindNotPermitted, "its principal has no right to this event"
	case ruling.Decision == TypeRemoved:
		o.Kind, o.Why = kindEnded, "the catalog no longer has the event type "+s.Name
	}
	return ruling, err
}

// explainFilter sets the outcome of an event that the subscription's filter f rejects, with the values that the filter accepts and the
// event's value.
func (o *Outcome) explainFilter(s *subject, f *match.Filter) {
	o.Kind, o.Argument, o.Got = kindFiltered, f.Pointer, match.ValueAt(s.Data, f.Pointer)
	o.Wanted, _ = json.Marshal(f.Values)
	if s.entry != nil {
		for name, pointer := range s.entry.Filters {
			if value := o.argument(name); pointer == f.Pointer && value != nil {
				o.Argument, o.Wanted = name, value
			}
		}
	}
	o.Why = o.compare()
}

// explainOther sets the outcome of an event whose type or URI the subscription does not ask for.
func (o *Outcome) explainOther(s *subject) {
	o.Kind = kindFiltered
	if o.Subscription.Name != "" && o.Subscription.Name != s.Name {
		o.Argument, o.Wanted, o.Got = "name", quote(o.Subscription.Name), quote(s.Name)
		o.Why = o.compare()
		return
	}
	if s.entry != nil {
		values, _ := s.entry.Bind(s.URI)
		for _, name := range slices.Sorted(maps.Keys(values)) {
			if wanted := o.argument(name); wanted != nil && string(wanted) != string(quote(values[name])) {
				o.Argument, o.Wanted, o.Got = name, wanted, quote(values[name])
				o.Why = o.compare()
				return
			}
		}
	}
	uris, _ := json.Marshal(o.Subscription.EventURIs)
	o.Argument, o.Wanted, o.Got = "uri", uris, quote(s.URI)
	o.Why = o.compare()
}

// argument returns the value of the argument with this name in the subscription, or nil if the subscription does not set the argument.
func (o *Outcome) argument(name string) json.RawMessage {
	var all map[string]json.RawMessage
	_ = json.Unmarshal(o.Subscription.Arguments, &all) // fails only for a SEP-1803 subscription, which has no arguments
	return all[name]
}

func (o *Outcome) compare() string {
	has := "lacks it"
	if o.Got != nil {
		has = fmt.Sprintf("has %.200s", o.Got)
	}
	return fmt.Sprintf("the subscription asks for %s %.200s, and the event %s", o.Argument, o.Wanted, has)
}

func quote(text string) json.RawMessage {
	b, _ := json.Marshal(text)
	return b
}

// explainMissing sets the outcome of an event that should have been sent, but has no stored delivery and no record in the delivery log.
func (x *Explainer) explainMissing(s *subject, o *Outcome) {
	recent := !s.Lost && time.Since(s.Published) < settling
	switch {
	case x.Kept == records.All && recent:
		o.setWaiting(time.Time{})
		return
	case s.Lost:
		o.Why = "the log no longer has the event, and the delivery log has no attempt"
	case x.Kept == records.All:
		o.Why = "the delivery log has no attempt, although the subscription accepts the event now"
	case recent:
		o.Why = "no attempt has failed: the event was delivered, or waits for its first attempt"
	case x.Kept == records.Failures:
		o.Why = "no attempt has failed, and the delivery log keeps no successes (--delivery-log failures)"
	default:
		o.Why = "the delivery log keeps nothing (--delivery-log none)"
	}
	o.Kind = kindUnrecorded
}

func formatAttempts(n int) string {
	if n == 1 {
		return "1 attempt"
	}
	return fmt.Sprintf("%d attempts", n)
}

// failures has a description for each category of failures without an HTTP status.
var failures = map[webhook.Category]string{
	webhook.ConnectionRefused: "the endpoint refused or closed the connection",
	webhook.Timeout:           "the endpoint did not answer in time",
	webhook.TLSError:          "the certificate or TLS of the endpoint was not accepted",
	webhook.DNSError:          "the host name of the endpoint was not found",
	webhook.Blocked:           "the address of the endpoint is not allowed",
}

func describeFailure(category string, status int) string {
	if status/100 == 3 {
		return fmt.Sprintf("the endpoint answered %d, and redirects are not followed", status)
	}
	if status != 0 {
		return fmt.Sprintf("the endpoint answered %d", status)
	}
	return cmp.Or(failures[webhook.Category(category)], "the attempt failed: "+category)
}

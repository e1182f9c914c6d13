package admin

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// subscriptionView is a subscription as the API shows it. It leaves out the webhook secret and the query of the target's URL, which often
// contains a secret of the endpoint.
type subscriptionView struct {
	ID        string    `json:"id"`
	URI       string    `json:"uri"`
	Principal string    `json:"principal"`
	Protocol  string    `json:"protocol"`
	State     string    `json:"state"`
	Reason    string    `json:"reason,omitempty"`
	Events    []string  `json:"events"`
	EventURIs []string  `json:"eventUris"`
	Target    string    `json:"target"`
	Origin    string    `json:"origin"`
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires,omitzero"`
	Paused    time.Time `json:"paused,omitzero"`
	// Arguments are the arguments of events/subscribe, which are the variables of the event type and the filters.
	Arguments json.RawMessage `json:"arguments,omitempty"`
	// Switch says who paused the subscription and why. Only the response for a single subscription has Switch and Waiting.
	Switch   *switches.Switch `json:"switch,omitempty"`
	Waiting  *waitingView     `json:"waiting,omitempty"`
	Delivery struct {
		Last      time.Time `json:"last,omitzero"`
		LastError string    `json:"lastError,omitempty"`
		// LastStatusCode is the HTTP status of the last failed attempt. Only operators see it (SRF-05).
		LastStatusCode int       `json:"lastStatusCode,omitempty"`
		FailingSince   time.Time `json:"failingSince,omitzero"`
		ThrottledUntil time.Time `json:"throttledUntil,omitzero"`
	} `json:"delivery"`
}

type waitingView struct {
	Deliveries int       `json:"deliveries"`
	More       bool      `json:"more,omitempty"`
	Oldest     time.Time `json:"oldest,omitzero"`
}

func (c *call) viewFor(s subscription.Selected) subscriptionView {
	v := viewOf(s)
	if c.operator {
		v.Delivery.LastStatusCode = s.Status.LastCode
	}
	return v
}

func viewOf(s subscription.Selected) subscriptionView {
	v := subscriptionView{
		ID: s.ID, URI: subscription.URI(s.ID), Principal: s.Principal, Protocol: string(s.Subscription.Origin), State: string(s.EffectiveState()),
		Reason: s.Reason, Events: []string{}, EventURIs: s.EventURIs, Target: withoutQuery(s.Target.URL), Origin: subscription.OriginOf(s.Target.URL),
		Created: s.Created, Expires: s.Until, Paused: s.PausedSince(), Arguments: s.Arguments,
	}
	for _, p := range s.Patterns {
		if p.Entry != "" {
			v.Events = append(v.Events, p.Entry)
		}
	}
	if v.EventURIs == nil {
		v.EventURIs = []string{}
	}
	v.Delivery.Last, v.Delivery.LastError = s.Status.LastDelivery, s.Status.LastError
	v.Delivery.FailingSince, v.Delivery.ThrottledUntil = s.Status.FailedSince, s.Status.ThrottledUntil
	return v
}

func withoutQuery(target string) string {
	target, _, _ = strings.Cut(target, "?")
	return target
}

type subscriptionHandlers struct {
	visible    visible
	catalogs   catalog.Source
	operations *deadletter.Operations
	switches   *switches.Set
}

func (h *subscriptionHandlers) list(c *call) (any, error) {
	choice := subscription.Choice{Principal: c.Principal, Event: c.Event, Origin: c.Origin, URI: c.URI, State: subscription.State(c.State)}
	if !c.operator {
		if choice.Principal != "" && choice.Principal != c.principal.ID {
			return newList(c, nil, "", c.viewFor), nil
		}
		choice.Principal = c.principal.ID
	}
	found, next, err := h.choose(c, choice)
	if err != nil {
		return nil, err
	}
	return newList(c, found, next, c.viewFor), nil
}

// choose returns a page of the subscriptions that match all criteria in the parameter choice. If one criterion is a URI that belongs to
// no event type, the page is empty.
//
// If the URI is the only criterion, choose need not search all subscriptions. It reads only the subscriptions to the URI's event type and
// to parents of the URI.
func (h *subscriptionHandlers) choose(c *call, choice subscription.Choice) ([]subscription.Selected, string, error) {
	ctx, workspace := c.Context(), c.principal.Workspace
	if choice.URI == "" {
		return h.visible.lists.Select(ctx, workspace, choice, c.After, c.Limit)
	}
	cat, err := h.catalogs.Catalog(ctx, workspace)
	if err != nil {
		return nil, "", err
	}
	entry, _, ok := cat.Match(choice.URI)
	switch {
	case !ok:
		return nil, "", nil
	case choice != subscription.Choice{URI: choice.URI}:
		return h.visible.lists.Select(ctx, workspace, choice, c.After, c.Limit)
	}
	return h.visible.lists.SelectCovering(ctx, workspace, entry.Name, choice.URI, c.After, c.Limit)
}

func (h *subscriptionHandlers) read(c *call) (any, error) {
	s, err := h.find(c)
	if err != nil {
		return nil, err
	}
	v := c.viewFor(*s)
	if s.Paused != 0 { // a switch without a paused subscription is left over from an ended one with the same id
		if v.Switch, err = h.switches.Get(c.Context(), c.principal.Workspace, switches.SubscriptionSwitch(s.ID)); err != nil {
			return nil, err
		}
	}
	if v.Switch != nil && v.Switch.Operator && !c.operator {
		v.Switch.By = "an operator" // owners do not see operators' names
	}
	waiting, err := state.ReadBacklog(c.Context(), h.operations.Deliveries.DB, c.principal.Workspace, s.ID)
	if err != nil {
		return nil, err
	}
	v.Waiting = &waitingView{waiting.Count, waiting.More, waiting.Oldest.UTC()}
	return v, nil
}

// auditView returns the form of a subscription that the audit trail stores. It has no arguments, because these may contain personal data.
func auditView(s subscription.Selected) subscriptionView {
	v := viewOf(s)
	v.Arguments = nil
	return v
}

func (h *subscriptionHandlers) find(c *call) (*subscription.Selected, error) {
	return h.visible.find(c, c.PathValue("id"))
}

func (h *subscriptionHandlers) end(c *call) (any, error) {
	s, err := h.find(c)
	if err != nil {
		return nil, err
	}
	err = c.change("subscription.end", s.ID, auditView(*s), nil, func() error {
		return h.visible.subscriptions.End(c.Context(), c.principal.Workspace, s.Principal, s.ID)
	})
	return noContent, err
}

type reasonBody struct {
	Reason string `json:"reason"`
	// State is the wanted state in a request that sets a switch. Its only value is "paused".
	State string `json:"state"`
}

// maxReason is the maximum length of a reason, in characters, as in openapi.json. The audit trail keeps reasons for 400 days.
const maxReason = 500

func (c *call) readReason() (in reasonBody, err error) {
	if err := c.readBody(&in); err != nil {
		return in, err
	}
	if n := utf8.RuneCountInString(in.Reason); n > maxReason {
		return in, fault.New(fault.Invalid, "reason has %d characters (allowed: up to %d)", n, maxReason)
	}
	return in, nil
}

func (h *subscriptionHandlers) pause(c *call) (any, error) {
	in, err := c.readReason()
	if err != nil {
		return nil, err
	}
	return h.update(c, func(s *subscription.Selected) error { return h.setPaused(c, s, in.Reason, true) })
}

// resume resumes a paused subscription and enables a disabled one. Then it reactivates the deliveries that were suspended while the
// subscription was disabled. If the request is interrupted before it has reactivated them, the caller can repeat the request.
func (h *subscriptionHandlers) resume(c *call) (any, error) {
	return h.update(c, func(s *subscription.Selected) error {
		if s.State != subscription.Disabled {
			if err := h.setPaused(c, s, "", false); err != nil || s.State != subscription.Active {
				return err
			}
			return h.operations.Reactivate(c.Context(), s.Subscription)
		}
		if s.Reason == subscription.ReasonGone && !c.operator {
			return fault.New(fault.Conflict, "the endpoint answered 410 Gone, so only an operator can resume the subscription; register it again instead")
		}
		if _, err := h.readSwitch(c, s); err != nil {
			return err
		}
		err := c.change("subscription.resume", s.ID, auditView(*s), nil, func() error {
			if _, err := h.visible.subscriptions.Enable(c.Context(), c.principal.Workspace, s.Principal, s.ID); err != nil {
				return err
			}
			return h.operations.Reactivate(c.Context(), s.Subscription)
		})
		if err != nil {
			return err
		}
		return h.setPaused(c, s, "", false) // the subscription may have been paused before it was disabled
	})
}

func (h *subscriptionHandlers) update(c *call, do func(*subscription.Selected) error) (any, error) {
	s, err := h.find(c)
	if err != nil {
		return nil, err
	}
	if err := do(s); err != nil {
		return nil, err
	}
	return h.read(c)
}

// setPaused pauses or resumes a subscription. It also sets or removes the switch that says who paused the subscription. It cannot resume
// a subscription that is suspended and not paused, because only the subscriber can reactivate it. In this case it returns an error.
//
// If the subscription is already in the wanted state, setPaused can still change the switch. A new reason replaces the old one. An
// operator's pause replaces the owner's, so that the owner cannot end the pause.
func (h *subscriptionHandlers) setPaused(c *call, s *subscription.Selected, reason string, pause bool) error {
	name := switches.SubscriptionSwitch(s.ID)
	before, err := h.readSwitch(c, s)
	if err != nil {
		return err
	}
	if (before != nil) == pause && (s.Paused != 0) == pause {
		if !pause && s.State == subscription.Suspended {
			return fault.New(fault.Conflict, "the subscription is suspended, because %s: fix its endpoint; it continues when its subscriber refreshes it (events/subscribe), and cannot be resumed otherwise", s.Reason)
		}
		if !pause || reason == "" && before.Operator == c.operator {
			return nil
		}
	}
	if !pause {
		return c.change("subscription.resume", s.ID, before, nil, func() error {
			changed, err := h.visible.subscriptions.SetPaused(c.Context(), c.principal.Workspace, s.Principal, s.ID, false, h.switches.ResumeOps(c.principal.Workspace, name)...)
			if err == nil && !changed { // the subscription was not paused, so SetPaused has not removed the switch
				_, err = h.switches.Resume(c.Context(), c.principal.Workspace, name)
			}
			if err != nil {
				return err
			}
			return requeue(c, h.switches, name)
		})
	}
	after := newSwitch(c, name, reason)
	after.Owner = s.Principal
	return c.change("subscription.pause", s.ID, before, after, func() error {
		changed, err := h.visible.subscriptions.SetPaused(c.Context(), c.principal.Workspace, s.Principal, s.ID, true, h.switches.PauseOps(c.principal.Workspace, after)...)
		if err == nil && !changed {
			err = h.switches.Pause(c.Context(), c.principal.Workspace, after)
		}
		return err
	})
}

// readSwitch returns the switch that pauses the subscription, or nil if there is no such switch. An owner gets an error if an
// operator has paused the subscription, because only an operator can resume it then.
func (h *subscriptionHandlers) readSwitch(c *call, s *subscription.Selected) (*switches.Switch, error) {
	sw, err := h.switches.Get(c.Context(), c.principal.Workspace, switches.SubscriptionSwitch(s.ID))
	// If the subscription is not paused, the switch belongs to an earlier subscription with the same id, which has ended.
	if err == nil && sw != nil && sw.Operator && !c.operator && s.Paused != 0 {
		return nil, fault.New(fault.Forbidden, "an operator paused this subscription, and can resume it")
	}
	return sw, err
}

func (h *subscriptionHandlers) test(c *call) (any, error) {
	s, err := h.find(c)
	if err != nil {
		return nil, err
	}
	if s.State == subscription.Disabled {
		return nil, fault.New(fault.Conflict, "the subscription has ended")
	}
	var event string
	err = c.change("subscription.test", s.ID, nil, nil, func() error {
		event, err = h.operations.SendTest(c.Context(), s.Subscription)
		return err
	})
	return answerAccepted(map[string]string{"event": event}), err
}

var noContent = httpjson.Answer{Status: http.StatusNoContent}

// visible finds the subscriptions that a caller may see. An operator sees all subscriptions of the workspace, and an owner their own.
type visible struct {
	subscriptions *subscription.Service
	lists         *subscription.Lists
}

// find returns a subscription. If the caller may not see it, the error is NotFound.
func (v visible) find(c *call, id string) (*subscription.Selected, error) {
	s, err := v.subscriptions.Find(c.Context(), c.principal.Workspace, id)
	if err != nil {
		return nil, err
	}
	if s == nil || !c.operator && s.Principal != c.principal.ID {
		return nil, fault.New(fault.NotFound, "there is no such subscription")
	}
	return s, nil
}

// maxOwn is the number of subscriptions up to which an owner may list the deliveries or dead letters of all of them in one request. An
// owner with more subscriptions must name one.
const maxOwn = 100

// checkOwned checks that the caller may list the deliveries of the subscription with the given id. If the caller is an owner and the id
// is empty, the result own has the ids of all the owner's subscriptions. Otherwise own is nil.
//
// Operators may also list the deliveries of a subscription that has ended, unless mustExist is true.
func (v visible) checkOwned(c *call, id string, mustExist bool) (own []string, err error) {
	switch {
	case c.operator && !mustExist:
		return nil, nil
	case id != "":
		_, err := v.find(c, id)
		return nil, err
	}
	found, next, err := v.lists.Select(c.Context(), c.principal.Workspace, subscription.Choice{Principal: c.principal.ID}, "", maxOwn)
	if err == nil && next != "" {
		err = fault.New(fault.Invalid, "you have more than %d subscriptions: name one", maxOwn)
	}
	own = []string{}
	for _, s := range found {
		own = append(own, s.ID)
	}
	return own, err
}

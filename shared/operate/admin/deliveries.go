package admin

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/records"
	"github.com/mcp-events/mcpevents/shared/events/delivery/state"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

func answerAccepted(body any) httpjson.Answer {
	return httpjson.Answer{Status: http.StatusAccepted, Body: body}
}

type attemptView struct {
	Subscription string `json:"subscription"`
	Event        string `json:"event"`
	URI          string `json:"uri,omitempty"`
	Name         string `json:"name,omitempty"`
	Origin       string `json:"origin,omitempty"`
	// Target is the URL of the subscription's webhook endpoint, without its query. It is absent if the subscription has ended.
	Target     string    `json:"target,omitempty"`
	Attempt    int       `json:"attempt"`
	At         time.Time `json:"at"`
	DurationMS int64     `json:"durationMs"`
	Outcome    string    `json:"outcome"`
	// Status is the class of the endpoint's HTTP status, for example "5xx".
	Status string `json:"status,omitempty"`
	// StatusCode is the endpoint's exact HTTP status. Only operators see it, because owners choose the endpoint's URL and could explore
	// our network by exact statuses (SRF-05).
	StatusCode int `json:"statusCode,omitempty"`
	// Response is the beginning of the endpoint's response to a failed attempt. Only operators see it.
	Response    string    `json:"response,omitempty"`
	Category    string    `json:"category,omitempty"`
	NextAttempt time.Time `json:"nextAttempt,omitzero"`
	Test        bool      `json:"test,omitempty"`
}

func (c *call) viewOfAttempt(r records.Record) attemptView {
	v := attemptView{
		Subscription: r.Subscription, Event: r.Event, URI: r.URI, Name: r.Name, Origin: r.Origin, Attempt: r.Attempt, At: r.At.UTC(),
		DurationMS: r.TookMS, Outcome: r.Outcome(), Status: statusClass(r.Status), StatusCode: c.statusCode(r.Status), Category: r.Category,
		NextAttempt: r.Next, Test: r.Test,
	}
	if c.operator {
		v.Response = r.Response
	}
	return v
}

func (c *call) statusCode(status int) int {
	if !c.operator {
		return 0
	}
	return status
}

func statusClass(status int) string {
	if status == 0 {
		return ""
	}
	return fmt.Sprintf("%dxx", status/100)
}

type deliveryList struct {
	list[attemptView]
	kept
	// Omitted is the number of attempts that this page leaves out. Attempts are left out only if very many happened within a short time,
	// and never from the list of a single subscription.
	Omitted int64 `json:"omitted"`
}

type attemptHandler struct {
	visible visible
	db      store.DB
	kept    records.Keep
}

func (h *attemptHandler) list(c *call) (any, error) {
	id := cmp.Or(c.PathValue("id"), c.Subscription)
	query := records.Query{
		Subscription: id, Event: c.Event, Origin: c.Origin, Outcome: c.Outcome, Span: records.Span{Since: c.Since, Until: c.Until},
	}
	own, err := h.visible.checkOwned(c, id, c.PathValue("id") != "")
	if err != nil {
		return nil, err
	}
	found, next, err := records.ListOf(c.Context(), h.db, c.principal.Workspace, own, query, c.After, c.Limit)
	if err != nil {
		return nil, err
	}
	out := deliveryList{list: newList(c, found, next, c.viewOfAttempt), kept: keptOf(h.kept, state.KeptFor)}
	for _, r := range found {
		out.Omitted += r.Omitted
	}
	return out, h.visible.addTargets(c, found, out.Items)
}

func (v visible) addTargets(c *call, found []records.Record, views []attemptView) error {
	targets, err := targetsOf(c, v, found, func(r records.Record) subscription.Owned {
		return subscription.Owned{ID: r.Subscription, Principal: r.Principal}
	})
	for i := range views {
		views[i].Target = targets[views[i].Subscription]
	}
	return err
}

// targetsOf returns the URLs of webhook endpoints, without queries, by the id of their subscription. It leaves out subscriptions that
// have ended.
func targetsOf[T any](c *call, v visible, found []T, owned func(T) subscription.Owned) (map[string]string, error) {
	var subs []subscription.Owned
	for _, one := range found {
		if owner := owned(one); owner.ID != "" && owner.Principal != "" && !slices.Contains(subs, owner) {
			subs = append(subs, owner)
		}
	}
	if len(subs) == 0 {
		return nil, nil
	}
	targets, err := v.lists.TargetURLs(c.Context(), c.principal.Workspace, subs)
	for id, url := range targets {
		targets[id] = withoutQuery(url)
	}
	return targets, err
}

type letterView struct {
	ID           string    `json:"id"`
	Queue        string    `json:"queue"`
	Reason       string    `json:"reason"`
	Subscription string    `json:"subscription,omitempty"`
	Principal    string    `json:"principal,omitempty"`
	Event        string    `json:"event,omitempty"`
	URI          string    `json:"uri,omitempty"`
	Name         string    `json:"name,omitempty"`
	Origin       string    `json:"origin,omitempty"`
	Target       string    `json:"target,omitempty"`
	First        time.Time `json:"first"`
	Dead         time.Time `json:"dead"`
	Test         bool      `json:"test,omitempty"`
	// StatusCode is the HTTP status of the last attempt. Only operators see it.
	StatusCode int         `json:"statusCode,omitempty"`
	Attempts   []letterTry `json:"attempts"`
	// Attributes are the attributes of a queue message that could not be handled.
	Attributes map[string]string `json:"attributes,omitempty"`
}

type letterTry struct {
	Attempt    int       `json:"attempt"`
	At         time.Time `json:"at"`
	DurationMS int64     `json:"durationMs"`
	Status     string    `json:"status,omitempty"`
	StatusCode int       `json:"statusCode,omitempty"`
	Category   string    `json:"category"`
}

func (c *call) viewOfLetter(l deadletter.Letter) letterView {
	v := letterView{
		ID: l.ID, Queue: l.Queue, Reason: l.Reason, Subscription: l.Subscription, Principal: l.Principal, Event: l.Event, URI: l.URI,
		Name: l.Name, Origin: l.Origin, First: l.First.UTC(), Dead: l.Dead, Test: l.Test, Attempts: []letterTry{}, Attributes: l.Attributes,
	}
	for i, a := range l.Attempts {
		v.Attempts = append(v.Attempts, letterTry{
			Attempt: i + 1, At: a.At.UTC(), DurationMS: a.TookMS, Status: statusClass(a.Status), StatusCode: c.statusCode(a.Status),
			Category: a.Category,
		})
		v.StatusCode = c.statusCode(a.Status)
	}
	return v
}

type letterHandlers struct {
	visible    visible
	operations *deadletter.Operations
}

func (h *letterHandlers) list(c *call) (any, error) {
	query := deadletter.LetterQuery{
		Subscription: c.Subscription, Origin: c.Origin, Event: c.Event, Queue: c.Queue, Span: records.Span{Since: c.Since, Until: c.Until},
	}
	own, err := h.visible.checkOwned(c, query.Subscription, false)
	if err != nil {
		return nil, err
	}
	letters, next, err := h.operations.MergeLetters(c.Context(), c.principal.Workspace, own, query, c.After, c.Limit)
	if err != nil {
		return nil, err
	}
	views, err := h.views(c, letters...)
	return newList(c, views, next, asIs), err
}

func (h *letterHandlers) views(c *call, letters ...deadletter.Letter) ([]letterView, error) {
	targets, err := targetsOf(c, h.visible, letters, func(l deadletter.Letter) subscription.Owned {
		return subscription.Owned{ID: l.Subscription, Principal: l.Principal}
	})
	views := make([]letterView, len(letters))
	for i, l := range letters {
		views[i] = c.viewOfLetter(l)
		views[i].Target = targets[l.Subscription]
	}
	return views, err
}

var errNoLetter = fault.New(fault.NotFound, "there is no such dead letter")

func (h *letterHandlers) read(c *call) (any, error) {
	l, err := h.find(c)
	if err != nil {
		return nil, err
	}
	views, err := h.views(c, *l)
	if err != nil {
		return nil, err
	}
	return views[0], nil
}

func (h *letterHandlers) find(c *call) (*deadletter.Letter, error) {
	l, err := h.operations.FindLetter(c.Context(), c.principal.Workspace, c.PathValue("id"))
	if err == nil && (l == nil || !c.operator && l.Principal != c.principal.ID) {
		err = errNoLetter
	}
	return l, err
}

func (h *letterHandlers) retry(c *call) (any, error) {
	letter, err := h.find(c)
	if err != nil {
		return nil, err
	}
	var sub *subscription.Subscription
	answer := map[string]string{"queue": letter.Queue}
	if letter.Queue == deadletter.WebhookQueue {
		s, err := h.visible.find(c, letter.Subscription)
		if fault.Is(err, fault.NotFound) {
			return nil, fault.New(fault.Conflict, "the subscription of the dead letter has ended")
		}
		if err != nil {
			return nil, err
		}
		sub, answer = s.Subscription, map[string]string{"event": letter.Event, "subscription": letter.Subscription}
	}
	err = c.change("dead-letter.retry", letter.ID, c.viewOfLetter(*letter), nil, func() error {
		done, err := h.operations.Retry(c.Context(), c.principal.Workspace, *letter, sub, 0)
		if err == nil && !done {
			return errNoLetter // another request has already retried the dead letter
		}
		return err
	})
	return answerAccepted(answer), err
}

type replayView struct {
	ID       string                  `json:"id"`
	State    string                  `json:"state"`
	Select   deadletter.ReplaySelect `json:"select"`
	Rate     int                     `json:"rate"`
	By       string                  `json:"by"`
	Created  time.Time               `json:"created"`
	Finished time.Time               `json:"finished,omitzero"`
	Total    int                     `json:"total"`
	Replayed int                     `json:"replayed"`
	Skipped  int                     `json:"skipped"`
	Because  map[string]int          `json:"skippedBecause,omitempty"`
}

func viewOfReplay(r deadletter.Replay) replayView {
	return replayView{
		ID: r.ID, State: string(r.State), Select: r.Select, Rate: r.Rate, By: r.By, Created: r.Created, Finished: r.Finished,
		Total: r.Total, Replayed: r.Replayed, Skipped: r.Skipped, Because: r.Because,
	}
}

type replayHandlers struct {
	visible visible
	replays *deadletter.Replays
}

func (h *replayHandlers) start(c *call) (any, error) {
	in := struct {
		Select *deadletter.ReplaySelect `json:"select"`
		DryRun bool                     `json:"dryRun"`
		Rate   int                      `json:"rate"`
	}{Rate: deadletter.DefaultReplayRate}
	if err := c.readBody(&in); err != nil {
		return nil, err
	}
	switch {
	case in.Select == nil:
		return nil, fault.New(fault.Invalid, "select is missing; {} selects all dead letters")
	case in.Rate < 1 || in.Rate > deadletter.MaxReplayRate:
		return nil, fault.New(fault.Invalid, "rate is %d (allowed: 1 to %d)", in.Rate, deadletter.MaxReplayRate)
	case in.Select.Events && (in.Select.Subscription == "" || in.Select.Since.IsZero() || in.Select.Origin+in.Select.Event+in.Select.Queue != ""):
		return nil, fault.New(fault.Invalid, "a replay of events is selected by subscription and since (optional: until)")
	case in.Select.Queue != "" && in.Select.Queue != deadletter.WebhookQueue && !deadletter.CanReturn(queue.Name(in.Select.Queue)):
		return nil, fault.New(fault.Invalid, "dead letters of the queue %.100q cannot be replayed (allowed: %s, inbox, events, deliveries, slow)", in.Select.Queue, deadletter.WebhookQueue)
	}
	if err := checkOrder(in.Select.Since, in.Select.Until); err != nil {
		return nil, err
	}
	if in.Select.Origin != "" {
		origin, err := readOrigin(in.Select.Origin)
		if err != nil {
			return nil, err
		}
		in.Select.Origin = origin
	}
	target, sub := "dead-letters", (*subscription.Subscription)(nil)
	if in.Select.Events {
		found, err := h.visible.find(c, in.Select.Subscription)
		if err != nil {
			return nil, err
		}
		target, sub = "events", found.Subscription
	}
	if in.DryRun {
		n, more, err := h.replays.CountSelected(c.Context(), c.principal.Workspace, sub, *in.Select)
		return struct {
			Count int  `json:"count"`
			More  bool `json:"more,omitempty"`
		}{n, more}, err
	}
	var replay *deadletter.Replay
	err := c.change("replay.start", target, nil, in, func() (err error) {
		if replay, err = h.replays.Start(c.Context(), c.principal.Workspace, c.principal.ID, sub, *in.Select, in.Rate); err != nil {
			return err
		}
		replay, err = h.replays.Begin(c.Context(), replay)
		return err
	})
	if err != nil {
		return nil, err
	}
	return answerAccepted(viewOfReplay(*replay)), nil
}

func (h *replayHandlers) find(c *call) (*deadletter.Replay, error) {
	r, err := h.replays.Find(c.Context(), c.principal.Workspace, c.PathValue("id"))
	if err == nil && r == nil {
		err = fault.New(fault.NotFound, "there is no such replay")
	}
	return r, err
}

func (h *replayHandlers) cancel(c *call) (any, error) {
	r, err := h.find(c)
	if err != nil {
		return nil, err
	}
	if r.State != deadletter.ReplayRunning {
		return viewOfReplay(*r), nil
	}
	err = c.change("replay.cancel", r.ID, viewOfReplay(*r), nil, func() (err error) {
		r, err = h.replays.Cancel(c.Context(), c.principal.Workspace, r.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	return viewOfReplay(*r), nil
}

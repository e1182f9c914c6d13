package admin

import (
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

// replayView is a replay as the API shows it.
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

// replayHandlers start, show and cancel replays.
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
	in.Select.Origin = subscription.SameOrigin(in.Select.Origin)
	target, sub := "dead-letters", (*subscription.Subscription)(nil)
	if in.Select.Events {
		found, err := h.visible.find(c, in.Select.Subscription)
		if err != nil {
			return nil, err
		}
		target, sub = "events", found.Subscription
	}
	if in.DryRun {
		n, more, err := h.replays.Count(c.Context(), c.who.Workspace, sub, *in.Select)
		return struct {
			Count int  `json:"count"`
			More  bool `json:"more,omitempty"`
		}{n, more}, err
	}
	var replay *deadletter.Replay
	err := c.change("replay.start", target, nil, in, func() (err error) {
		if replay, err = h.replays.Start(c.Context(), c.who.Workspace, c.who.ID, sub, *in.Select, in.Rate); err != nil {
			return err
		}
		replay, err = h.replays.Begin(c.Context(), replay)
		return err
	})
	if err != nil {
		return nil, err
	}
	return accepted(viewOfReplay(*replay)), nil
}

// find returns the replay in the path.
func (h *replayHandlers) find(c *call) (*deadletter.Replay, error) {
	r, err := h.replays.Find(c.Context(), c.who.Workspace, c.PathValue("id"))
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
		r, err = h.replays.Cancel(c.Context(), c.who.Workspace, r.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	return viewOfReplay(*r), nil
}

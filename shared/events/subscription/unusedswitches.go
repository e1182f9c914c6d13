package subscription

import (
	"context"
	"errors"

	"github.com/mcp-events/mcpevents/shared/events/switches"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// SweepSwitches removes the switches of subscriptions that have ended or were made again without a pause, and returns their
// number. An operator's switch stays for [EndedKept] after the end, so that it pauses the subscription again if its owner
// subscribes with the same parameters. SweepSwitches also removes the notes about origins that are healthy again. It runs in the
// first minute of each hour, because reading all switches every minute would cost too much. The next hour repeats a missed run.
func (s *Sweeper) SweepSwitches(ctx context.Context) (removed int, err error) {
	if s.Switches == nil || s.Service.Records.now().Minute() != 0 {
		return 0, nil
	}
	lists := &Lists{DB: s.Service.Records.DB}
	workspaces, err := lists.Workspaces(ctx)
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, workspace := range workspaces {
		n, err := s.Switches.RemoveUnused(ctx, workspace, func(id string, sw switches.Switch) (bool, error) {
			return s.isPaused(ctx, workspace, id, sw)
		})
		notes, err2 := s.Switches.RemoveNotes(ctx, workspace, func(origin string) (bool, error) {
			failing, err := lists.isFailing(ctx, workspace, origin)
			return !failing, err
		})
		removed += n + notes
		errs = append(errs, err, err2)
	}
	return removed, errors.Join(errs...)
}

// isFailing reports whether the last attempt at any subscription's endpoint at an origin failed.
func (l *Lists) isFailing(ctx context.Context, workspace, origin string) (bool, error) {
	for after := ""; ; {
		subs, next, err := l.Select(ctx, workspace, Choice{Origin: origin}, after, MaxSelected)
		if err != nil {
			return false, err
		}
		for _, s := range subs {
			if !s.Status.FailedSince.IsZero() {
				return true, nil
			}
		}
		if after = next; after == "" {
			return false, nil
		}
	}
}

// isPaused reports whether a switch pauses a subscription, or will pause it again.
func (s *Sweeper) isPaused(ctx context.Context, workspace, id string, sw switches.Switch) (bool, error) {
	r := &s.Service.Records
	record := recordKey(workspace, sw.Owner, id)
	if sw.Owner == "" { // the previous version did not store it
		record = indexKey(workspace, id)
	}
	items, err := r.DB.Get(ctx, record, endedKey(workspace, sw.Owner, id))
	switch {
	case err != nil:
		return false, fault.Wrap(fault.Unavailable, err, "read a paused subscription")
	case items[0] == nil && sw.Owner == "":
		return sw.Operator && r.now().Sub(sw.At) < EndedKept, nil
	case items[0] == nil:
		return sw.Operator && items[1] != nil, nil
	case sw.Owner == "":
		return true, nil
	}
	sub, err := decodeRecord(items[0])
	return err != nil || sub.Paused != 0, nil // the expiry job dead-letters a record that cannot be decoded
}

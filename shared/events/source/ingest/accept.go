package ingest

import (
	"cmp"
	"context"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// accept makes an event of a request's document and returns when the event is durable. It puts whatever is known of
// the event into o, even if the event is refused.
func (in *Intake) accept(ctx context.Context, s source.Source, doc any, who identity, now time.Time, o *Outcome) ([]publish.Accepted, error) {
	event, err := s.Map(doc)
	if err != nil || event == nil {
		o.Kind = Unmatched
		o.ID = idOf(err)
		return []publish.Accepted{}, err
	}
	if event.ID == "" {
		event.ID = who.body
	}
	o.Name, o.ID = event.Name, event.ID
	input, _, err := in.toInput(ctx, s, event)
	if err != nil {
		return nil, err
	}
	o.URI = input.URI
	keys := who.acceptedKeys(s, event.ID)
	last := len(keys) - 1
	end, err := in.Seen.begin(ctx, now, keys[last], input)
	if err != nil {
		return nil, err
	}
	added := false
	if end != nil {
		defer func() { end(added) }()
	}
	all, err := in.Seen.Known(ctx, now, keys)
	if err != nil {
		return nil, err
	}
	if known := cmp.Or(all...); known != nil {
		o.Kind, o.ID = Duplicate, known.ID
		if added = all[last] == nil; added { // a replay may carry another id, so remember what was signed only if it is new, and not the id, which the replay may have made up
			in.remember(ctx, s, now, keys[last:], *known)
		}
		return []publish.Accepted{*known}, nil
	}
	if end == nil {
		return nil, fault.New(fault.Unavailable, "the same request is being accepted under another id; try again")
	}
	accepted, err := in.Publisher.Accept(ctx, Principal(s), []publish.Input{input})
	if err != nil {
		return nil, unfit(err)
	}
	o.Kind, o.ID, added = Accepted, accepted[0].ID, true
	in.remember(ctx, s, now, keys, accepted[0])
	return accepted, nil
}

// remember records an accepted event or a kept document. If this fails, the same request may be accepted or kept
// twice, but it is not lost.
func (in *Intake) remember(ctx context.Context, s source.Source, now time.Time, keys []store.Key, accepted publish.Accepted) {
	if err := in.Seen.Add(ctx, now, keys, accepted); err != nil {
		in.log().WarnContext(ctx, "source id not recorded", "source", s.Name, "error", err)
	}
}

// unfit converts an error of publishing for the sender of a document. If the event is invalid, the sender has to change the
// document.
func unfit(err error) error {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound:
		return fault.New(fault.Unprocessable, "%s", fault.Public(err)).With(fault.DataOf(err))
	}
	return err
}

// idOf returns the id of the event whose document does not fit its mapping, or "" if the id is not known.
func idOf(err error) string {
	of, _ := fault.DataOf(err).(source.Unfit)
	return of.ID
}

// isUnfit reports whether an error can be fixed by changing the mapping or the event type.
func isUnfit(err error) bool {
	return fault.Is(err, fault.Unprocessable) || fault.Is(err, fault.TooLarge)
}

// toInput looks up the event's type in the catalog of the source's workspace and expands its URI.
func (in *Intake) toInput(ctx context.Context, s source.Source, e *source.Event) (publish.Input, *catalog.Catalog, error) {
	cat, err := in.Catalogs.Catalog(ctx, s.Workspace)
	if err != nil {
		return publish.Input{}, nil, fault.Wrap(fault.Unavailable, err, "look up the event types")
	}
	input, err := address(cat, s, e)
	return input, cat, err
}

func address(cat *catalog.Catalog, s source.Source, e *source.Event) (publish.Input, error) {
	entry := cat.ByName(e.Name)
	if entry == nil {
		return publish.Input{}, fault.New(fault.Unprocessable, "the event type %s is not in the catalog of workspace %s", e.Name, s.Workspace)
	}
	if missing := missingVariables(entry, e.Variables); len(missing) > 0 {
		return publish.Input{}, fault.New(fault.Unprocessable, "%s: the mapping has no variable %s", e.Name, strings.Join(missing, ", "))
	}
	return publish.Input{
		URI: entry.Expand(e.Variables), ID: e.ID, Source: "source/" + s.Name, Time: e.Time, Data: e.Data, Workspace: s.Workspace,
		URIAt: "/variables", DataAt: "/data", // pointers into the mapping, for faults
	}, nil
}

package ingest

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Bus reads the messages of the inbox queue that are not events: envelopes of EventBridge, SNS and S3, for the sources
// that are from there, and documents that are tried again. It is a [publish.Documents].
//
// A message is for each source by itself: what one cannot take becomes a dead letter in the source's workspace, and the
// others get their events.
type Bus struct{ Intake }

// Read makes the events of a message. Ours is false for a message that is none of a bus. An error is that of the
// message as a whole.
func (b *Bus) Read(ctx context.Context, body []byte) (in []publish.Input, ours bool, err error) {
	if isRetry(body) {
		in, err = b.again(ctx, body)
		return in, true, err
	}
	from, docs, err := source.ReadEnvelope(body)
	if from == source.HTTP || err != nil {
		return nil, from != source.HTTP, err
	}
	all, err := b.sources(ctx)
	if err != nil {
		return nil, true, err
	}
	for _, s := range all {
		if s.From != from {
			continue
		}
		for _, doc := range docs {
			more, err := b.event(ctx, s, doc, false)
			if err != nil {
				return nil, true, err
			}
			in = append(in, more...)
		}
	}
	return in, true, nil
}

// again maps a document of a dead letter once more.
func (b *Bus) again(ctx context.Context, body []byte) ([]publish.Input, error) {
	r, doc, err := parseRetry(body)
	if err != nil {
		return nil, err
	}
	all, err := b.sources(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		switch {
		case s.Name != r.Retry.Source || s.Workspace != r.Workspace || s.From != r.Retry.From:
		case s.From == source.HTTP:
			return nil, b.request(ctx, s, doc, identity{r.Retry.Hash, r.Retry.Signed})
		default:
			return b.event(ctx, s, doc, true)
		}
	}
	return nil, fault.New(fault.NotFound, "workspace %.64q has no source %.64q that takes this any more", r.Workspace, r.Retry.Source)
}

// errUnmatched is why a letter that was sent back is one again. A mapping has matched it before, so that it may be the new
// pattern that is wrong.
var errUnmatched = fault.New(fault.Unprocessable, "no mapping matches it any more")

// request publishes a request of a dead letter as the handler does.
func (b *Bus) request(ctx context.Context, s source.Source, doc any, who identity) error {
	now := b.now()
	o := Outcome{Workspace: s.Workspace, Source: s.Name}
	_, err := b.accept(ctx, s, doc, who, now, &o)
	b.Recorder.Record(ctx, o.of(err, now))
	if err == nil && o.Kind == Unmatched {
		err = errUnmatched
	}
	switch {
	case isUnfit(err):
		return b.keep(ctx, s, doc, who, o.ID, err, true, now)
	case fault.Is(err, fault.Exhausted): // it was accepted for good: the inbox tries again
		return fault.Wrap(fault.Unavailable, err, "publish a request that is tried again")
	}
	return err
}

// event is the event of a bus's document for a source, or none.
func (b *Bus) event(ctx context.Context, s source.Source, doc any, again bool) ([]publish.Input, error) {
	now := b.now()
	o := Outcome{Workspace: s.Workspace, Source: s.Name, Kind: Unmatched}
	in, err := b.input(ctx, s, doc, &o)
	b.Recorder.Record(ctx, o.of(err, now))
	if again && err == nil && o.Kind == Unmatched {
		err = errUnmatched
	}
	if isUnfit(err) {
		return nil, b.keep(ctx, s, doc, identity{}, o.ID, err, again, now)
	}
	return in, err
}

func (b *Bus) input(ctx context.Context, s source.Source, doc any, o *Outcome) ([]publish.Input, error) {
	event, err := s.Map(doc)
	if err != nil || event == nil {
		return nil, err
	}
	o.Name, o.ID = event.Name, event.ID
	in, cat, err := b.toInput(ctx, s, event)
	if err != nil {
		return nil, err
	}
	o.Kind, o.URI = Accepted, in.URI
	if _, err := publish.Check(cat, in); err != nil {
		return nil, unfit(err)
	}
	return []publish.Input{in}, nil
}

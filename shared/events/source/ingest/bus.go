package ingest

import (
	"context"

	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Bus reads the messages of the inbox queue that are not CloudEvents: envelopes of EventBridge, SNS and S3, which it
// gives to all sources of that origin, and documents of dead letters that are being retried. It is a
// [publish.Documents].
//
// Bus handles a message for each source independently. If one source cannot turn it into an event, the message
// becomes a dead letter in that source's workspace, and the other sources still get their events.
type Bus struct{ Intake }

// Read returns the events of a message. Ours is false if the message is not for a bus source. An error concerns the
// message as a whole.
func (b *Bus) Read(ctx context.Context, body []byte) (in []publish.Input, ours bool, err error) {
	if isRetry(body) {
		in, err = b.mapRetried(ctx, body)
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

// mapRetried maps the document of a retried dead letter.
func (b *Bus) mapRetried(ctx context.Context, body []byte) ([]publish.Input, error) {
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
	return nil, fault.New(fault.NotFound, "workspace %.64q no longer has a source %.64q for this document", r.Workspace, r.Retry.Source)
}

// errUnmatched is the reason of a dead letter that was retried and is now not matched by any mapping. A mapping
// matched it earlier, so the new pattern may be wrong. That is why it is kept again.
var errUnmatched = fault.New(fault.Unprocessable, "no mapping matches it any more")

// request publishes the retried document of a request, as [Handler] does for a new request.
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
	case fault.Is(err, fault.Exhausted): // the sender already got a 202, so the inbox must retry
		return fault.Wrap(fault.Unavailable, err, "publish a retried request")
	}
	return err
}

// event maps a document of a bus source to at most one event.
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

// Package intake publishes the events that backends send to the gateway. The relay (shared/gateway/relay) receives them from streams and
// polls, and shared/events/source/ingest receives them as webhooks. Both use this package, so that an event that arrives both ways is
// published only once.
package intake

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// These are the reasons why an event is dropped. They are values of the metric [metric.BackendDropped].
const (
	Foreign   = "an event without an id, or of another type"
	Misfit    = "an event that does not fit its schema"
	Malformed = "an event that is malformed or too large"
)

// Intake accepts the events of backends.
type Intake struct {
	Demand *demand.Registry
	// Publish publishes an event of a backend. Gap publishes a notice that some events of a URI are missing.
	Publish func(ctx context.Context, workspace string, in publish.Input) error
	Gap     func(ctx context.Context, workspace, uri string) error
}

// Event is an event in the form in which a backend sends it.
type Event struct {
	ID, Name, Time string
	Data           json.RawMessage
}

// Accept publishes an event of a URI, if it was not published before. If the event can never be published, Accept drops it and returns
// the reason, for example [Misfit]. After an error, the caller must pass the event to Accept again.
func (in *Intake) Accept(ctx context.Context, workspace, uri string, e Event) (dropped string, err error) {
	backend, own, _, ok := catalog.ParseBackendURI(uri)
	if !ok || e.ID == "" || e.Name != "" && e.Name != own {
		return Foreign, nil
	}
	out := publish.Input{URI: uri, ID: EventID(backend+catalog.CallerOf(uri), e.ID), Data: e.Data}
	if at, err := event.ParseTime(e.Time); err == nil {
		out.Time = at
	}
	seen, err := in.Demand.WasSeen(ctx, workspace, uri, out.ID)
	if err != nil || seen {
		return "", err
	}
	switch err := in.Publish(ctx, workspace, out); {
	case err == nil:
		// This write may be unhurried, because little harm is done if it is lost. If the backend sends the event again within a few
		// minutes, the events queue drops the repetition.
		return "", in.Demand.MarkSeenUnhurried(ctx, workspace, uri, out.ID)
	case fault.Is(err, fault.Unprocessable):
		return Misfit, nil
	case fault.Is(err, fault.Invalid), fault.Is(err, fault.TooLarge), fault.Is(err, fault.NotFound):
		return Malformed, nil
	default:
		return "", err
	}
}

// EventID returns the id under which a backend's event is published. It depends only on the backend and the backend's id of the event, so
// an event that the backend sends again gets the same id.
func EventID(backend, id string) string {
	h := sha256.Sum256(fmt.Appendf(nil, "%q %q", backend, id))
	return "be_" + base64.RawURLEncoding.EncodeToString(h[:])
}

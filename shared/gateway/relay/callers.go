package relay

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/demand"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A backend that acts for its callers decides by the caller's token which events it sends. So each event URI is for one principal, and
// the relay subscribes to it with this principal's token (see [demand.Registry.LoadToken]), over a separate connection. If the token
// expires or the backend refuses it, the subscription waits for another token, and then continues at its cursor.
//
// A backend could repeat a token in the text of an error, so the log and the clients never get such texts. They get only the errors
// below, the kind of any other error, and the reason why the gateway could not exchange a token.
var (
	errRefused = fault.New(fault.Unauthenticated, "it refuses the token of the caller")
	errExpired = fault.New(fault.Unauthenticated, "the token of the caller has expired")
	errUnknown = fault.New(fault.NotFound, "it has no such event type for the caller")
)

// receiveAs receives the events of a URI with the token of the URI's principal, until ctx ends.
func (e *receiver) receiveAs(ctx context.Context, uri string) {
	workspace, log := e.backend.Place().Workspace, e.relay.log(e.backend).With("uri", uri)
	var refused auth.Token
	var again time.Time // when to try the refused token once more
	for ctx.Err() == nil {
		token, err := e.Demand.LoadToken(ctx, workspace, uri)
		if err == nil && (token.Header == "" || token.Header == refused.Header && time.Now().Before(again)) {
			_ = periodic.Sleep(ctx, wantedEvery) // fails only if ctx has ended, which the loop checks
			continue
		}
		if err == nil {
			err = e.subscribeAs(ctx, uri, token)
		}
		if ctx.Err() != nil {
			return
		}
		log.WarnContext(ctx, "subscription to events ended", "again", retryAfter, "error", err)
		if client.Retryable(err) {
			_ = periodic.Sleep(ctx, retryAfter)
			continue
		}
		refused, again = token, time.Now().Add(retryAfter)
		state := demand.State{Error: fault.Public(err), Unknown: errors.Is(err, errUnknown)}
		if fault.Is(err, fault.Unauthenticated) {
			// DropToken removes the token, because the backend has refused it. If LoadToken returns the same token later, a client has
			// sent the token again, so the relay tries the token again.
			refused = auth.Token{}
			err = e.Demand.DropToken(ctx, workspace, uri, token)
		} else {
			err = nil
		}
		if err = cmp.Or(err, e.Demand.SetState(ctx, workspace, uri, state)); err != nil && ctx.Err() == nil {
			log.WarnContext(ctx, "subscription state not recorded", "error", err)
		}
	}
}

func (e *receiver) subscribeAs(parent context.Context, uri string, token auth.Token) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	if !token.Expires.IsZero() {
		defer time.AfterFunc(time.Until(token.Expires), func() { cancel(errExpired) }).Stop()
	}
	err := e.receiveOver(ctx, uri, transport{e.backend.ClientFor(token.Header), e.lines, cancel})
	if cause := context.Cause(ctx); cause != nil && parent.Err() == nil {
		return cause
	}
	if err == nil || errors.Is(err, errUnknown) {
		return err
	}
	return fault.New(fault.KindOf(err), "it refuses the subscription of the caller (%s)", fault.KindOf(err))
}

func (e *receiver) receiveOver(ctx context.Context, uri string, t transport) (err error) {
	as := &receiver{Events: e.Events, relay: e.relay, backend: e.backend, limit: e.limit, perCaller: true}
	as.client, err = client.Connect(ctx, placeholderURL, client.Options{HTTP: t.client(), Agent: e.Agent})
	if err != nil {
		return err
	}
	defer func() { _ = as.client.Close() }()
	as.version = spec.Version(as.client.Revision())
	if err := as.list(ctx, e.backend.EventTypes()); err != nil {
		return err
	}
	_, own, _, _ := catalog.ParseBackendURI(uri)
	if as.types[own] == nil {
		return errUnknown
	}
	return as.subscribe(ctx, uri, as.modes[own], false)
}

// matchesSchema reports whether an event's data match the schema that the backend listed for the URI's principal. If not, the schema may
// have changed. So matchesSchema reads the list of event types again, but at most every 30 seconds ([retryAfter]).
func (e *receiver) matchesSchema(ctx context.Context, uri string, data json.RawMessage) bool {
	_, own, _, _ := catalog.ParseBackendURI(uri)
	matches := func() bool { t := e.types[own]; return t != nil && t.ValidatePayload(data) == nil }
	if matches() {
		return true
	}
	if time.Since(e.listed) > retryAfter {
		_ = e.list(ctx, e.backend.EventTypes()) // if the backend does not answer, check against the schemas that the relay knows
	}
	return matches()
}

package relay

import (
	"encoding/json"
	"errors"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// interests are the resources that clients want of a backend, with the state of each on one connection. A backend may refuse one of
// them, or answer slowly. That concerns this resource alone, and principals take turns, so one that wants very many resources does
// not hold up another.
type interests struct {
	wanted map[string][]string // the principals, by URI
	of     map[string]*interest
	asking map[string]string // the principals whose turn it is, by URI
	turns  map[string]int    // that each principal had, while there is something left to do
}

type interest struct {
	subscribed bool
	changed    bool      // an update is to be announced, because it may have been missed before the subscription took effect
	retry      time.Time // when the request is repeated; zero if the backend did not refuse it
}

const (
	// maxAsking is how many resources the backend is asked for at the same time, maxTurns how many of them for one principal.
	maxAsking = 8
	maxTurns  = 2
	// retryAfter is when a subscription is tried again that failed in another way than by a refusal.
	retryAfter = 30 * time.Second
)

func newInterests() interests {
	return interests{of: map[string]*interest{}, asking: map[string]string{}, turns: map[string]int{}}
}

func (i *interests) want(wanted map[string][]string) {
	i.wanted = wanted
	for uri := range wanted {
		if i.of[uri] == nil {
			i.of[uri] = &interest{}
		}
	}
	for uri, of := range i.of {
		if _, asking := i.asking[uri]; wanted[uri] == nil && !of.subscribed && !asking {
			delete(i.of, uri)
		}
	}
}

// next returns the resource that it is the turn of, and the principal whose turn that is. The principal of a resource that is not
// wanted any more is "-".
func (i *interests) next() (uri, principal string, ok bool) {
	if len(i.asking) >= maxAsking {
		return "", "", false
	}
	busy, least, left := map[string]int{}, 0, false
	for _, p := range i.asking {
		busy[p]++
	}
	for candidate, of := range i.of {
		principals, wanted := i.wanted[candidate]
		if _, already := i.asking[candidate]; already || of.subscribed == wanted || time.Now().Before(of.retry) {
			continue
		}
		left = true
		if !wanted {
			principals = []string{"-"}
		}
		for _, p := range principals {
			if busy[p] < maxTurns && (!ok || i.turns[p] < least) {
				uri, principal, least, ok = candidate, p, i.turns[p], true
			}
		}
	}
	if !left {
		clear(i.turns)
	}
	return uri, principal, ok
}

// idle reports whether all subscriptions are settled and no request is under way.
func (i *interests) idle() bool {
	_, _, left := i.next()
	return !left && len(i.asking) == 0
}

// took records that a subscription has taken effect.
func (i *interests) took(uri string) {
	if of := i.of[uri]; of != nil && !of.subscribed {
		*of = interest{subscribed: true, changed: true}
	}
}

// ended records that there is no subscription any more.
func (i *interests) ended(uri string) {
	if of := i.of[uri]; of != nil {
		*of = interest{}
	}
	if i.wanted[uri] == nil {
		delete(i.of, uri)
	}
}

// putOff leaves a resource alone for a time, and reports whether it was not left alone before.
func (i *interests) putOff(uri string, d time.Duration) (first bool) {
	of := i.of[uri]
	if of == nil {
		return false
	}
	first = of.retry.IsZero()
	of.retry = time.Now().Add(d)
	return first
}

// announced forgets the updates that are still to be announced.
func (i *interests) announced() {
	for _, of := range i.of {
		of.changed = false
	}
}

// announceEffects announces an update of each resource whose subscription has taken effect: it may have changed after the client
// subscribed, or while no relay listened.
func (f *following) announceEffects() {
	for uri, of := range f.interests.of {
		if !of.changed {
			continue
		}
		n := api.Notice{Method: spec.NoteUpdated, Params: paramsOf(uri)}
		if err := f.relay.announce(f.ctx, f, n); err != nil {
			if f.ctx.Err() == nil {
				f.relay.log(f).WarnContext(f.ctx, "update not announced", "error", err)
			}
			return // the next tick repeats it
		}
		of.changed = false
	}
}

// paramsOf returns the params of a request or notification about a resource.
func paramsOf(uri string) json.RawMessage {
	return append(append([]byte(`{"uri":`), jsonrpc.Quote(uri)...), '}')
}

// pursue starts the requests that make the subscriptions equal to the interests.
func (f *following) pursue() {
	if !f.capabilities.Subscribe {
		return
	}
	if f.version.Stateless() {
		f.pursueListens()
		return
	}
	for {
		uri, principal, ok := f.interests.next()
		if !ok {
			return
		}
		f.interests.asking[uri] = principal
		f.interests.turns[principal]++
		method := spec.MethodSubscribe
		if f.interests.of[uri].subscribed {
			method = spec.MethodUnsubscribe
		}
		f.ask(func() func() error {
			err := f.change(method, uri)
			return func() error { return f.changedTo(method, uri, err) }
		})
	}
}

// change subscribes or unsubscribes.
func (f *following) change(method, uri string) error {
	_, err := f.Client().Ask(f.ctx, f.request(), method, paramsOf(uri))
	if !errors.Is(err, upstream.ErrSession) {
		return err
	}
	// Some servers answer 404 for a resource that they do not have.
	if _, lost := f.Client().Ask(f.ctx, f.request(), "ping", json.RawMessage(`{}`)); lost != nil && !errors.Is(lost, upstream.ErrAnswer) {
		return err
	}
	return upstream.ErrAnswer
}

// changedTo records the outcome. Only a lost session is a reason to give the connection up.
func (f *following) changedTo(method, uri string, err error) error {
	delete(f.interests.asking, uri)
	switch {
	case errors.Is(err, upstream.ErrSession):
		return err
	case err == nil && method == spec.MethodSubscribe:
		f.interests.took(uri)
	case method == spec.MethodUnsubscribe && (err == nil || upstream.Refused(err)): // it may be gone there
		f.interests.ended(uri)
	default:
		f.refused(uri, err)
	}
	return nil
}

// refused leaves a resource alone that the backend does not subscribe to.
func (f *following) refused(uri string, err error) {
	again := retryAfter
	if upstream.Refused(err) {
		again = askAgain
	}
	if f.interests.putOff(uri, again) {
		f.relay.log(f).WarnContext(f.ctx, "backend refused subscription", "again", again, "error", err)
	}
}

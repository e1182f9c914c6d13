package relay

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// interests decides to which resource of a backend the relay subscribes or unsubscribes next, on one connection. It compares the
// resources to which clients are subscribed with the relay's own subscriptions at the backend. A refused or slow subscription does not
// affect the others. Principals take turns, so that a principal with very many resources does not delay the others.
type interests struct {
	wanted map[string][]string  // the principals whose clients are subscribed, by URI
	of     map[string]*interest // the state of the relay's own subscriptions, by URI
	asking map[string]string    // the principals for which requests are running, by URI
	turns  map[string]int       // the number of requests for each principal since there was last no request to send
}

// interest is the state of the relay's subscription to one resource.
type interest struct {
	subscribed bool      // the subscription has taken effect at the backend
	changed    bool      // an update has to be announced, because one may have been missed before the subscription took effect
	retry      time.Time // when the relay may send the next request, after a failed one; zero if the last one succeeded
}

const (
	// maxAsking limits the concurrent requests to subscribe and unsubscribe at a backend. maxTurns limits them for each principal.
	maxAsking = 8
	maxTurns  = 2
	// retryAfter is the pause before the relay repeats a subscription request that failed without a refusal, for example because of a
	// timeout.
	retryAfter = 30 * time.Second
)

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

// next returns the next resource to subscribe to or unsubscribe from, and the principal whose turn it is. If no client wants the resource
// any more, the principal is "-". The result ok is false if there is nothing to do now.
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

// idle reports whether no request to subscribe or unsubscribe is running, and no further one can start now.
func (i *interests) idle() bool {
	_, _, left := i.next()
	return !left && len(i.asking) == 0
}

func (i *interests) recordSubscribed(uri string) {
	if of := i.of[uri]; of != nil && !of.subscribed {
		*of = interest{subscribed: true, changed: true}
	}
}

func (i *interests) recordEnded(uri string) {
	if of := i.of[uri]; of != nil {
		*of = interest{}
	}
	if i.wanted[uri] == nil {
		delete(i.of, uri)
	}
}

// putOff delays the next request for a resource. It reports whether this is the first delay since the last successful request for the
// resource.
func (i *interests) putOff(uri string, d time.Duration) (first bool) {
	of := i.of[uri]
	if of == nil {
		return false
	}
	first = of.retry.IsZero()
	of.retry = time.Now().Add(d)
	return first
}

// announceEffects announces an update of each resource for which the relay's subscription has taken effect. The resource may have changed
// after the client subscribed, or while no relay listened.
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
			return // the next tick retries
		}
		of.changed = false
	}
}

func paramsOf(uri string) json.RawMessage {
	return append(append([]byte(`{"uri":`), jsonrpc.Quote(uri)...), '}')
}

// pursue starts requests to subscribe and unsubscribe, so that the relay is subscribed at the backend to the resources that clients want.
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
		f.runAsync(func() func() error {
			err := f.change(method, uri)
			return func() error { return f.recordChange(method, uri, err) }
		})
	}
}

func (f *following) change(method, uri string) error {
	_, err := f.Client().Ask(f.ctx, f.request(), method, paramsOf(uri))
	if !errors.Is(err, upstream.ErrSession) {
		return err
	}
	// Some servers answer 404 for an unknown resource, although this status means that the session is unknown. A ping shows whether the
	// session still exists.
	if _, lost := f.Client().Ask(f.ctx, f.request(), "ping", json.RawMessage(`{}`)); lost != nil && !errors.Is(lost, upstream.ErrAnswer) {
		return err
	}
	return upstream.ErrAnswer
}

// recordChange records the outcome of a request to subscribe or unsubscribe. It returns an error, which ends the connection, only if the
// session is lost.
func (f *following) recordChange(method, uri string, err error) error {
	delete(f.interests.asking, uri)
	switch {
	case errors.Is(err, upstream.ErrSession):
		return err
	case err == nil && method == spec.MethodSubscribe:
		f.interests.recordSubscribed(uri)
	// If the backend refuses to unsubscribe, it has already forgotten the subscription.
	case method == spec.MethodUnsubscribe && (err == nil || upstream.IsRefused(err)):
		f.interests.recordEnded(uri)
	default:
		f.recordRefused(uri, err)
	}
	return nil
}

func (f *following) recordRefused(uri string, err error) {
	again := retryAfter
	if upstream.IsRefused(err) {
		again = askAgain
	}
	if f.interests.putOff(uri, again) {
		f.relay.log(f).WarnContext(f.ctx, "backend refused subscription", "again", again, "error", err)
	}
}

// chooseSubscriptions chooses which of the wanted subscriptions the relay makes at a backend. The parameter room is their maximum number,
// and the map wanted has the principals that want each subscription, by URI.
//
// The principals take turns, and in each turn a principal gets a subscription that no principal has got before. So all principals get
// equal shares, however many subscriptions some of them want. Within its share, a principal keeps its running subscriptions.
func chooseSubscriptions(wanted map[string][]string, running func(uri string) bool, room int) map[string]bool {
	chosen := make(map[string]bool, min(len(wanted), room))
	if len(wanted) <= room {
		for uri := range wanted {
			chosen[uri] = true
		}
		return chosen
	}
	order := func(a, b string) int {
		if ra, rb := running(a), running(b); ra != rb {
			if ra {
				return -1
			}
			return 1
		}
		return cmp.Compare(a, b)
	}
	of := map[string][]string{} // the subscriptions that each principal wants
	for uri, principals := range wanted {
		for _, p := range principals {
			of[p] = append(of[p], uri)
		}
	}
	for _, uris := range of {
		slices.SortFunc(uris, order)
	}
	for len(of) > 0 && len(chosen) < room {
		var turn []string
		for p, uris := range of {
			for len(uris) > 0 && chosen[uris[0]] {
				uris = uris[1:]
			}
			if of[p] = uris; len(uris) == 0 {
				delete(of, p)
				continue
			}
			turn = append(turn, uris[0])
		}
		slices.SortFunc(turn, order)
		for _, uri := range turn {
			if len(chosen) < room {
				chosen[uri] = true
			}
		}
	}
	return chosen
}

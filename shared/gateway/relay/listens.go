package relay

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// A subscriptions/listen request cannot be changed (2026-07-28, Subscriptions). If the relay replaced it by another one, a notification
// that occurs while both are open would arrive twice, and the relay could not recognize the duplicate. So the relay opens further listen
// requests for resources that are wanted later, and never asks for a resource in two of them.
//
// A backend that refuses a listen request does not say which of its resources is the reason. So the relay repeats the request with each
// half of the resources until it has found the refused one.

const (
	// A connection begins with one listen request and adds further ones. When there are maxListens further ones, the relay replaces them
	// by a single one, to limit the number of streams. An update during the replacement may arrive twice, but is not lost.
	maxListens = 8
	maxSplit   = 32 // the maximum of further listens if the backend refuses to replace them by a single one
)

// listens has the open listen requests of a connection, except for the first one.
type listens struct {
	further    []*stream
	opening    bool              // a listen is being opened
	halves     []map[string]bool // the halves of refused listens that the relay still has to request
	joined     time.Time         // when the backend last refused to replace all listens by one; the relay tries that again only after a pause
	incomplete bool              // the backend does not acknowledge notifications of a list although it declares them
}

// listen sends a listen request for updates of the given resources and, if lists is set, for changes of all lists that the backend
// supports. It returns when the backend has acknowledged the request, because the acknowledgment must be the first message (2026-07-28,
// Subscriptions). If the backend does not answer for a while, the stream counts as open.
func (f *following) listen(lists bool, uris map[string]bool) (*stream, error) {
	c := f.Client()
	filter := map[string]any{
		"toolsListChanged": lists && f.capabilities.ToolsChanged, "promptsListChanged": lists && f.capabilities.PromptsChanged,
		"resourcesListChanged": lists && f.capabilities.ResourcesChanged,
	}
	if f.capabilities.EventsChanged {
		filter["eventsListChanged"] = lists
	}
	if len(uris) > 0 {
		filter["resourceSubscriptions"] = slices.Sorted(maps.Keys(uris))
	}
	params := jsonrpc.Insert(c.MetaParams(f.version), "notifications", jsonrpc.Encode(filter))
	r := upstream.Request{
		Body:    jsonrpc.AppendRequest(nil, upstream.FreshID(), spec.MethodListen, params),
		Version: f.version, Header: http.Header{spec.HeaderMethod: {spec.MethodListen}},
	}
	x, err := f.open(func(ctx context.Context) (*upstream.Exchange, error) { return c.Post(ctx, r) })
	if err != nil {
		return nil, err
	}
	s := f.start(x, uris)
	late := time.NewTimer(c.AskTimeout)
	defer late.Stop()
	select {
	case <-s.opened:
	case <-late.C:
		s.begin(nil)
	case <-f.ctx.Done():
	}
	s.mu.Lock()
	err, status := s.err, s.Status
	s.mu.Unlock()
	if err == nil {
		err = f.ctx.Err()
	}
	if err != nil {
		s.end()
		if status >= http.StatusBadRequest {
			err = errors.Join(&upstream.StatusError{Status: status}, err)
		}
		return nil, err
	}
	return s, nil
}

// listenFirst opens the connection's first listen request, with all wanted resources. If the backend refuses it, listenFirst sends it
// without resources, and further listen requests have the resources.
func (f *following) listenFirst() error {
	uris := map[string]bool{}
	if f.capabilities.Subscribe {
		for uri := range *f.wanted.Load() {
			uris[uri] = true
		}
	}
	s, err := f.listen(true, uris)
	if err != nil && len(uris) > 0 && upstream.IsRefused(err) {
		f.split(uris, err)
		s, err = f.listen(true, map[string]bool{})
	}
	if err != nil {
		return err
	}
	f.first = s
	f.recordAcknowledged(s)
	for name, offered := range map[string]bool{
		"toolsListChanged": f.capabilities.ToolsChanged, "promptsListChanged": f.capabilities.PromptsChanged,
		"resourcesListChanged": f.capabilities.ResourcesChanged,
	} {
		if offered && s.honored != nil && string(jsonrpc.Member(s.honored, name)) != "true" {
			f.listens.incomplete = true
			f.relay.log(f).WarnContext(f.ctx, "backend notifications incomplete", "filter", name)
		}
	}
	return nil
}

func (f *following) recordAcknowledged(s *stream) {
	honored := s.uris
	if s.honored != nil {
		honored = map[string]bool{}
		for raw := range jsonrpc.Elements(jsonrpc.Member(s.honored, "resourceSubscriptions")) {
			if uri, ok := jsonrpc.String(raw); ok {
				honored[uri] = true
			}
		}
	}
	for uri := range s.uris {
		if honored[uri] {
			f.interests.recordSubscribed(uri)
		} else {
			f.recordRefused(uri, upstream.ErrAnswer)
		}
	}
	maps.DeleteFunc(s.uris, func(uri string, _ bool) bool { return !honored[uri] })
}

// split is called after the backend has refused a listen request for several resources. It makes the relay request each half of them
// separately. For a single resource, split records the refusal err.
func (f *following) split(uris map[string]bool, err error) {
	all := slices.Sorted(maps.Keys(uris))
	if len(all) == 1 {
		f.recordRefused(all[0], err)
		return
	}
	for half := range slices.Chunk(all, (len(all)+1)/2) {
		set := map[string]bool{}
		for _, uri := range half {
			set[uri] = true
		}
		f.listens.halves = append(f.listens.halves, set)
	}
}

// pursueListens closes each listen request whose resources are all no longer wanted. It opens one for the wanted resources that no open
// listen request has.
func (f *following) pursueListens() {
	if f.listens.opening {
		return
	}
	asked := maps.Clone(f.first.uris)
	var still []*stream
	for _, s := range f.listens.further {
		if len(f.filterWanted(s.uris)) == 0 {
			s.end()
			continue
		}
		still = append(still, s)
		maps.Copy(asked, s.uris)
	}
	f.listens.further = still
	for uri, of := range f.interests.of {
		if of.subscribed && f.interests.wanted[uri] == nil {
			f.interests.recordEnded(uri) // no client wants the resource any more, although an open listen may still include it
		} else if of.subscribed && !asked[uri] {
			of.subscribed = false
		}
	}
	more := map[string]bool{}
	for len(f.listens.halves) > 0 && len(more) == 0 {
		more = f.filterWanted(f.listens.halves[0])
		f.listens.halves = f.listens.halves[1:]
	}
	if len(more) == 0 {
		for uri, of := range f.interests.of {
			switch {
			case of.subscribed || time.Now().Before(of.retry):
			case asked[uri]: // an open listen already includes the resource
				f.interests.recordSubscribed(uri)
			default:
				more[uri] = true
			}
		}
	}
	if len(more) == 0 {
		return
	}
	var replaced []*stream
	join := len(still) >= maxListens && time.Since(f.listens.joined) > askAgain
	switch {
	case join:
		replaced = still
		for _, s := range still {
			maps.Copy(more, f.filterWanted(s.uris))
		}
	case len(still) >= maxSplit:
		for uri := range more {
			f.recordRefused(uri, upstream.ErrAnswer)
		}
		return
	}
	f.listens.opening = true
	f.runAsync(func() func() error {
		s, err := f.listen(false, more)
		return func() error {
			f.listens.opening = false
			switch {
			case err == nil:
				f.recordAcknowledged(s)
				for _, old := range replaced {
					old.end()
				}
				f.listens.further = slices.DeleteFunc(f.listens.further, func(s *stream) bool { return slices.Contains(replaced, s) })
				f.listens.further = append(f.listens.further, s)
			case !upstream.IsRefused(err):
				return err
			case join:
				f.listens.joined = time.Now()
			default:
				f.split(more, err)
			}
			return nil
		}
	})
}

func (f *following) filterWanted(uris map[string]bool) map[string]bool {
	out := map[string]bool{}
	for uri := range uris {
		if _, ok := f.interests.wanted[uri]; ok {
			out[uri] = true
		}
	}
	return out
}

package relay

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// What a listen asks for cannot be changed (2026-07-28, Subscriptions). If it were replaced by another one, a notification while both
// are open would arrive twice, and nothing in it shows that it is the same. So further listens next to the first ask for
// resources that are wanted later, and no two ask for the same one.
//
// A backend that refuses a listen does not say which of its resources is the reason. Then a listen for each half follows, until the refused
// resource is known.

const (
	// maxListens is how many further ones there may be. Then one takes their place; an update of a resource in that very moment may
	// arrive twice, rather than not at all.
	maxListens = 8
	// maxSplit is how many there may be where a backend refuses that one.
	maxSplit = 32
)

// listens has the listens of a connection next to the first.
type listens struct {
	further []*stream
	opening bool              // one is being opened
	halves  []map[string]bool // of a listen that was refused, still to be asked for
	joined  time.Time         // when the backend refused one in the place of all; they are not joined for a while
	unheard bool              // the backend does not notify of a list that it says it notifies of
}

// listen asks for updates of these resources, and if it is to, for changes of all lists that the backend notifies of. It returns when
// the backend acknowledges it. "The server MUST send notifications/subscriptions/acknowledged as the first message" (2026-07-28,
// Subscriptions); one that stays silent without a refusal counts as open after a while.
func (f *following) listen(lists bool, uris map[string]bool) (*stream, error) {
	c := f.Client()
	filter := map[string]any{
		"toolsListChanged": lists && f.capabilities.ToolsChanged, "promptsListChanged": lists && f.capabilities.PromptsChanged,
		"resourcesListChanged": lists && f.capabilities.ResourcesChanged,
	}
	if len(uris) > 0 {
		filter["resourceSubscriptions"] = slices.Sorted(maps.Keys(uris))
	}
	text, err := json.Marshal(filter)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "encode a listen")
	}
	r := upstream.Request{
		Body:    jsonrpc.AppendRequest(nil, upstream.FreshID(), spec.MethodListen, jsonrpc.Insert(c.Meta(f.version), "notifications", text)),
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

// listenFirst opens the first listen. If the backend refuses it, further listens ask for the resources.
func (f *following) listenFirst() error {
	uris := map[string]bool{}
	if f.capabilities.Subscribe {
		for uri := range *f.wanted.Load() {
			uris[uri] = true
		}
	}
	s, err := f.listen(true, uris)
	if err != nil && len(uris) > 0 && upstream.Refused(err) {
		f.split(uris, err)
		s, err = f.listen(true, map[string]bool{})
	}
	if err != nil {
		return err
	}
	f.first = s
	f.acknowledged(s)
	for name, offered := range map[string]bool{
		"toolsListChanged": f.capabilities.ToolsChanged, "promptsListChanged": f.capabilities.PromptsChanged,
		"resourcesListChanged": f.capabilities.ResourcesChanged,
	} {
		if offered && s.honoured != nil && string(jsonrpc.Member(s.honoured, name)) != "true" {
			f.listens.unheard = true
			f.relay.log(f).WarnContext(f.ctx, "backend does not notify of a list, its lists are compared", "filter", name)
		}
	}
	return nil
}

// acknowledged records which resources of a listen the backend honors.
func (f *following) acknowledged(s *stream) {
	honoured := s.uris
	if s.honoured != nil {
		honoured = map[string]bool{}
		for raw := range jsonrpc.Elements(jsonrpc.Member(s.honoured, "resourceSubscriptions")) {
			if uri, ok := jsonrpc.String(raw); ok {
				honoured[uri] = true
			}
		}
	}
	for uri := range s.uris {
		if honoured[uri] {
			f.interests.took(uri)
		} else {
			f.refused(uri, upstream.ErrAnswer)
		}
	}
	maps.DeleteFunc(s.uris, func(uri string, _ bool) bool { return !honoured[uri] })
}

// split has each half of the resources of a refused listen asked for by itself.
func (f *following) split(uris map[string]bool, err error) {
	all := slices.Sorted(maps.Keys(uris))
	if len(all) == 1 {
		f.refused(all[0], err)
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

// pursueListens opens and closes listens until they cover exactly the wanted resources.
func (f *following) pursueListens() {
	if f.listens.opening {
		return
	}
	asked := maps.Clone(f.first.uris)
	var still []*stream
	for _, s := range f.listens.further {
		if len(f.stillWanted(s.uris)) == 0 {
			s.end()
			continue
		}
		still = append(still, s)
		maps.Copy(asked, s.uris)
	}
	f.listens.further = still
	for uri, of := range f.interests.of {
		if of.subscribed && f.interests.wanted[uri] == nil {
			f.interests.ended(uri) // a listen may still ask for it
		} else if of.subscribed && !asked[uri] {
			of.subscribed = false
		}
	}
	more := map[string]bool{}
	for len(f.listens.halves) > 0 && len(more) == 0 {
		more = f.stillWanted(f.listens.halves[0])
		f.listens.halves = f.listens.halves[1:]
	}
	if len(more) == 0 {
		for uri, of := range f.interests.of {
			switch {
			case of.subscribed || time.Now().Before(of.retry):
			case asked[uri]: // wanted again
				f.interests.took(uri)
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
			maps.Copy(more, f.stillWanted(s.uris))
		}
	case len(still) >= maxSplit:
		for uri := range more {
			f.refused(uri, upstream.ErrAnswer)
		}
		return
	}
	f.listens.opening = true
	f.ask(func() func() error {
		s, err := f.listen(false, more)
		return func() error {
			f.listens.opening = false
			switch {
			case err == nil:
				f.acknowledged(s)
				for _, old := range replaced {
					old.end()
				}
				f.listens.further = slices.DeleteFunc(f.listens.further, func(s *stream) bool { return slices.Contains(replaced, s) })
				f.listens.further = append(f.listens.further, s)
			case !upstream.Refused(err):
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

// stillWanted returns the resources that clients still want.
func (f *following) stillWanted(uris map[string]bool) map[string]bool {
	out := map[string]bool{}
	for uri := range uris {
		if _, ok := f.interests.wanted[uri]; ok {
			out[uri] = true
		}
	}
	return out
}

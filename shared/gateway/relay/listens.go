package relay

import (
	"context"
	"maps"
	"sync"

	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
)

// What a listen asks for cannot be changed (2026-07-28, Subscriptions). If it were replaced by another one,
// what comes while both are open would come twice, and nothing in a notification shows that it is the same. So
// what is wanted later is asked for by further listens, beside the first, and no two ask for the same.

// maxListens is how many further ones there may be. Then one takes their place; an update of
// a resource in that very moment may come twice, rather than not at all.
const maxListens = 8

// stream is one that is read.
type stream struct {
	*upstream.Exchange
	uris map[string]bool // that it asks for, in 2026-07-28

	mu    sync.Mutex
	ended bool // by us
}

// end closes the stream; that it ends is no failure then.
func (s *stream) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.Close()
}

// start reads a stream in the background. The first error of any is what ends the connection.
func (f *following) start(ctx context.Context, s *stream) {
	f.reading.Go(func() {
		err := f.read(ctx, s.Exchange)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.ended {
			return
		}
		select {
		case f.failed <- err:
		default: // another one was first
		}
	})
}

// follow makes the subscriptions those that are wanted, by listens.
func (f *following) follow(ctx context.Context, first *stream, wanted map[string]bool) error {
	asked := maps.Clone(first.uris)
	var still []*stream
	for _, s := range f.further {
		if len(without(s.uris, wanted)) == len(s.uris) { // none of them is wanted
			s.end()
			continue
		}
		still = append(still, s)
		maps.Copy(asked, s.uris)
	}
	f.further, f.subscribed = still, wanted
	more := without(wanted, asked)
	if len(more) == 0 {
		return nil
	}
	replaced := f.further
	if len(replaced) < maxListens {
		replaced = nil
	} else {
		more = without(wanted, first.uris)
	}
	x, err := f.listen(ctx, false, more)
	if err != nil {
		return err
	}
	s := &stream{Exchange: x, uris: more}
	f.start(ctx, s)
	if replaced != nil {
		for _, old := range replaced {
			old.end()
		}
		f.further = nil
	}
	f.further = append(f.further, s)
	return nil
}

// without are those of all that are not in left.
func without(all, left map[string]bool) map[string]bool {
	out := maps.Clone(all)
	maps.DeleteFunc(out, func(uri string, _ bool) bool { return left[uri] })
	return out
}

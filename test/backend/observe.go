package backend

import (
	"context"
	"iter"
	"net/http"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// State counts the requests and messages that a backend has seen since its start.
type State struct {
	// Requests counts messages by method.
	Requests map[string]int `json:"requests"`
	// Calls counts calls by tool, Cancelled the calls that the client abandoned or cancelled.
	Calls     map[string]int `json:"calls"`
	Cancelled map[string]int `json:"cancelled"`
	// Running are the calls that are under way; not with [Misbehaving].
	Running int `json:"running"`
	// Sessions counts the open sessions, only with [Stateful].
	Sessions int `json:"sessions"`
	// Streams and Listens are the GET streams and subscriptions/listen that are open now.
	Streams int `json:"streams"`
	Listens int `json:"listens"`
	// Subscribed counts by URI the subscriptions that hold now.
	Subscribed map[string]int `json:"subscribed"`
	// Headers are the headers of the last POST.
	Headers http.Header `json:"headers"`
}

// observer keeps the [State] of a backend.
type observer struct {
	mu sync.Mutex
	s  State
	// held holds the URIs that each session is subscribed to, live the open sessions.
	held map[*mcp.ServerSession]map[string]bool
	live func() iter.Seq[*mcp.ServerSession]
}

func (o *observer) state() State {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.s
	s.Requests, s.Calls = copied(s.Requests), copied(s.Calls)
	s.Cancelled, s.Subscribed = copied(s.Cancelled), copied(s.Subscribed)
	s.Headers = s.Headers.Clone()
	if o.live != nil {
		for session := range o.live() {
			s.Sessions++
			for uri := range o.held[session] {
				s.Subscribed[uri]++
			}
		}
	}
	return s
}

// hold notes that a session has subscribed to a URI, or has not any more.
func (o *observer) hold(session mcp.Session, uri string, on bool) {
	s, ok := session.(*mcp.ServerSession)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held == nil {
		o.held = map[*mcp.ServerSession]map[string]bool{}
	}
	if o.held[s] == nil {
		o.held[s] = map[string]bool{}
	}
	if on {
		o.held[s][uri] = true
	} else {
		delete(o.held[s], uri)
	}
}

func copied(m map[string]int) map[string]int {
	c := make(map[string]int, len(m))
	for k, n := range m {
		if n != 0 {
			c[k] = n
		}
	}
	return c
}

// add adds n to a counter of the state.
func (o *observer) add(counter func(*State) *map[string]int, key string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := counter(&o.s)
	if *m == nil {
		*m = map[string]int{}
	}
	(*m)[key] += n
}

func requests(s *State) *map[string]int   { return &s.Requests }
func calls(s *State) *map[string]int      { return &s.Calls }
func cancelled(s *State) *map[string]int  { return &s.Cancelled }
func subscribed(s *State) *map[string]int { return &s.Subscribed }

// open adds n to a gauge of the state.
func (o *observer) open(gauge func(*State) *int, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	*gauge(&o.s) += n
}

func running(s *State) *int { return &s.Running }
func streams(s *State) *int { return &s.Streams }
func listens(s *State) *int { return &s.Listens }

// http counts streams and keeps headers.
func (o *observer) http(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
			o.open(streams, 1)
			defer o.open(streams, -1)
		case http.MethodPost:
			o.mu.Lock()
			o.s.Headers = r.Header.Clone()
			o.mu.Unlock()
		}
		next.ServeHTTP(w, r)
	})
}

// middleware counts what the SDK received.
func (o *observer) middleware(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		o.add(requests, method, 1)
		switch p := req.GetParams().(type) {
		case *mcp.CallToolParamsRaw:
			o.add(calls, p.Name, 1)
			o.open(running, 1)
			defer func() {
				o.open(running, -1)
				if ctx.Err() != nil {
					o.add(cancelled, p.Name, 1)
				}
			}()
		case *mcp.SubscriptionsListenParams:
			o.open(listens, 1)
			defer o.open(listens, -1)
			if p.Notifications != nil {
				for _, uri := range p.Notifications.ResourceSubscriptions {
					o.add(subscribed, uri, 1)
					defer o.add(subscribed, uri, -1)
				}
			}
		}
		result, err := next(ctx, method, req)
		if err == nil {
			switch p := req.GetParams().(type) {
			case *mcp.SubscribeParams:
				o.hold(req.GetSession(), p.URI, true)
			case *mcp.UnsubscribeParams:
				o.hold(req.GetSession(), p.URI, false)
			}
		}
		return result, err
	}
}

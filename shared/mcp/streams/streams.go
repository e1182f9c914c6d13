// Package streams serves the streams of the MCP endpoint: subscriptions/listen, the GET stream of a session, and the GET stream of the
// named-event dialect, which is an older protocol at /mcp/{workspace}. Package events adds events/stream.
//
// [Streams.Hold] admits a stream and keeps it open. Every stream is a [Stream], which sends the events and notices of a feed until the
// stream ends. Each kind of stream has its own [Framing], which defines its messages.
package streams

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// Streams opens streams, and has the dependencies that all streams share.
type Streams struct {
	Admission *Admission
	Auth      auth.Authenticator
	Catalogs  method.Catalogs
	Backends  Backends
	Methods   method.Table
	Sessions  *session.Store
	// Subscriptions are the callers' webhook subscriptions; nil without webhooks.
	Subscriptions Subscriptions
	Feeds         *stream.Tails
	Conversation  Conversation
	Replies       *method.Replies
	Faults        method.Faults
	Timing        method.Timing
	// MaxURIs limits the URIs of a stream. MaxPatterns limits how many of them have wildcards or are parents of other URIs.
	MaxURIs, MaxPatterns int
}

// Backends gives streams access to the backends behind the gateway.
type Backends interface {
	// Any reports whether there are backends. The result may change at any time.
	Any(ctx context.Context) bool
	// Backends returns the names of the backends that the principal may use.
	Backends(ctx context.Context, p auth.Principal) []string
	// Capabilities returns the union of the capabilities of the client's backends.
	Capabilities(ctx context.Context, c api.Client) api.Capabilities
	// WatchTasks sends the states of tasks on the channel states until ctx ends, and closes the channel after the last state. It returns
	// the ids of the tasks whose backends send notifications. It returns an error if the client does not declare the tasks extension.
	WatchTasks(ctx context.Context, c api.Client, ids []string) (watched []string, states <-chan *api.Task, err error)
	// Subscribable returns the backend that serves a resource and notifies of its changes, if there is one. The error is of kind
	// fault.Forbidden if the principal lacks a scope for the resource.
	Subscribable(ctx context.Context, p auth.Principal, uri string) (backend string, ok bool, err error)
	// Permits reports whether the principal may use the backend and, by the backend's rules, receive updates of the resource.
	Permits(ctx context.Context, p auth.Principal, backend, uri string) bool
	// Subscribe records or extends a subscription to a backend's resource, and Unsubscribe removes it.
	Subscribe(ctx context.Context, s api.Subscription) error
	Unsubscribe(ctx context.Context, s api.Subscription) error
}

// Hold keeps the response of a request open as a stream until the stream ends, and then returns. The function open makes the stream. If
// it returns a stream and an error, Hold closes the stream. There may be thousands of streams, so Hold must not need much space on its
// goroutine's stack, see ServeHTTP in package mcp.
func (st *Streams) Hold(w http.ResponseWriter, c *method.Call, open func(context.Context) (*Stream, error)) error {
	ctx, leave := st.Admission.Admit(w, c.Request, c)
	if leave == nil {
		return nil
	}
	defer leave()
	s, err := open(ctx)
	if s == nil {
		return err
	}
	defer s.close()
	if err != nil {
		return err
	}
	s.start(w, c)
	if err = s.Framing.Begin(ctx); err == nil {
		err = s.run(ctx)
	}
	s.finish(c, err)
	return nil
}

// start begins the stream on the response. It drops the request's body, which must not live as long as the stream.
func (s *Stream) start(response http.ResponseWriter, c *method.Call) {
	s.subscriptionID = bytes.Clone(c.Msg.ID)
	c.Msg, c.Meta, c.Body = jsonrpc.Message{ID: s.subscriptionID}, nil, nil
	var done func()
	s.out, done = s.Streams.Admission.writer(response)
	s.ends = append(s.ends, done)
}

// Open opens the feed from which the stream reads.
func (s *Stream) Open(ctx context.Context, r stream.Request) (err error) {
	if s.Feed, err = s.Streams.Feeds.Open(ctx, r); err == nil {
		s.ends = append(s.ends, s.Feed.Close)
	}
	return err
}

func (s *Stream) close() {
	for _, end := range slices.Backward(s.ends) {
		end()
	}
}

// Streaming is the handler of a method whose response is a stream that stays open.
type Streaming struct {
	Streams *Streams
	Open    func(ctx context.Context, c *method.Call) (*Stream, error)
}

// Serve implements [method.Handler].
func (h Streaming) Serve(w http.ResponseWriter, c *method.Call) error {
	if method.Accepts(c.Request.Header, sse.ContentType) {
		return h.Streams.Hold(w, c, func(ctx context.Context) (*Stream, error) { return h.Open(ctx, c) })
	}
	return method.NotAcceptable(w, c)
}

// Target is a URI that a stream is subscribed to, and where its messages come from.
type Target struct {
	// URI is the canonical form of the URI, and asked is the URI as the client sent it.
	URI, asked string
	Patterns   []match.Pattern
	topic      string // for subscription:// URIs, the topic of the webhook subscription's changes; otherwise empty
	// Backend is the name of the backend that serves the URI, or empty if this server does.
	Backend string
	// lost is true while the catalog has no event type for the URI, or the caller may not receive its events.
	lost bool
}

// CountOpen returns how many patterns of the target have wildcards or are parents of other URIs.
func (t Target) CountOpen() (n int) {
	for _, p := range t.Patterns {
		if p.Kind != match.Concrete {
			n++
		}
	}
	return n
}

func (t Target) addTo(r *stream.Request) {
	r.Patterns = append(r.Patterns, t.Patterns...)
	if t.topic != "" {
		r.Topics = append(r.Topics, t.topic)
	}
}

// Resolve returns the [Target] of a URI to which a client wants to subscribe on a stream. If that is impossible, the error tells the
// client why. A URI stands for events of the catalog, for changes of one of the client's webhook subscriptions, or for a resource of a
// backend.
func (st *Streams) Resolve(ctx context.Context, cat *catalog.Catalog, p auth.Principal, uri string) (Target, error) {
	t := Target{URI: uri, asked: uri}
	if strings.HasPrefix(uri, SubscriptionScheme) {
		if st.Subscriptions == nil {
			return t, method.NotFound(uri)
		}
		v, err := st.Subscriptions.Read(ctx, p, uri)
		if err != nil {
			if fault.Is(err, fault.NotFound) {
				err = method.NotFound(uri)
			}
			return t, err
		}
		t.topic = stream.TopicSubscription(v.ID)
		return t, nil
	}
	patterns, access, err := match.Resolve(cat, uri)
	if err != nil {
		if st.Backends.Any(ctx) {
			name, ok, denied := st.Backends.Subscribable(ctx, p, uri)
			switch {
			case ok:
				t.Backend = name
				return t, nil
			case denied != nil:
				return t, denied
			}
		}
		return t, err
	}
	if access, err = FilterPermitted(p, access); err != nil {
		return t, err
	}
	if !slices.ContainsFunc(access, func(a match.Access) bool { return a.Entry.PushAllowed() }) {
		return t, fault.New(fault.Invalid, "%s is not delivered on streams", method.Clip(uri)).With(map[string]any{"uri": method.Clip(uri)})
	}
	t.URI, t.Patterns = patterns[0].URI(), patterns
	return t, nil
}

// SubscriptionScheme is the beginning of a webhook subscription's URI.
const SubscriptionScheme = "subscription://"

// FilterPermitted returns the event types of a resolved URI that the principal may receive, or an error if the principal may
// receive no event type.
func FilterPermitted(p auth.Principal, access []match.Access) ([]match.Access, error) {
	var out []match.Access
	var denied error
	for _, a := range access {
		if err := a.Entry.Access.Check(p, a.Vars); err != nil {
			denied = err
			continue
		}
		out = append(out, a)
	}
	if len(out) == 0 && denied != nil {
		return nil, denied
	}
	return out, nil
}

// MayReceive reports whether the current access rule of an event's type lets the principal receive the event.
func MayReceive(cat *catalog.Catalog, p auth.Principal, ev *event.Event) bool {
	entry := cat.ByName(ev.Name)
	if entry == nil || entry.Access == nil {
		return entry != nil
	}
	_, vars, ok := cat.Match(ev.URI)
	return ok && entry.Access.Check(p, vars) == nil
}

// SessionNotice is a message to a session's open stream, which may be at another instance. It is sent through the event log,
// and makes the stream read the session from the store again.
var SessionNotice = json.RawMessage(`{"changed":true}`)

// Subscriptions lists and reads the caller's webhook subscriptions, for the methods that serve URIs with [SubscriptionScheme].
type Subscriptions interface {
	List(ctx context.Context, p auth.Principal, after string, limit int) (views []subscription.View, next string, err error)
	Read(ctx context.Context, p auth.Principal, uri string) (*subscription.View, error)
}

//lint:file-ignore SA1019 The SDK deprecates log messages, but we still serve the revisions that have them.

// Package tools is an MCP server over stdio whose tools receive the events of another MCP server. It is for MCP clients that support
// tools but no events. Package shared/mcp/eventtools declares the tools. This package gets the events with a [client.Client], so the
// process needs no public address.
package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

const (
	maxSubscriptions = 20
	// startTimeout limits how long the server of the events may take to accept a subscription.
	startTimeout = 30 * time.Second
)

// Tools holds the subscriptions of one session. Close ends them.
type Tools struct {
	client        *client.Client
	inbox         inbox
	progressEvery time.Duration

	ctx  context.Context // the context of all subscriptions
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu     sync.Mutex
	subs   map[string]*subscription // by subscriptionKey, which combines the name and the arguments
	lastID int
}

// subscription is a subscription at the server of the events. The mutex of Tools guards its fields.
type subscription struct {
	id, name string
	position *position
	stop     context.CancelFunc
	err      error // why the subscription has ended; nil if the model ended it
}

// position is the [client.Store] of one subscription. If the subscription fails, a new subscription to the same events continues at this
// position. If the model has ended the subscription, a new one begins with the next event.
type position struct {
	mu     sync.Mutex
	cursor string
}

func (p *position) Load(context.Context, string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cursor, nil
}

func (p *position) Save(_ context.Context, _, cursor string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cursor = cursor
	return nil
}

// New returns tools that subscribe to events with the client c.
func New(c *client.Client) *Tools {
	t := &Tools{client: c, progressEvery: eventtools.ProgressEvery, subs: map[string]*subscription{}}
	t.inbox.changed, t.inbox.waiting = make(chan struct{}), map[*string]struct{}{}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// Close ends all subscriptions and waits for their goroutines.
func (t *Tools) Close() {
	t.stop()
	t.wg.Wait()
}

// Serve serves one client over standard input and output, until the client closes the server's standard input or ctx ends. The client
// sees a server with the given name and version.
func (t *Tools) Serve(ctx context.Context, name, version string, in io.Reader, out io.Writer) error {
	lines := newStdio(in, out)
	defer lines.end()
	err := t.server(name, version, lines).Run(ctx, bounded{&mcp.IOTransport{Reader: lines, Writer: lines, MaxLineLength: 2 * maxLine}})
	if ctx.Err() != nil {
		return nil
	}
	return fault.Wrap(fault.Unavailable, err, "serve over stdio")
}

func (t *Tools) server(name, version string, lines *stdio) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: name, Version: version}, &mcp.ServerOptions{
		Instructions:       eventtools.Instructions + pushInstructions,
		Capabilities:       &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}, Experimental: map[string]any{capabilityChannel: struct{}{}}},
		SubscribeHandler:   func(_ context.Context, r *mcp.SubscribeRequest) error { return checkResource(r.Params.URI) },
		UnsubscribeHandler: func(_ context.Context, r *mcp.UnsubscribeRequest) error { return checkResource(r.Params.URI) },
	})
	t.addResource(s)
	t.wg.Go(func() { t.push(s, lines) })
	for _, tool := range eventtools.Tools(true) {
		s.AddTool(&mcp.Tool{
			Name: tool.Name, Title: tool.Title, Description: tool.Description, InputSchema: tool.InputSchema, OutputSchema: tool.OutputSchema,
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: tool.Annotations.ReadOnly},
		}, t.call)
	}
	return s
}

// call runs a tool. If the tool fails, call returns the error in a result, because clients show only results to the model.
func (t *Tools) call(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	arguments := req.Params.Arguments
	var out any
	var err error
	if len(arguments) > 0 && arguments[0] != '{' && string(arguments) != "null" {
		err = fault.New(fault.Invalid, "arguments is not an object")
	} else {
		out, err = eventtools.Call(ctx, &source{t, req}, req.Params.Name, arguments)
	}
	if err != nil {
		result := &mcp.CallToolResult{}
		result.SetError(errors.New(fault.Public(err)))
		return result, nil
	}
	text := jsonrpc.Encode(out)
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: string(text)}}, StructuredContent: json.RawMessage(text)}, nil
}

type source struct {
	*Tools
	req *mcp.CallToolRequest
}

func (s *source) EventTypes(ctx context.Context) (all []eventtools.EventType, err error) {
	types, err := s.client.EventTypes(ctx)
	for _, t := range types {
		if len(t.InputSchema) == 0 {
			t.InputSchema = json.RawMessage("{}")
		}
		all = append(all, eventtools.EventType{Name: t.Name, Description: t.Description, Arguments: t.InputSchema})
	}
	return all, err
}

// Subscribe implements [eventtools.Source]. It waits until the server of the events has accepted the subscription. If this session has
// already subscribed to the same events, Subscribe returns the id of that subscription.
func (s *source) Subscribe(ctx context.Context, name string, arguments json.RawMessage) (string, error) {
	key, err := subscriptionKey(name, arguments)
	if err != nil {
		return "", err
	}
	sub, accepted, ended, err := s.start(name, arguments, key)
	if err != nil {
		return "", err
	}
	if accepted == nil {
		return sub.id, nil
	}
	select {
	case <-accepted:
		return sub.id, nil
	case err = <-ended:
	case <-time.After(startTimeout):
		err = fault.New(fault.Unavailable, "the server has not answered within %s", startTimeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.remove(sub)
	return "", fault.Wrap(fault.Unavailable, err, "subscribe to %s", name)
}

// subscriptionKey returns the key of a subscription to an event type with these arguments. Equal arguments have equal keys.
func subscriptionKey(name string, arguments json.RawMessage) (string, error) {
	if len(arguments) == 0 {
		arguments = json.RawMessage("{}")
	}
	var members map[string]any
	d := json.NewDecoder(strings.NewReader(string(arguments)))
	d.UseNumber() // as float64, two different large integers could become equal
	if err := d.Decode(&members); err != nil {
		return "", fault.Wrap(fault.Invalid, err, "arguments")
	}
	sorted, err := json.Marshal(members)
	return name + " " + string(sorted), fault.Wrap(fault.Invalid, err, "arguments")
}

// start starts a subscription. The channel accepted is closed when the server accepts the subscription. The channel ended receives the
// error with which the subscription ends. If the same subscription is already running, start returns that subscription, and both channels
// are nil.
func (t *Tools) start(name string, arguments json.RawMessage, key string) (s *subscription, accepted <-chan struct{}, ended <-chan error, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s = t.subs[key]; s != nil && s.err == nil {
		return s, nil, nil, nil
	}
	if len(t.subs) >= maxSubscriptions && s == nil {
		return nil, nil, nil, fault.New(fault.Exhausted, "there are already %d subscriptions (allowed: %d): unsubscribe from one first", len(t.subs), maxSubscriptions)
	}
	at := &position{}
	if s != nil { // the earlier subscription has failed, and the new one continues at its position
		at = s.position
	}
	t.lastID++
	ctx, cancel := context.WithCancel(t.ctx)
	s = &subscription{id: fmt.Sprintf("s%d", t.lastID), name: name, position: at, stop: cancel}
	t.subs[key] = s
	options := client.SubscribeOptions{
		Name: name, Store: at,
		Event: func(_ context.Context, e client.Event) error { t.inbox.add(s.id, e); return nil },
		Gap:   func(context.Context, client.Gap) error { t.inbox.addGap(s.id, s.name); return nil },
	}
	if len(arguments) > 0 {
		options.Arguments = arguments
	}
	ready, done := make(chan struct{}), make(chan error, 1)
	t.wg.Go(func() {
		defer cancel()
		running, err := t.client.Subscribe(ctx, options)
		if err == nil {
			close(ready)
			<-running.Done()
			err = running.Err()
		}
		t.mu.Lock()
		s.err = err
		t.mu.Unlock()
		if running != nil && err != nil {
			t.inbox.addNote(s.id, s.name, "the subscription has ended: "+fault.Public(err))
		}
		done <- err
	})
	return s, ready, done, nil
}

func (t *Tools) remove(s *subscription) {
	s.stop()
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.subs, func(_ string, other *subscription) bool { return other == s })
}

// Unsubscribe implements [eventtools.Source].
func (t *Tools) Unsubscribe(_ context.Context, id string) (bool, error) {
	if id == "" {
		return false, fault.New(fault.Invalid, "subscription is missing")
	}
	t.mu.Lock()
	var found *subscription
	for _, s := range t.subs {
		if s.id == id {
			found = s
		}
	}
	t.mu.Unlock()
	if found == nil {
		return false, nil
	}
	t.remove(found)
	return true, nil
}

// checkRunning returns a NotFound error if the subscription with the given id is not running. An empty id stands for any subscription:
// the error then means that no subscription is running.
func (t *Tools) checkRunning(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var ids []string
	for _, s := range t.subs {
		if s.err != nil {
			continue
		}
		if id == "" || id == s.id {
			return nil
		}
		ids = append(ids, s.id)
	}
	if len(ids) == 0 {
		return fault.New(fault.NotFound, "there is no subscription: subscribe first")
	}
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	return fault.New(fault.NotFound, "there is no subscription %.64q (there are: %s)", id, strings.Join(ids, ", "))
}

func (s *source) Read(ctx context.Context, q eventtools.Query) (*eventtools.Events, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, q.Wait)
	defer cancel()
	tick := time.NewTicker(s.progressEvery)
	defer tick.Stop()
	if q.Wait > 0 {
		defer s.inbox.await(q.Subscription)()
	}
	for {
		changed := s.inbox.nextChange()
		if out := s.inbox.readUnread(q); !out.Empty() {
			return out, nil
		}
		if err := s.checkRunning(q.Subscription); err != nil { // without a running subscription, no event can arrive
			return nil, err
		}
		if q.Wait == 0 {
			return eventtools.NewEvents(q), nil
		}
		select {
		case <-changed:
		case <-tick.C:
			s.notifyProgress(ctx, time.Since(began), q.Wait)
		case <-ctx.Done():
			out := eventtools.NewEvents(q)
			// The time of the call is over. Look for unread events once more, because the client is not notified of events that arrive
			// while a call waits for them.
			if ctx.Err() == context.DeadlineExceeded {
				out = s.inbox.readUnread(q)
			}
			out.TimedOut = out.Empty()
			return out, nil
		}
	}
}

// notifyProgress tells the client how long the call has waited, if the client asked for progress notifications.
func (s *source) notifyProgress(ctx context.Context, waited, total time.Duration) {
	if token := s.req.Params.GetProgressToken(); token != nil {
		_ = s.req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: waited.Seconds(), Total: total.Seconds(), Message: eventtools.ProgressMessage,
		})
	}
}

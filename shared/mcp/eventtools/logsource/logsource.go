// Package logsource serves the event tools at the MCP endpoint, from the server's event log. It keeps nothing between two calls: a
// subscription is a text that the model holds, so that any instance can serve each call.
package logsource

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/mcp/streams"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

type tools struct {
	streams *streams.Streams
	names   []string
	listed  [][]byte // the entries of tools/list, encoded once
}

// New returns the event tools that read the server's event log. While a call of wait_for_event waits, it counts as an open stream of the
// caller.
func New(st *streams.Streams) events.Tools {
	h := &tools{streams: st}
	for _, t := range eventtools.Tools(false) {
		h.names, h.listed = append(h.names, t.Name), append(h.listed, jsonrpc.Encode(t))
	}
	return h
}

func (h *tools) Instructions() string { return eventtools.Instructions }

func (h *tools) ListEntries() [][]byte { return h.listed }

func (h *tools) Has(name string) bool { return slices.Contains(h.names, name) }

func (h *tools) Call(ctx context.Context, c *method.Call) (method.Result, error) {
	tool, err := c.RequiredString("name")
	if err != nil {
		return method.Result{}, err
	}
	arguments, err := c.Arguments()
	if err != nil {
		return method.Result{}, err
	}
	if !h.Has(tool) {
		return method.Result{}, method.InvalidParams("unknown tool %s", method.Clip(tool))
	}
	out, err := eventtools.Call(ctx, &source{h, c}, tool, arguments)
	switch {
	case err == nil:
		text := jsonrpc.Encode(out)
		b := jsonrpc.AppendString([]byte(`"content":[{"type":"text","text":`), string(text))
		b = append(append(b, `}],"structuredContent":`...), text...)
		return method.Result{Members: [][]byte{b}}, nil
	case isCorrectable(err):
		b := jsonrpc.AppendString([]byte(`"content":[{"type":"text","text":`), fault.Public(err))
		return method.Result{Members: [][]byte{append(b, `}],"isError":true`...)}}, nil
	}
	return method.Result{}, err
}

// isCorrectable reports whether a model can avoid an error if it calls the tool with other arguments. A missing scope is not correctable,
// because the client has to request the scope, not the model.
func isCorrectable(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound, fault.Unsupported, fault.Unprocessable, fault.TooLarge:
		return true
	case fault.Forbidden:
		return !auth.LacksScope(err)
	}
	return false
}

// source is the [eventtools.Source] of one tool call.
type source struct {
	*tools
	call *method.Call
}

func (h *source) EventTypes(ctx context.Context) (all []eventtools.EventType, err error) {
	cat, err := h.streams.Catalogs.CatalogOf(ctx, h.call.Principal)
	if err != nil {
		return nil, err
	}
	for _, x := range cat.Entries() {
		if x.PollAllowed() && x.Access.VisibleTo(h.call.Principal) {
			all = append(all, eventtools.EventType{Name: x.Name, Description: x.Description, Arguments: x.InputSchema()})
		}
	}
	return all, nil
}

func (h *source) Subscribe(ctx context.Context, name string, arguments json.RawMessage) (string, error) {
	s, err := h.find(ctx, h.call.Principal, name, arguments)
	if err != nil {
		return "", err
	}
	if len(s.Arguments) > maxHandleArguments {
		return "", fault.New(fault.Invalid, "the arguments have %d bytes (allowed: %d)", len(s.Arguments), maxHandleArguments)
	}
	page, err := h.streams.Feeds.Poll(h.call.WithToken(ctx), stream.PollRequest{Workspace: h.call.Principal.Workspace, Principal: h.call.Principal.ID, Pattern: s.Pattern})
	if err != nil {
		return "", err
	}
	return handle{s.Entry.Name, s.Arguments, page.Cursor}.String(), nil
}

// Unsubscribe only checks that the text is a well-formed subscription, because the server does not store subscriptions.
func (h *source) Unsubscribe(_ context.Context, subscription string) (bool, error) {
	_, err := parseHandle(subscription)
	return err == nil, err
}

// find returns the selection of events for an event type and arguments. If the caller may not see the event type, it returns the same
// error as for an unknown event type.
func (h *tools) find(ctx context.Context, p auth.Principal, name string, arguments json.RawMessage) (match.Selection, error) {
	cat, err := h.streams.Catalogs.CatalogOf(ctx, p)
	if err != nil {
		return match.Selection{}, err
	}
	if entry := cat.ByName(name); entry != nil && !entry.Access.VisibleTo(p) {
		return match.Selection{}, events.UnknownEvent(name)
	}
	return events.Choose(cat, name, arguments, p, spec.ModePoll)
}

// handle is a subscription as a model holds it: NAME~ARGUMENTS~CURSOR, with the arguments in base64url, for example ci.deploy~~AAAA. A
// handle grants no rights, because each call checks the caller's access to the events again. The cursor is encrypted.
type handle struct {
	name      string
	arguments json.RawMessage // nil for none
	cursor    string
}

const (
	handleSeparator    = "~" // does not occur in names of event types or in base64url
	maxHandle          = 8 << 10
	maxHandleArguments = 2 << 10
)

func (h handle) String() string {
	arguments := ""
	if string(h.arguments) != "{}" {
		arguments = opaque.Encode(h.arguments)
	}
	return strings.Join([]string{h.name, arguments, h.cursor}, handleSeparator)
}

func errNoHandle() error {
	return fault.New(fault.Invalid, "this is not a subscription that subscribe or a later call returned; copy it exactly, or subscribe again")
}

func parseHandle(text string) (h handle, err error) {
	parts := strings.Split(text[:min(len(text), maxHandle)], handleSeparator)
	if text == "" {
		return h, fault.New(fault.Invalid, "subscription is missing")
	}
	if len(text) > maxHandle || len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return h, errNoHandle()
	}
	if parts[1] != "" {
		h.arguments, err = opaque.Decode(parts[1])
		if err != nil || len(h.arguments) > maxHandleArguments || !json.Valid(h.arguments) || h.arguments[0] != '{' {
			return handle{}, errNoHandle()
		}
	}
	h.name, h.cursor = parts[0], parts[2]
	return h, nil
}

// reading is a tool call that reads events, with the result so far.
type reading struct {
	match.Selection

	out    *eventtools.Events
	handle handle // the subscription, with the cursor after the last event in out
	query  eventtools.Query
}

func (h *source) Read(ctx context.Context, q eventtools.Query) (*eventtools.Events, error) {
	r, err := h.poll(ctx, q)
	if err == nil && r.out.Empty() && q.Wait > 0 {
		err = h.wait(r)
	}
	if err != nil {
		return nil, err
	}
	r.out.Subscription = r.handle.String()
	return r.out, nil
}

func (h *source) poll(ctx context.Context, q eventtools.Query) (*reading, error) {
	at, err := parseHandle(q.Subscription)
	if err != nil {
		return nil, err
	}
	r := &reading{out: eventtools.NewEvents(q), handle: at, query: q}
	if r.Selection, err = h.find(ctx, h.call.Principal, at.name, at.arguments); err != nil {
		return nil, err
	}
	page, err := h.streams.Feeds.Poll(h.call.WithToken(ctx), stream.PollRequest{
		Workspace: h.call.Principal.Workspace, Principal: h.call.Principal.ID, Pattern: r.Pattern, Cursor: at.cursor, Wants: r.Wants, Most: q.Limit, Bytes: eventtools.MaxBytes,
	})
	if fault.Is(err, fault.Invalid) { // this server did not issue the cursor
		return nil, errNoHandle()
	}
	if err != nil {
		return nil, err
	}
	for _, ev := range page.Events {
		if _, err := r.add(ev); err != nil {
			return nil, err
		}
	}
	r.handle.cursor, r.out.More, r.out.Gap = page.Cursor, page.More, page.Truncated
	return r, nil
}

// add adds an event to the result of the call. It reports false if the result is full.
func (r *reading) add(ev *event.Event) (bool, error) {
	data, err := r.RedactedData(ev)
	if err != nil {
		return false, err
	}
	return r.out.Add(eventtools.Event{ID: ev.ID, Name: ev.Name, URI: ev.URI, Time: ev.Timestamp(), Data: data}), nil
}

// wait waits for new events. Until it returns, the call counts as an open stream of the caller.
func (h *source) wait(r *reading) error {
	c := h.call
	ctx, leave := h.streams.Admission.Admit(c.Answer.W, c.Request.WithContext(c.ConnectionContext()), c)
	if leave == nil {
		c.Answer.Stop()
		return errAnswered
	}
	defer leave()
	limited, cancel := context.WithTimeout(ctx, r.query.Wait)
	defer cancel()
	c.Answer.Wait()
	err := h.await(limited, r)
	switch {
	case !r.out.Empty(): // do not lose the events because of err; if the error lasts, the next call returns it
		return nil
	case limited.Err() != nil: // out of time, or this instance shuts down; in both cases the model calls again
		r.out.TimedOut = true
		return nil
	}
	return err
}

// errAnswered means that the response has already been written.
var errAnswered = errors.New("mcp: the request was answered")

// await reads the subscription's feed until the result has an event or a gap, which means that events were lost, or until ctx ends.
func (h *source) await(ctx context.Context, r *reading) error {
	feed, err := h.streams.Feeds.Open(h.call.WithToken(ctx), stream.Request{
		Workspace: h.call.Principal.Workspace, Principal: h.call.Principal.ID, Patterns: []match.Pattern{r.Pattern}, Cursor: r.handle.cursor, Sole: true, Wants: r.Wants,
	})
	if err != nil {
		return err
	}
	defer feed.Close()
	began := time.Now()
	progress := time.NewTicker(eventtools.ProgressEvery)
	defer progress.Stop()
	for {
		if err := h.drain(ctx, feed, r); err != nil || !r.out.Empty() {
			return err
		}
		select {
		case <-feed.Ready():
		case <-progress.C:
			h.call.Answer.Progress(h.call, time.Since(began), int(r.query.Wait.Seconds()), eventtools.ProgressMessage)
			s, err := h.find(ctx, h.call.Principal, r.handle.name, r.handle.arguments)
			if err != nil { // the next call returns the error
				continue
			}
			if _, err := h.follow(ctx, feed, r, s); err != nil {
				return err
			}
			r.handle.cursor = feed.Cursor()
		case <-ctx.Done():
			return context.Cause(ctx) // the next call continues at the cursor in r.handle, which the last progress has updated
		}
	}
}

func (h *source) drain(ctx context.Context, feed *stream.Feed, r *reading) error {
	for {
		d, ok, err := feed.Poll(ctx)
		if err != nil || !ok {
			return err
		}
		cursor := d.Cursor
		if len(r.out.Events) == 0 { // check the caller's rights again, because the wait may have been long
			changed, err := h.recheck(ctx, feed, r)
			if err != nil {
				return err
			}
			if changed { // recheck has added partitions, which d.Cursor does not cover
				cursor = feed.Cursor()
			}
		}
		if d.Event != nil && r.Wants(d.Event) {
			if room, err := r.add(d.Event); err != nil || !room {
				return err
			}
		}
		r.out.Gap = r.out.Gap || d.Lost != ""
		r.handle.cursor = cursor
	}
}

// recheck checks the subscription against the caller's current credentials and the current catalog. It reports whether it added
// partitions of the event log to the feed.
func (h *source) recheck(ctx context.Context, feed *stream.Feed, r *reading) (changed bool, err error) {
	now, err := streams.Recheck(ctx, h.streams.Auth, h.call.Request.Header, h.call.Principal)
	if err != nil {
		return false, fault.Wrap(fault.Unauthenticated, err, "the caller's credentials are no longer valid")
	}
	s, err := h.find(ctx, now, r.handle.name, r.handle.arguments)
	if err != nil {
		return false, err
	}
	return h.follow(ctx, feed, r, s)
}

// follow makes a waiting call read the events of the selection s, which is new if the catalog has changed during the wait. If the event
// type has become ordered or unordered, its events go to other partitions of the event log. Then follow adds these partitions to the feed
// and returns true.
func (h *tools) follow(ctx context.Context, feed *stream.Feed, r *reading, s match.Selection) (changed bool, err error) {
	if changed = s.Pattern != r.Pattern; changed {
		if err := feed.Add(ctx, s.Pattern, h.streams.Feeds.PositionAfterChange(s.Pattern)); err != nil {
			return false, err
		}
	}
	r.Selection = s
	return changed, nil
}

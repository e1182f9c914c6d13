// Package check tries any server against the MCP Events extension (SEP-3415): it calls what a client
// calls, receives what a receiver gets, and says of each rule whether it held.
//
//	check.go     the run: which event type, in which order, and what its checks share
//	rules.go     the rules, with the section that each is in
//	refusals.go  the checks of what is refused in any mode
//	poll.go      the checks of polls
//	push.go      the checks of streams
//	webhook.go   the checks of webhook subscriptions
//	deliver.go   the checks of deliveries to an endpoint
//	conn.go      requests as revision 2026-07-28 has them, and streams
//	receiver.go  an endpoint for webhooks that answers as a rule needs it
//	report.go    the results as a table, JSON and JUnit
//
// It judges from outside and shares no code with the server for what it judges, but for the leaves that
// frame messages and verify signatures. A server is changed by it: subscriptions are made and
// ended, and the caller's command publishes events.
package check

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os/exec"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Options are what to check, and how.
type Options struct {
	// URL is the server's MCP endpoint, Key what it knows the caller by (Authorization: Bearer).
	URL, Key string
	// Agent names the program, as name/version.
	Agent string
	// Event is the event type to use, and Arguments, an object, what to subscribe with. Without an event it is the
	// first of the list that offers all modes.
	Event     string
	Arguments json.RawMessage
	// Publish has the server emit an event of that type which the arguments match. Without it what needs an event
	// is not testable.
	Publish func(ctx context.Context) error
	// Listen is the address of the receiver, 127.0.0.1:0 if empty. Receiver is the URL at which the server reaches it, if that
	// is another.
	Listen, Receiver string
	// Wait is how long a delivery, a retry or a heartbeat may take; 0 is 40 s.
	Wait time.Duration
	// Progress gets what is tried; may be nil.
	Progress func(text string)
}

// Shell is an Options.Publish that runs a command of the shell, whose output goes to out.
func Shell(command string, out io.Writer) func(context.Context) error {
	return func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd.Run()
	}
}

// checker is one run: what the checks of all modes share.
type checker struct {
	Options
	*results
	conn  *conn
	types []eventType
}

// eventType is an entry of events/list.
type eventType struct {
	Name          string          `json:"name"`
	Delivery      []string        `json:"delivery"`
	InputSchema   json.RawMessage `json:"inputSchema"`
	PayloadSchema json.RawMessage `json:"payloadSchema"`
}

// Run checks a server. The report is there unless the server cannot be reached at all, or serves no MCP Events: then the
// error says so, of kind fault.Unsupported, and the report has what could be seen.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Wait == 0 {
		o.Wait = 40 * time.Second
	}
	if len(o.Arguments) == 0 {
		o.Arguments = json.RawMessage("{}")
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if u, err := url.Parse(o.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fault.New(fault.Invalid, "%.200q is not the URL of a server (allowed: http or https, such as http://127.0.0.1:8080/mcp)", httpcall.Redact(o.URL))
	}
	if o.Publish != nil && o.Event == "" {
		return nil, fault.New(fault.Invalid, "which event type is published must be known: name it")
	}
	c := &checker{Options: o, results: newResults()}
	c.conn = &conn{url: o.URL, key: o.Key, agent: o.Agent, results: c.results, client: &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	without, err := c.discover(ctx)
	if err != nil {
		return nil, err
	}
	if without != "" {
		return c.report(httpcall.Redact(o.URL), "the server offers no MCP Events"), fault.New(fault.Unsupported, "%s serves no MCP Events: %s", httpcall.Redact(o.URL), without)
	}
	steps := []struct {
		what string
		do   func(context.Context)
	}{
		{"list the event types", c.list},
		{"send what must be refused", (&refusalCheck{c}).run},
		{"poll", c.inMode(spec.ModePoll, "polls", func(ctx context.Context, t eventType) { (&pollCheck{c, t}).run(ctx) })},
		{"open streams", c.inMode(spec.ModePush, "streams", func(ctx context.Context, t eventType) { (&pushCheck{c, t}).run(ctx) })},
		{"subscribe webhooks", c.inMode(spec.ModeWebhook, "webhooks", func(ctx context.Context, t eventType) { (&webhookCheck{subscriber{checker: c, t: t}}).run(ctx) })},
	}
	for _, s := range steps {
		o.Progress(s.what)
		if err := step(ctx, s.do); err != nil {
			if ctx.Err() != nil {
				return nil, fault.Wrap(fault.Unavailable, ctx.Err(), "check %s", httpcall.Redact(o.URL))
			}
			o.Progress(fmt.Sprintf("%s: %v", s.what, err))
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "check %s", httpcall.Redact(o.URL))
	}
	// No check looks at these.
	c.skip("it takes an operator to remove an event type or a right", ruleTerminated)
	c.skip("the server offers events", ruleUnoffered)
	return c.report(httpcall.Redact(o.URL), "the checks did not come to it"), nil
}

// stopped is the panic of a step that cannot go on, as tests have FailNow.
type stopped struct{ error }

// step does one, and returns why it did not go on to its end.
func step(ctx context.Context, do func(context.Context)) (err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(stopped)
			if !ok {
				panic(r)
			}
			err = e.error
		}
	}()
	do(ctx)
	return nil
}

// need is a value without which a step ends.
func need[T any](v T, err error) T {
	if err != nil {
		panic(stopped{err})
	}
	return v
}

// discover asks whether the server offers events, and returns why it does not.
func (c *checker) discover(ctx context.Context) (without string, err error) {
	a, err := c.conn.call(ctx, spec.MethodDiscover, map[string]any{})
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "reach %s", httpcall.Redact(c.URL))
	}
	if a.status == http.StatusUnauthorized || a.status == http.StatusForbidden {
		return "", fault.New(fault.Unauthenticated, "the server refuses the caller (HTTP %d): give a key", a.status)
	}
	var found struct {
		Capabilities struct {
			Extensions map[string]json.RawMessage `json:"extensions"`
			Events     json.RawMessage            `json:"events"` // where the sketch of the extension had it
		} `json:"capabilities"`
	}
	if a.result == nil || json.Unmarshal(a.result, &found) != nil {
		return fmt.Sprintf("it does not speak revision %s, for server/discover is answered with %s", spec.V20260728, a), nil
	}
	settings, offered := found.Capabilities.Extensions[spec.EventsExtension]
	if !offered {
		if found.Capabilities.Events == nil {
			return spec.EventsExtension + " is not in its capabilities", c.unoffered(ctx)
		}
		c.fail(ruleAdvertised, "events is in the capabilities itself, as the sketch had it, and %s is not in extensions", spec.EventsExtension)
		return "", nil
	}
	var members struct {
		ListChanged *bool `json:"listChanged"`
	}
	c.judge(ruleAdvertised, isObject(settings) && json.Unmarshal(settings, &members) == nil, "the settings are %s", clip(settings))
	return "", nil
}

// unoffered checks what holds for a server without events.
func (c *checker) unoffered(ctx context.Context) error {
	a, err := c.conn.call(ctx, spec.MethodEvents, map[string]any{})
	if err != nil {
		return err
	}
	c.judge(ruleUnoffered, a.code() == methodNotFound, "events/list is answered with %s", a)
	return nil
}

// methodNotFound is JSON-RPC's code.
const methodNotFound = -32601

// list reads the event types, page by page.
func (c *checker) list(ctx context.Context) {
	cursor, names := "", map[string]bool{}
	for range maxPages {
		params := map[string]any{}
		if cursor != "" {
			params["cursor"] = cursor
		}
		a := need(c.conn.call(ctx, spec.MethodEvents, params))
		var page struct {
			Events     []eventType `json:"events"`
			NextCursor string      `json:"nextCursor"`
		}
		if a.err != nil || json.Unmarshal(a.result, &page) != nil || page.Events == nil {
			c.fail(ruleList, "events/list is answered with %s", a)
			panic(stopped{fault.New(fault.Unavailable, "there is no list of event types")})
		}
		for _, t := range page.Events {
			c.descriptor(t, names[t.Name])
			names[t.Name] = true
		}
		c.types = append(c.types, page.Events...)
		if cursor = page.NextCursor; cursor == "" {
			c.judge(ruleList, len(c.types) > 0, "there is no event type for this caller")
			return
		}
	}
	c.fail(ruleList, "there are more than %d pages", maxPages)
}

// maxPages bounds a list.
const maxPages = 100

func (c *checker) descriptor(t eventType, twice bool) {
	modes := []string{spec.ModePoll, spec.ModePush, spec.ModeWebhook}
	unknown := slices.ContainsFunc(t.Delivery, func(m string) bool { return !slices.Contains(modes, m) })
	c.judge(ruleNames, t.Name != "" && !twice, "the name %q is empty or twice in the list", t.Name)
	c.judge(ruleModes, len(t.Delivery) > 0 && !unknown, "%s: delivery is %q", t.Name, t.Delivery)
	for what, schema := range map[string]json.RawMessage{"inputSchema": t.InputSchema, "payloadSchema": t.PayloadSchema} {
		_, err := compile(schema)
		c.judge(ruleSchemas, err == nil, "%s: %s: %v", t.Name, what, err)
	}
}

// pick is the event type for a mode: the one that was asked for, or else the first that offers all modes, or this one.
func (c *checker) pick(mode string) (eventType, bool) {
	offers := func(modes ...string) func(eventType) bool {
		return func(t eventType) bool {
			return (c.Event == "" || c.Event == t.Name) && !slices.ContainsFunc(modes, func(m string) bool { return !slices.Contains(t.Delivery, m) })
		}
	}
	i := slices.IndexFunc(c.types, offers(spec.ModePoll, spec.ModePush, spec.ModeWebhook))
	if i < 0 {
		i = slices.IndexFunc(c.types, offers(mode))
	}
	if i < 0 {
		return eventType{}, false
	}
	return c.types[i], true
}

// inMode is a step with an event type that offers a mode.
func (c *checker) inMode(mode, plural string, do func(context.Context, eventType)) func(context.Context) {
	return func(ctx context.Context) {
		if t, ok := c.pick(mode); ok {
			do(ctx, t)
		} else {
			c.skip("no event type offers "+plural, ofMode(mode)...)
		}
	}
}

// params are those of a subscription, and more.
func (c *checker) params(t eventType, more map[string]any) map[string]any {
	all := map[string]any{"name": t.Name, "arguments": c.Arguments}
	maps.Copy(all, more)
	return all
}

// emit has the server emit events. If it cannot, the rules are not testable, and the step ends.
func (c *checker) emit(ctx context.Context, n int, rules ...*Rule) {
	for range n {
		if err := c.Publish(ctx); err != nil {
			c.Progress("publish: " + err.Error())
			c.skip("the command that publishes failed", rules...)
			panic(stopped{err})
		}
	}
}

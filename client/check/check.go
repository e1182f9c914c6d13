// Package check tests any server against the specification of MCP Events (SEP-3415). It acts as a client and as a webhook endpoint, and
// reports for each rule of the specification whether the server follows it. A run changes the server: it creates and ends subscriptions,
// and a command of the caller publishes events.
//
// The checks share only the framing of messages and the verification of signatures with our server, so that they do not repeat a mistake
// of our server.
package check

import (
	"cmp"
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

// Options configure [Run].
type Options struct {
	// URL is the server's MCP endpoint. Key is the API key or access token, which is sent as Authorization: Bearer.
	URL, Key string
	Agent    string
	// Event is the name of the event type to subscribe to. If it is empty, Run checks each mode with the first event type that offers all
	// modes or, if there is no such type, with the first one that offers this mode. Arguments is a JSON object with the arguments of the
	// subscriptions.
	Event     string
	Arguments json.RawMessage
	// Publish makes the server emit an event of the type Event that matches Arguments. Some rules can be checked only with an event. If
	// Publish is nil, the report says that they are not testable.
	Publish func(ctx context.Context) error
	// Listen is the address on which the receiver of webhooks listens. The default is 127.0.0.1:0.
	Listen string
	// Receiver is the URL at which the server reaches the receiver of webhooks, for example the URL of a tunnel. By default, it is an
	// http URL with the address and port on which the receiver listens.
	Receiver string
	// Wait is how long to wait for a delivery, a retry or a heartbeat. 0 means 40 s.
	Wait time.Duration
	// Progress is called with the name of each step of the run, and with the error if a step ends early. It may be nil.
	Progress func(text string)
}

// Shell returns a function for [Options.Publish] that runs a shell command. The output of the command goes to out.
func Shell(command string, out io.Writer) func(context.Context) error {
	return func(ctx context.Context) error {
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Stdout, cmd.Stderr = out, out
		return cmd.Run()
	}
}

type checker struct {
	Options
	*results
	conn  *conn
	types []eventType
}

type eventType struct {
	Name          string          `json:"name"`
	Delivery      []string        `json:"delivery"`
	InputSchema   json.RawMessage `json:"inputSchema"`
	PayloadSchema json.RawMessage `json:"payloadSchema"`
}

// Run checks a server and returns a report. If it cannot reach the server, it returns no report.
//
// If the server does not offer MCP Events, Run returns a report and an error of kind fault.Unsupported. This report only has results for
// the rules that also apply to such a server.
func Run(ctx context.Context, o Options) (*Report, error) {
	o.Wait = cmp.Or(o.Wait, 40*time.Second)
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
		return nil, fault.New(fault.Invalid, "name the event type that the command publishes")
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
		return c.report(httpcall.Redact(o.URL), "the server offers no MCP Events"), fault.New(fault.Unsupported, "%s does not offer MCP Events: %s", httpcall.Redact(o.URL), without)
	}
	steps := []struct {
		what string
		do   func(context.Context)
	}{
		{"list the event types", c.list},
		{"send requests that must be refused", (&refusalCheck{c}).run},
		{"poll", c.useMode(spec.ModePoll, "polls", func(ctx context.Context, t eventType) { (&pollCheck{c, t}).run(ctx) })},
		{"open streams", c.useMode(spec.ModePush, "streams", func(ctx context.Context, t eventType) { (&pushCheck{c, t}).run(ctx) })},
		{"subscribe webhooks", c.useMode(spec.ModeWebhook, "webhooks", func(ctx context.Context, t eventType) { (&webhookCheck{subscriber{checker: c, t: t}}).run(ctx) })},
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
	c.skip("only an operator can remove an event type or a right", ruleTerminated)
	c.skip("the server offers events", ruleUnoffered)
	return c.report(httpcall.Redact(o.URL), "the checks ended before this rule"), nil
}

// stopped is the value of a panic that ends the current step of the run early, in the way that t.FailNow ends a test.
type stopped struct{ error }

// step calls the function do. If do panics with a value of type stopped, step returns the error in that value.
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

// need returns v if err is nil. Otherwise it ends the current step of the run.
func need[T any](v T, err error) T {
	if err != nil {
		panic(stopped{err})
	}
	return v
}

// discover checks whether the server offers MCP Events. If the server does not offer them, the result without is the reason, for example
// "it does not speak revision 2026-07-28". Otherwise it is an empty text.
func (c *checker) discover(ctx context.Context) (without string, err error) {
	a, err := c.conn.call(ctx, spec.MethodDiscover, map[string]any{})
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "reach %s", httpcall.Redact(c.URL))
	}
	if a.status == http.StatusUnauthorized || a.status == http.StatusForbidden {
		return "", fault.New(fault.Unauthenticated, "the server refuses the caller (HTTP %d): give a key with --key", a.status)
	}
	var found struct {
		Capabilities struct {
			Extensions map[string]json.RawMessage `json:"extensions"`
			Events     json.RawMessage            `json:"events"` // set by servers of the published profile
		} `json:"capabilities"`
	}
	if a.result == nil || json.Unmarshal(a.result, &found) != nil {
		return fmt.Sprintf("it does not speak revision %s: the answer to server/discover is %s", spec.V20260728, a), nil
	}
	settings, offered := found.Capabilities.Extensions[spec.EventsExtension]
	if !offered {
		if found.Capabilities.Events == nil {
			return spec.EventsExtension + " is not in its capabilities", c.checkUnoffered(ctx)
		}
		c.fail(ruleAdvertised, "the capabilities have events, as in the published profile, but extensions lacks %s", spec.EventsExtension)
		return "", nil
	}
	var members struct {
		ListChanged *bool `json:"listChanged"`
	}
	c.judge(ruleAdvertised, isObject(settings) && json.Unmarshal(settings, &members) == nil, "the settings are %s", clip(settings))
	return "", nil
}

func (c *checker) checkUnoffered(ctx context.Context) error {
	a, err := c.conn.call(ctx, spec.MethodEvents, map[string]any{})
	if err != nil {
		return err
	}
	c.judge(ruleUnoffered, a.code() == methodNotFound, "the answer to events/list is %s", a)
	return nil
}

const methodNotFound = -32601

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
			c.fail(ruleList, "the answer to events/list is %s", a)
			panic(stopped{fault.New(fault.Unavailable, "the server returned no list of event types")})
		}
		for _, t := range page.Events {
			c.judgeType(t, names[t.Name])
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

// maxPages limits how many pages of events/list are read, because a faulty server could send cursors without end.
const maxPages = 100

func (c *checker) judgeType(t eventType, twice bool) {
	modes := []string{spec.ModePoll, spec.ModePush, spec.ModeWebhook}
	unknown := slices.ContainsFunc(t.Delivery, func(m string) bool { return !slices.Contains(modes, m) })
	c.judge(ruleNames, t.Name != "" && !twice, "the name %q is empty or occurs twice in the list", t.Name)
	c.judge(ruleModes, len(t.Delivery) > 0 && !unknown, "%s: delivery is %q", t.Name, t.Delivery)
	for what, schema := range map[string]json.RawMessage{"inputSchema": t.InputSchema, "payloadSchema": t.PayloadSchema} {
		_, err := compile(schema)
		c.judge(ruleSchemas, err == nil, "%s: %s: %v", t.Name, what, err)
	}
}

// pick returns the event type with which to check a mode. If the options name an event type, it returns that one. Otherwise it returns
// the first event type that offers all modes or, if there is no such type, the first that offers this mode. If it finds no event type
// with the mode, it returns false.
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

// useMode returns a step that calls the function do with an event type that offers the mode. If there is no such event type, the step
// marks the rules of the mode as not testable, with a reason for the report. The parameter plural names the mode in the reason, for
// example "polls".
func (c *checker) useMode(mode, plural string, do func(context.Context, eventType)) func(context.Context) {
	return func(ctx context.Context) {
		if t, ok := c.pick(mode); ok {
			do(ctx, t)
		} else {
			c.skip("no event type offers "+plural, rulesOfMode(mode)...)
		}
	}
}

func (c *checker) makeParams(t eventType, more map[string]any) map[string]any {
	all := map[string]any{"name": t.Name, "arguments": c.Arguments}
	maps.Copy(all, more)
	return all
}

// emit makes the server emit n events. If Publish fails, emit marks the given rules as not testable, and ends the step.
func (c *checker) emit(ctx context.Context, n int, rules ...*Rule) {
	for range n {
		if err := c.Publish(ctx); err != nil {
			c.Progress("publish: " + err.Error())
			c.skip("the command that publishes failed", rules...)
			panic(stopped{err})
		}
	}
}

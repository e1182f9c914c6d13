package check

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// unknownEvent is the name of no event type.
const unknownEvent = "mcp-events-check.no-such-event"

// refusalCheck sends what must be refused in the modes without webhooks.
type refusalCheck struct{ *checker }

func (c *refusalCheck) run(ctx context.Context) {
	if method, t, ok := c.cheapest(); ok { // or else by webhooks
		c.unfit(t, func(params map[string]any) *answer { return c.ask(ctx, method, params) })
	}
	c.wrongMode(ctx)
}

// unfit asks for an event type that there is not, and with arguments that do not fit.
func (r *results) unfit(t eventType, ask func(params map[string]any) *answer) {
	a := ask(map[string]any{"name": unknownEvent, "arguments": map[string]any{}})
	r.refused(ruleUnknownEvent, a, "NotFound", "an unknown event type")
	bad := misfit(t.InputSchema)
	if bad == nil {
		r.skip("inputSchema takes all arguments that were thought of", ruleBadArguments)
		return
	}
	a = ask(map[string]any{"name": t.Name, "arguments": bad})
	r.refused(ruleBadArguments, a, "InvalidParams", "the arguments "+string(bad))
}

// cheapest is an event type with a method that refuses without leaving anything.
func (c *refusalCheck) cheapest() (string, eventType, bool) {
	if t, ok := c.pick(spec.ModePoll); ok && slices.Contains(t.Delivery, spec.ModePoll) {
		return spec.MethodEventsPoll, t, true
	}
	t, ok := c.pick(spec.ModePush)
	return spec.MethodEventsStream, t, ok
}

// ask sends what must be refused: a stream that opens all the same is closed.
func (c *refusalCheck) ask(ctx context.Context, method string, params map[string]any) *answer {
	if method != spec.MethodEventsStream {
		return need(c.conn.call(ctx, method, params))
	}
	return need(c.conn.openRefused(ctx, params, c.Wait))
}

// wrongMode asks an event type for a mode that it does not offer.
func (c *refusalCheck) wrongMode(ctx context.Context) {
	for mode, method := range map[string]string{spec.ModePoll: spec.MethodEventsPoll, spec.ModePush: spec.MethodEventsStream} {
		i := slices.IndexFunc(c.types, func(t eventType) bool { return !slices.Contains(t.Delivery, mode) && accepts(t.InputSchema, "{}") })
		if _, offered := c.pick(mode); i < 0 || !offered { // what no event type offers, the server may not know as a method
			continue
		}
		a := c.ask(ctx, method, map[string]any{"name": c.types[i].Name, "arguments": map[string]any{}})
		c.refused(ruleWrongMode, a, "Unsupported", method+" of "+c.types[i].Name)
		return
	}
	c.skip("no event type lacks polls or streams that another offers, or it needs arguments", ruleWrongMode)
}

// accepts reports whether arguments fit a schema.
func accepts(schema json.RawMessage, arguments string) bool {
	s, err := compile(schema)
	if err != nil {
		return false
	}
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader([]byte(arguments)))
	return err == nil && s.Validate(v) == nil
}

// misfit is arguments that do not fit a schema; nil if none was found.
func misfit(schema json.RawMessage) json.RawMessage {
	var members struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(schema, &members)
	candidates := []string{`{"mcp-events-check-unknown":true}`, `{}`}
	for name := range members.Properties {
		key, _ := json.Marshal(name) // a text
		for _, value := range []string{"true", "12.5", "null", "{}", `""`} {
			candidates = append(candidates, "{"+string(key)+":"+value+"}")
		}
	}
	if _, err := compile(schema); err != nil {
		return nil
	}
	for _, arguments := range candidates {
		if !accepts(schema, arguments) {
			return json.RawMessage(arguments)
		}
	}
	return nil
}

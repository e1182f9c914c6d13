package check

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// unknownEvent is a name that no server gives to an event type.
const unknownEvent = "mcp-events-check.no-such-event"

// refusalCheck sends requests that must be refused, in the modes without webhooks.
type refusalCheck struct{ *checker }

func (c *refusalCheck) run(ctx context.Context) {
	if method, t, ok := c.chooseCheapest(); ok { // otherwise webhookCheck does it
		c.sendUnfit(t, func(params map[string]any) *answer { return c.ask(ctx, method, params) })
	}
	c.checkWrongMode(ctx)
}

// sendUnfit asks for an unknown event type, and for a known event type with invalid arguments.
func (r *results) sendUnfit(t eventType, ask func(params map[string]any) *answer) {
	a := ask(map[string]any{"name": unknownEvent, "arguments": map[string]any{}})
	r.judgeRefusal(ruleUnknownEvent, a, "NotFound", "an unknown event type")
	bad := makeMisfit(t.InputSchema)
	if bad == nil {
		r.skip("inputSchema allows all arguments that the check can construct", ruleBadArguments)
		return
	}
	a = ask(map[string]any{"name": t.Name, "arguments": bad})
	r.judgeRefusal(ruleBadArguments, a, "InvalidParams", "the arguments "+string(bad))
}

// chooseCheapest returns an event type and a method for it that leaves no subscription behind.
func (c *refusalCheck) chooseCheapest() (string, eventType, bool) {
	if t, ok := c.pick(spec.ModePoll); ok && slices.Contains(t.Delivery, spec.ModePoll) {
		return spec.MethodEventsPoll, t, true
	}
	t, ok := c.pick(spec.ModePush)
	return spec.MethodEventsStream, t, ok
}

// ask sends a request that must be refused. If a stream opens nevertheless, ask closes it.
func (c *refusalCheck) ask(ctx context.Context, method string, params map[string]any) *answer {
	if method != spec.MethodEventsStream {
		return need(c.conn.call(ctx, method, params))
	}
	return need(c.conn.openRefused(ctx, params, c.Wait))
}

// checkWrongMode asks an event type for a mode that it does not offer.
func (c *refusalCheck) checkWrongMode(ctx context.Context) {
	for mode, method := range map[string]string{spec.ModePoll: spec.MethodEventsPoll, spec.ModePush: spec.MethodEventsStream} {
		i := slices.IndexFunc(c.types, func(t eventType) bool { return !slices.Contains(t.Delivery, mode) && accepts(t.InputSchema, "{}") })
		if _, offered := c.pick(mode); i < 0 || !offered { // if no event type offers the mode, the server may not have the method
			continue
		}
		a := c.ask(ctx, method, map[string]any{"name": c.types[i].Name, "arguments": map[string]any{}})
		c.judgeRefusal(ruleWrongMode, a, "Unsupported", method+" of "+c.types[i].Name)
		return
	}
	c.skip("all event types offer the same modes without webhooks, or need arguments", ruleWrongMode)
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

// makeMisfit returns arguments that do not match a schema, or nil if it cannot find any.
func makeMisfit(schema json.RawMessage) json.RawMessage {
	var members struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	_ = json.Unmarshal(schema, &members)
	candidates := []string{`{"mcp-events-check-unknown":true}`, `{}`}
	for name := range members.Properties {
		key, _ := json.Marshal(name)
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

package conversation

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"

	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// URIs of the events that messages become.
const (
	UserMessageURI       = "event://conversation/user-message"
	AssistantResponseURI = "event://conversation/assistant-response"
)

func uriOf(kind Kind) string {
	if kind == AssistantResponse {
		return AssistantResponseURI
	}
	return UserMessageURI
}

// CheckCatalog checks that a catalog declares the events of conversations, each with an access rule. Without one,
// everyone with permission to read events could read the messages of others.
func CheckCatalog(cat *catalog.Catalog, e rules.Events) error {
	for _, kind := range listKinds(e.UserMessage, e.AssistantResponse) {
		if err := checkEntry(cat, kind); err != nil {
			return err
		}
	}
	return nil
}

func checkEntry(cat *catalog.Catalog, kind Kind) error {
	uri := uriOf(kind)
	entry, _, ok := cat.Match(uri)
	switch {
	case !ok:
		return fault.New(fault.Invalid, "conversation: events: the catalog declares no event type with the URI %s", uri)
	case entry.Access == nil || len(entry.Access.Scopes)+len(entry.Access.Claims) == 0:
		return fault.New(fault.Invalid, "conversation: events: the event type %s needs an access rule, because it carries what people say", entry.Name)
	}
	return nil
}

// eventsProvider returns a provider that publishes messages as events, so that callers consent to it like to any
// other. It returns nil if no messages are published.
func (s *Service) eventsProvider(e rules.Events) *provider {
	published := listKinds(e.UserMessage, e.AssistantResponse)
	if len(published) == 0 {
		return nil
	}
	return &provider{
		name: rules.EventsProvider, workspace: e.Workspace, kinds: published, to: destination("events"),
		title:       "Events",
		description: "Messages become events of this server. Anyone whom the operator permits can subscribe to them.",
		ask: func(ctx context.Context, c Caller, m *Message, _ string) (json.RawMessage, error) {
			return json.RawMessage(`{}`), s.publish(ctx, c, m)
		},
	}
}

// publish publishes a message as an event, without the history, because those messages were events already.
func (s *Service) publish(ctx context.Context, c Caller, m *Message) error {
	if s.options.Publisher == nil || s.options.Catalogs == nil {
		return failure{Internal}
	}
	cat, err := s.options.Catalogs.Catalog(ctx, c.Principal.Workspace)
	if err == nil {
		err = checkEntry(cat, m.Kind)
	}
	if err != nil {
		s.options.Log.ErrorContext(ctx, "conversation message not published", "error", err)
		return failure{Refused}
	}
	data := jsonrpc.AppendString([]byte(`{"messageId":`), m.ID)
	data = jsonrpc.AppendString(append(data, `,"content":`...), m.Content)
	data = append(jsonrpc.AppendString(append(data, `,"principal":`...), c.Principal.ID), '}')
	entry, _, _ := cat.Match(uriOf(m.Kind))
	if entry.ValidatePayload(data) != nil { // do not log the error, because it quotes the message
		return failure{Malformed}
	}
	err = s.options.Publisher.Publish(ctx, c.Principal, publish.Input{URI: uriOf(m.Kind), ID: eventID(c, m), Data: data})
	switch {
	case err == nil:
		return nil
	case fault.Is(err, fault.Unavailable):
		return failure{Unreachable}
	}
	return failure{Refused}
}

// eventID returns the event's id. It is the same if a message is sent again.
func eventID(c Caller, m *Message) string {
	b, _ := json.Marshal([]string{string(m.Kind), c.Principal.Workspace, c.Principal.ID, m.ID}) // strings
	h := sha256.Sum256(b)
	return "conv_" + base64.RawURLEncoding.EncodeToString(h[:])
}

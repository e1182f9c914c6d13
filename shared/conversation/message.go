package conversation

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// The limits of a message. They are in bytes, except for maxTurns. The error for a message over a limit has the kind fault.TooLarge, and
// a [fault.Limit] as its data.
const (
	maxMessageID = 256
	MaxContent   = 64 << 10
	maxTurns     = 100
	maxHistory   = 96 << 10 // all previous messages in the history together
	// maxEncoded limits the size of the message as JSON, so that it fits into an event and into a queue message.
	maxEncoded = 192 << 10
)

// Kind is a kind of message in a conversation. Each kind has its own MCP method.
type Kind string

// The kinds of messages: a message that the user wrote, and a response of the assistant.
const (
	UserMessage       Kind = "userMessage"
	assistantResponse Kind = "assistantResponse"
)

// Kinds lists all kinds of messages.
var Kinds = []Kind{UserMessage, assistantResponse}

// Method returns the MCP method for messages of this kind, for example conversation/userMessage.
func (k Kind) Method() string { return "conversation/" + string(k) }

// Message is a message that a client sends. It has the params of conversation/userMessage or conversation/assistantResponse.
type Message struct {
	Kind Kind `json:"-"`
	// ID is the message's id, which the client chooses. If the client sends the message again with the same ID, the message's event has
	// the same id too.
	ID      string `json:"messageId"`
	Content string `json:"content"`
	History []Turn `json:"recentHistory,omitempty"` // oldest first
}

// Turn is an earlier message of the same conversation.
type Turn struct {
	Role    string `json:"role"` // "user" or "assistant"
	Content string `json:"content"`
}

// Parse parses the params of a message, which must be valid JSON, and ignores unknown members. Its errors have the kind fault.Invalid or
// fault.TooLarge, and do not quote the message.
func Parse(kind Kind, params json.RawMessage) (*Message, error) {
	m := &Message{Kind: kind}
	if len(params) == 0 || params[0] != '{' {
		return nil, fault.New(fault.Invalid, "params must be an object")
	}
	var err error
	if m.ID, err = parseText(params, "messageId", maxMessageID); err != nil {
		return nil, err
	}
	if m.ID == "" {
		return nil, fault.New(fault.Invalid, "messageId must not be empty")
	}
	if m.Content, err = parseText(params, "content", MaxContent); err != nil {
		return nil, err
	}
	if m.History, err = parseHistory(params); err != nil {
		return nil, err
	}
	if len(m.Params(nil)) > maxEncoded {
		return nil, tooLarge("message", maxEncoded)
	}
	return m, nil
}

func parseText(object json.RawMessage, name string, most int) (string, error) {
	raw, err := findOnce(object, name)
	if err != nil {
		return "", err
	}
	s, ok := jsonrpc.String(raw)
	switch {
	case !ok:
		return "", fault.New(fault.Invalid, "%s must be a string", name)
	case !utf8.ValidString(s):
		return "", fault.New(fault.Invalid, "%s is not valid UTF-8", name)
	case len(s) > most:
		return "", tooLarge(name, most)
	}
	return s, nil
}

// findOnce returns a member of an object. It returns an error if several members have the same name, because a provider might read a
// different one of them than this server.
func findOnce(object json.RawMessage, name string) (found json.RawMessage, err error) {
	n := 0
	for key, value := range jsonrpc.Members(object) {
		if string(key) == name {
			found = value
			n++
		}
	}
	if n > 1 {
		return nil, fault.New(fault.Invalid, "%s appears twice", name)
	}
	return found, nil
}

func parseHistory(params json.RawMessage) ([]Turn, error) {
	raw, err := findOnce(params, "recentHistory")
	switch {
	case err != nil:
		return nil, err
	case raw == nil || string(raw) == "null":
		return nil, nil
	case raw[0] != '[':
		return nil, fault.New(fault.Invalid, "recentHistory must be an array")
	}
	var turns []Turn
	size := 0
	for one := range jsonrpc.Elements(raw) {
		if len(turns) == maxTurns {
			return nil, tooLarge("recentHistory", maxTurns)
		}
		if one[0] != '{' {
			return nil, fault.New(fault.Invalid, "recentHistory must hold objects")
		}
		var t Turn
		if t.Role, err = parseText(one, "role", maxMessageID); err == nil && t.Role != "user" && t.Role != "assistant" {
			err = fault.New(fault.Invalid, "role must be user or assistant")
		}
		if err == nil {
			t.Content, err = parseText(one, "content", maxHistory)
		}
		if err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "recentHistory")
		}
		if size += len(t.Content); size > maxHistory {
			return nil, tooLarge("recentHistory", maxHistory)
		}
		turns = append(turns, t)
	}
	return turns, nil
}

func tooLarge(what string, most int) error {
	return fault.New(fault.TooLarge, "the limit %s of %d is exceeded", what, most).AtLimit(what, float64(most))
}

// Params encodes the message as the params that a context provider gets. It has only the members that [Parse] knows, so unknown members
// of the client's params are left out. The parameter meta has additional members of _meta as JSON without the outer braces. It may be
// nil.
func (m *Message) Params(meta []byte) json.RawMessage {
	b := jsonrpc.Encode(m)
	if len(meta) > 0 {
		b = append(append(append(b[:len(b)-1], `,"_meta":{`...), meta...), "}}"...)
	}
	return b
}

const (
	userMessageURI       = "event://conversation/user-message"
	assistantResponseURI = "event://conversation/assistant-response"
)

func uriOf(kind Kind) string {
	if kind == assistantResponse {
		return assistantResponseURI
	}
	return userMessageURI
}

// LogPartitions returns the partitions of the event log that may have messages of a workspace's conversations. The result originals has
// the partitions of the messages' URIs. The log also copies events to partitions for readers of URI patterns, such as
// event://conversation/*. The result copies has the partitions of such patterns that match the messages' URIs.
func LogPartitions(log *eventlog.Log, workspace string) (copies, originals []eventlog.Partition) {
	keys := []string{"event://conversation/**", "event://conversation/*", "event://*/*"}
	for _, kind := range Kinds {
		uri := uriOf(kind)
		keys = append(keys, "event://*"+uri[strings.LastIndexByte(uri, '/'):])
		originals = append(originals, log.PartitionsOf(workspace, uri, true)...)
	}
	for _, key := range keys {
		copies = append(copies, eventlog.PatternPartitions(workspace, key)...)
	}
	return copies, originals
}

// IsBy reports whether an event is a conversation message that the principal has sent.
func IsBy(e *event.Event, principal string) bool {
	if e.URI != userMessageURI && e.URI != assistantResponseURI {
		return false
	}
	by, ok := jsonrpc.String(jsonrpc.Member(e.Data, "principal"))
	return ok && by == principal
}

// CheckCatalog returns an error unless the catalog declares an event type with an access rule for each kind of message that is published.
// Without an access rule, everyone with permission to read events could read the messages of others.
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

// eventsProvider returns the built-in provider that publishes messages as events. It is a provider, so that callers can consent to it
// like to any other provider. It returns nil if no messages are published.
func (s *Service) eventsProvider(e rules.Events) *provider {
	published := listKinds(e.UserMessage, e.AssistantResponse)
	if len(published) == 0 {
		return nil
	}
	return &provider{
		name: rules.EventsProvider, workspace: e.Workspace, kinds: published, to: hashStrings("events"),
		title:       "Events",
		description: "Messages become events of this server. Anyone whom the operator permits can subscribe to them.",
		ask: func(ctx context.Context, c api.Client, m *Message, _ string) (json.RawMessage, error) {
			return json.RawMessage(`{}`), s.publish(ctx, c, m)
		},
	}
}

// publish publishes a message as an event. The event leaves out the message's history, because the messages in it were published before.
func (s *Service) publish(ctx context.Context, c api.Client, m *Message) error {
	if s.options.Publisher == nil || s.options.Catalogs == nil {
		return failure{reason: internal}
	}
	cat, err := s.options.Catalogs.Catalog(ctx, c.Principal.Workspace)
	if err == nil {
		err = checkEntry(cat, m.Kind)
	}
	if err != nil {
		s.options.Log.ErrorContext(ctx, "conversation message not published", "error", err)
		return failure{reason: refused}
	}
	data := jsonrpc.AppendString([]byte(`{"messageId":`), m.ID)
	data = jsonrpc.AppendString(append(data, `,"content":`...), m.Content)
	data = append(jsonrpc.AppendString(append(data, `,"principal":`...), c.Principal.ID), '}')
	entry, _, _ := cat.Match(uriOf(m.Kind))
	if entry.ValidatePayload(data) != nil { // do not log the error, because it quotes the message
		return failure{reason: malformed}
	}
	err = s.options.Publisher.Publish(ctx, c.Principal, publish.Input{URI: uriOf(m.Kind), ID: eventID(c, m), Data: data})
	switch {
	case err == nil:
		return nil
	case fault.Is(err, fault.Unavailable):
		return failure{reason: unreachable}
	}
	return failure{reason: refused}
}

// eventID returns the id of the event for a message. If the client sends the message again, the id is the same.
func eventID(c api.Client, m *Message) string {
	return "conv_" + hashStrings(string(m.Kind), c.Principal.Workspace, c.Principal.ID, m.ID)
}

// maxMemories limits how many memories the server accepts in one provider's response; see [Memory].
const maxMemories = 100

// Context is the merged context of all providers for a message. Clients receive it as a ConversationContextResult.
type Context struct {
	Text     string   // each provider's text under a heading; see [merge]
	Memories []Memory // sorted by relevance
	Cut      bool     // whether a part was left out or shortened because it was too large
}

// Memory is a piece of information that a provider has stored, for example a fact about the user.
type Memory struct {
	Content   string  `json:"content"`
	Relevance float64 `json:"relevance"` // 0 to 1
	// Source is the provider's name. If the provider names a source of the memory, that source follows after a colon, for example "crm:
	// notes".
	Source string `json:"source"`
}

// Members returns the context as members of a JSON object, without the braces. It returns nil if the context is empty.
func (c *Context) Members() []byte {
	type structured struct {
		Memories []Memory `json:"memories"`
	}
	out := struct {
		Text       string      `json:"context,omitempty"`
		Structured *structured `json:"structuredContext,omitempty"`
	}{Text: c.Text}
	if len(c.Memories) > 0 {
		out.Structured = &structured{c.Memories}
	}
	if c.Text == "" && out.Structured == nil {
		return nil
	}
	b := jsonrpc.Encode(out)
	return b[1 : len(b)-1]
}

// answer is the context in one provider's response.
type answer struct {
	text     string
	memories []Memory // sorted by relevance; Source is as the provider sent it
	cut      bool
}

var errMalformed = fault.New(fault.Unprocessable, "the value is not a context")

// parseAnswer parses a provider's response. The caller must pass valid JSON, and parseAnswer checks everything else. It skips memories
// without content or without a finite relevance.
func parseAnswer(raw json.RawMessage) (a answer, err error) {
	if len(raw) == 0 || raw[0] != '{' {
		return a, errMalformed
	}
	if given := jsonrpc.Member(raw, "context"); given != nil {
		s, ok := jsonrpc.String(given)
		if !ok {
			return a, errMalformed
		}
		a.text = clean(s)
	}
	structured := jsonrpc.Member(raw, "structuredContext")
	if structured == nil {
		return a, nil
	}
	memories := jsonrpc.Member(structured, "memories")
	if structured[0] != '{' || memories != nil && memories[0] != '[' {
		return a, errMalformed
	}
	for one := range jsonrpc.Elements(memories) {
		m, ok := parseMemory(one)
		switch {
		case !ok:
		case len(a.memories) == maxMemories:
			a.cut = true
		default:
			a.memories = append(a.memories, m)
		}
	}
	slices.SortStableFunc(a.memories, compareRelevance)
	return a, nil
}

func compareRelevance(a, b Memory) int { return cmp.Compare(b.Relevance, a.Relevance) }

func parseMemory(raw json.RawMessage) (m Memory, ok bool) {
	content, _ := jsonrpc.String(jsonrpc.Member(raw, "content"))
	m.Content = clean(content)
	relevance, err := strconv.ParseFloat(string(jsonrpc.Member(raw, "relevance")), 64)
	if m.Content == "" || err != nil || math.IsNaN(relevance) || math.IsInf(relevance, 0) {
		return m, false
	}
	m.Relevance = min(max(relevance, 0), 1)
	source, _ := jsonrpc.String(jsonrpc.Member(raw, "source"))
	m.Source = clip(strings.Join(strings.Fields(clean(source)), " "), maxSource)
	return m, true
}

// maxSource is the maximum length of a memory's source in a provider's response, in bytes.
const maxSource = 200

// clean normalizes the line breaks in a provider's text. It removes control characters, and white space at the beginning and the end.
func clean(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r == '\r' || r == '\v' || r == '\f' || r == '\u0085' || r == '\u2028' || r == '\u2029':
			return '\n'
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
	return strings.TrimSpace(s)
}

// clip cuts a valid UTF-8 text to at most the given number of bytes, without splitting a character.
func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

type part struct {
	name, title string
	answer
}

// merge combines the providers' contexts into one context of at most the given size in bytes. The most important provider must come
// first. A text that does not fit is cut at the end, and a memory that does not fit is left out.
//
// Each provider's text is under a heading with the provider's name, and each line of the text begins with "> ". A heading does not begin
// with "> ", so a provider cannot imitate the heading of another one.
func merge(parts []part, most int) *Context {
	c := &Context{}
	var text strings.Builder
	used := 0
	for _, p := range parts {
		c.Cut = c.Cut || p.cut
		if p.text != "" {
			block, whole := quotePart(p, most-used-len(between))
			if block != "" {
				if text.Len() > 0 {
					text.WriteString(between)
				}
				text.WriteString(block)
				used += len(block) + len(between)
			}
			c.Cut = c.Cut || !whole
		}
		for _, m := range p.memories {
			if m.Source = p.source(m.Source); used+len(m.Content)+len(m.Source) > most {
				c.Cut = true
				continue
			}
			used += len(m.Content) + len(m.Source)
			c.Memories = append(c.Memories, m)
		}
	}
	c.Text = text.String()
	slices.SortStableFunc(c.Memories, compareRelevance)
	return c
}

const (
	between = "\n\n"
	// leastText is the minimum length in bytes of a provider's text after it was cut. If there is less room, the text is left out.
	leastText = 32
)

// source returns the source of a memory in the merged context, for example "crm: notes" if the provider crm names the
// source "notes". Names of providers contain no colon, so a provider cannot imitate another one.
func (p part) source(own string) string {
	if own == "" {
		return p.name
	}
	return p.name + ": " + own
}

// quotePart returns a provider's text under its heading, in at most room bytes. The result whole is false if the text does not fit and
// quotePart had to cut it. If not even the beginning of the text fits, block is "".
func quotePart(p part, room int) (block string, whole bool) {
	heading := "Context from " + p.name
	if p.title != "" {
		heading += " (" + p.title + ")"
	}
	block = heading + ":\n" + quoteLines(p.text)
	if len(block) <= room {
		return block, true
	}
	heading += ", cut at the end:\n"
	room -= len(heading)
	for size := room; size >= leastText; {
		block = quoteLines(strings.TrimSpace(clip(p.text, size)))
		if len(block) <= room {
			return heading + block, false
		}
		size -= len(block) - room
	}
	return "", false
}

func quoteLines(text string) string { return "> " + strings.ReplaceAll(text, "\n", "\n> ") }

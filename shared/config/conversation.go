package config

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config/strictyaml"
)

// Limits of the section "conversation".
const (
	// MaxProviders is the largest number of providers.
	MaxProviders = 20
	// MinBudget and MaxBudget bound the time that providers have.
	MinBudget, MaxBudget = 10 * time.Millisecond, 10 * time.Second
	// MinContext and MaxContext bound the size of the merged context in bytes. With every
	// byte escaped in JSON, the largest still fits into an item of the store.
	MinContext, MaxContext = 256, 48 << 10
	// maxPriority bounds the priority of a provider in both directions.
	maxPriority = 1000
)

// EventsProvider is the name under which callers consent that what they say is
// published as an event; no provider can have it.
const EventsProvider = "events"

// PrincipalHeader tells a provider at a URL whose message it gets.
const PrincipalHeader = "X-Mcp-Principal"

// Conversation is the section "conversation": who is told what is said in the
// conversations of clients, and gives context to them.
type Conversation struct {
	// UserMessages and AssistantResponses are what clients are asked to tell.
	UserMessages, AssistantResponses bool
	// Budget is the time for all providers together; 500 ms by default.
	Budget time.Duration
	// MaxContext is the size of the merged context in bytes; 32 KiB by default.
	MaxContext int
	// Providers give context, the most important one first.
	Providers []Provider
	// Events are the events that messages become.
	Events ConversationEvents
}

// Enabled reports whether clients are asked to tell anything.
func (c Conversation) Enabled() bool { return c.UserMessages || c.AssistantResponses }

// Provider gives context to conversations. Either URL or Backend is set.
type Provider struct {
	// Name is unique in the workspace: letters, digits, - and _, at most 64.
	Name string
	// Title and Description tell people who it is, before they consent.
	Title, Description string
	// URL takes a POST of each message.
	URL string
	// Headers are sent with it.
	Headers map[string]Value
	// Backend is the name of a backend of the same workspace.
	Backend string
	// Workspace is whose conversations it may get; [auth.DefaultWorkspace] by default.
	Workspace string
	// Priority goes before the order of the file: the greatest first; 0 by default.
	Priority int
	// Principal tells the provider who the caller is by the name that it has here;
	// otherwise by a name that says nothing and is another one at each provider.
	Principal bool
}

// ConversationEvents says which messages become events, and of which workspace.
type ConversationEvents struct {
	UserMessage, AssistantResponse bool
	Workspace                      string
}

// Any reports whether there are any.
func (e ConversationEvents) Any() bool { return e.UserMessage || e.AssistantResponse }

func (p *parser) conversation(n *strictyaml.Node) {
	c := &p.config.Conversation
	*c = Conversation{Budget: 500 * time.Millisecond, MaxContext: 32 << 10, Events: ConversationEvents{Workspace: auth.DefaultWorkspace}}
	for _, m := range p.file.Members(n, "conversation") {
		what := "conversation: " + m.Key
		switch m.Key {
		case "userMessages":
			c.UserMessages = p.file.Bool(m.Value, what)
		case "assistantResponses":
			c.AssistantResponses = p.file.Bool(m.Value, what)
		case "budget":
			c.Budget = p.duration(m.Value, what, MinBudget, MaxBudget)
		case "maxContext":
			c.MaxContext = p.file.Int(m.Value, what, MinContext, MaxContext)
		case "providers":
			p.providers(m.Value)
		case "events":
			p.conversationEvents(m.Value)
		default:
			p.file.Unknown(m, "conversation", "userMessages", "assistantResponses", "budget", "maxContext", "providers", "events")
		}
	}
	if c.Events.UserMessage && !c.UserMessages {
		p.file.Add(n.Line, "conversation: events of user messages need userMessages: true")
	}
	if c.Events.AssistantResponse && !c.AssistantResponses {
		p.file.Add(n.Line, "conversation: events of assistant responses need assistantResponses: true")
	}
	slices.SortStableFunc(c.Providers, func(a, b Provider) int { return cmp.Compare(b.Priority, a.Priority) })
}

func (p *parser) conversationEvents(n *strictyaml.Node) {
	e := &p.config.Conversation.Events
	for _, m := range p.file.Members(n, "conversation: events") {
		what := "conversation: events: " + m.Key
		switch m.Key {
		case "userMessage":
			e.UserMessage = p.file.Bool(m.Value, what)
		case "assistantResponse":
			e.AssistantResponse = p.file.Bool(m.Value, what)
		case "workspace":
			e.Workspace = p.workspace(m.Value, what)
		default:
			p.file.Unknown(m, "conversation: events", "userMessage", "assistantResponse", "workspace")
		}
	}
}

func (p *parser) providers(n *strictyaml.Node) {
	items := p.file.Items(n, "conversation: providers")
	if len(items) > MaxProviders {
		p.file.Add(n.Line, "there are more than %d providers", MaxProviders)
		return
	}
	given := places{}
	for _, it := range items {
		v := p.provider(it)
		p.once(given, place{v.Workspace, v.Name}, it, "provider")
		p.config.Conversation.Providers = append(p.config.Conversation.Providers, v)
	}
}

var providerMembers = []string{
	"name", "title", "description", "url", "headers", "backend", "workspace", "priority", "principal",
}

func (p *parser) provider(n *strictyaml.Node) Provider {
	v := Provider{Workspace: auth.DefaultWorkspace}
	say := func(member string) string {
		if v.Name == "" {
			return "a provider: " + member
		}
		return "provider " + strictyaml.Clip(v.Name) + ": " + member
	}
	members := p.file.Members(n, "a provider")
	for _, m := range members {
		switch m.Key {
		case "name":
			v.Name = p.matching(m.Value, "a provider: name", backendName)
			if v.Name == EventsProvider {
				p.file.Add(m.Line, "no provider can have the name %s, which stands for the events of conversations", EventsProvider)
			}
		case "title":
			v.Title = p.line(m.Value, say("title"), 200)
		case "description":
			v.Description = p.line(m.Value, say("description"), 2000)
		case "url":
			v.URL = p.url(m.Value, say("url"))
		case "headers":
			v.Headers = p.headers(m.Value, say("header"))
		case "backend":
			v.Backend = p.file.String(m.Value, say("backend"))
		case "workspace":
			v.Workspace = p.workspace(m.Value, say("workspace"))
		case "priority":
			v.Priority = p.file.Int(m.Value, say("priority"), -maxPriority, maxPriority)
		case "principal":
			v.Principal = p.file.Bool(m.Value, say("principal"))
		default:
			p.file.Unknown(m, "a provider", providerMembers...)
		}
	}
	if members != nil {
		p.reachable(n, v, say)
	}
	return v
}

// reachable checks that there is one way to a provider.
func (p *parser) reachable(n *strictyaml.Node, v Provider, say func(string) string) {
	known := slices.ContainsFunc(p.config.Backends, func(b Backend) bool { return b.Name == v.Backend && b.Workspace == v.Workspace })
	_, identity := v.Headers[PrincipalHeader]
	if !has(n, "name") {
		p.file.Add(n.Line, "a provider has no name")
	}
	switch url, backend := has(n, "url"), has(n, "backend"); {
	case url == backend:
		p.file.Add(n.Line, "%s", say("either url or backend is needed"))
	case backend && has(n, "headers"):
		p.file.Add(n.Line, "%s", say("headers are those of the backend"))
	case backend && !known:
		p.file.Add(n.Line, "%s %s does not belong to the workspace %s", say("backend"), strictyaml.Clip(v.Backend), strictyaml.Clip(v.Workspace))
	case identity:
		p.file.Add(n.Line, "%s", say("header "+PrincipalHeader+" is set by the gateway"))
	}
}

func has(n *strictyaml.Node, member string) bool {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == member {
			return true
		}
	}
	return false
}

func (p *parser) workspace(n *strictyaml.Node, what string) string {
	s := p.file.String(n, what)
	if s != "" && !auth.ValidWorkspace(s) {
		p.file.Add(n.Line, "%s: %q is not the name of a workspace", what, strictyaml.Clip(s))
	}
	return s
}

var controls = regexp.MustCompile(`[\x00-\x1f\x7f-\x9f\x{2028}\x{2029}]`)

// line reads a text for people that stands in one line.
func (p *parser) line(n *strictyaml.Node, what string, most int) string {
	s := strings.TrimSpace(p.file.String(n, what))
	switch {
	case len(s) > most:
		p.file.Add(n.Line, "%s is longer than %d bytes", what, most)
	case controls.MatchString(s):
		p.file.Add(n.Line, "%s must be one line without control characters", what)
	}
	return s
}

func (p *parser) duration(n *strictyaml.Node, what string, least, most time.Duration) time.Duration {
	s := p.file.String(n, what)
	d, err := time.ParseDuration(s)
	if s != "" && (err != nil || d < least || d > most) {
		p.file.Add(n.Line, "%s: %q is not a duration from %v to %v, such as 500ms", what, strictyaml.Clip(s), least, most)
	}
	return d
}

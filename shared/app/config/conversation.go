package config

import (
	"cmp"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

// Limits of the section "conversation".
const (
	// MaxProviders is the largest number of context providers.
	MaxProviders = 20
	// MinBudget and MaxBudget limit the time within which providers must answer.
	MinBudget, MaxBudget = 10 * time.Millisecond, 10 * time.Second
	// MinContext and MaxContext limit the merged context in bytes. The largest one fits into an item of the store even if JSON
	// escapes every byte.
	MinContext, MaxContext = 256, 48 << 10
	// maxPriority is the highest priority of a provider, and its negative the lowest.
	maxPriority = 1000
)

func (p *parser) readConversation(n *strictyaml.Node, what string) {
	c := &p.config.Conversation
	*c = rules.Conversation{Budget: 500 * time.Millisecond, MaxContext: 32 << 10, Events: rules.Events{Workspace: auth.DefaultWorkspace}}
	p.file.Fields(n, nameWithin(what),
		strictyaml.Var("userMessages", &c.UserMessages, p.file.Bool),
		strictyaml.Var("assistantResponses", &c.AssistantResponses, p.file.Bool),
		strictyaml.Var("budget", &c.Budget, p.duration(MinBudget, MaxBudget)),
		strictyaml.Var("maxContext", &c.MaxContext, p.file.Int(MinContext, MaxContext)),
		strictyaml.Func("providers", p.readProviders),
		strictyaml.Func("events", func(n *strictyaml.Node, what string) {
			p.file.Fields(n, nameWithin(what),
				strictyaml.Var("userMessage", &c.Events.UserMessage, p.file.Bool),
				strictyaml.Var("assistantResponse", &c.Events.AssistantResponse, p.file.Bool),
				strictyaml.Var("workspace", &c.Events.Workspace, p.readWorkspace),
			)
		}),
	)
	if c.Events.UserMessage && !c.UserMessages {
		p.file.Add(n.Line, "%s: events of user messages need userMessages: true", what)
	}
	if c.Events.AssistantResponse && !c.AssistantResponses {
		p.file.Add(n.Line, "%s: events of assistant responses need assistantResponses: true", what)
	}
	slices.SortStableFunc(c.Providers, func(a, b rules.Provider) int { return cmp.Compare(b.Priority, a.Priority) })
}

func (p *parser) readProviders(n *strictyaml.Node, what string) {
	lines := map[identity]int{}
	for _, it := range p.file.Items(n, what, MaxProviders) {
		v := p.readProvider(it)
		p.checkUnique(lines, identity{v.Workspace, v.Name}, it, "provider")
		p.config.Conversation.Providers = append(p.config.Conversation.Providers, v)
	}
}

func (p *parser) readProvider(n *strictyaml.Node) rules.Provider {
	v := rules.Provider{Workspace: auth.DefaultWorkspace}
	say := nameAfter("provider", &v.Name)
	given := p.file.Fields(n, say,
		strictyaml.Func("name", func(n *strictyaml.Node, what string) {
			if v.Name = p.file.Matching(backendName)(n, what); v.Name == rules.EventsProvider {
				p.file.Add(n.Line, "no provider can have the name %s, which stands for the events of conversations", rules.EventsProvider)
			}
		}),
		strictyaml.Var("title", &v.Title, p.line(200)),
		strictyaml.Var("description", &v.Description, p.line(2000)),
		strictyaml.Var("url", &v.URL, p.readURL),
		strictyaml.Var("headers", &v.Headers, p.readHeaders),
		strictyaml.Var("backend", &v.Backend, p.file.String),
		strictyaml.Var("workspace", &v.Workspace, p.readWorkspace),
		strictyaml.Var("priority", &v.Priority, p.file.Int(-maxPriority, maxPriority)),
		strictyaml.Var("principal", &v.Principal, p.file.Bool),
	)
	if given == nil {
		return v
	}
	backend := slices.IndexFunc(p.config.Backends, func(b api.Backend) bool { return b.Name == v.Backend && b.Workspace == v.Workspace })
	if backend >= 0 {
		v.BackendURL = p.config.Backends[backend].URL
	}
	_, setsPrincipal := v.Headers[rules.PrincipalHeader]
	if !given["name"] {
		p.file.Add(n.Line, "a provider has no name")
	}
	switch {
	case given["url"] == given["backend"]:
		p.file.Add(n.Line, "%s", say("either url or backend is needed"))
	case given["backend"] && given["headers"]:
		p.file.Add(n.Line, "%s", say("headers are those of the backend"))
	case given["backend"] && backend < 0:
		p.file.Add(n.Line, "%s %s does not belong to the workspace %s", say("backend"), strictyaml.Clip(v.Backend), strictyaml.Clip(v.Workspace))
	case setsPrincipal:
		p.file.Add(n.Line, "%s", say("header "+rules.PrincipalHeader+" is set by the gateway"))
	}
	return v
}

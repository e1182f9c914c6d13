package config

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
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

func (p *parser) conversation(n *strictyaml.Node) {
	c := &p.config.Conversation
	*c = rules.Conversation{Budget: 500 * time.Millisecond, MaxContext: 32 << 10, Events: rules.Events{Workspace: auth.DefaultWorkspace}}
	p.fields(n, "conversation", within("conversation"),
		field{"userMessages", into(&c.UserMessages, p.file.Bool)},
		field{"assistantResponses", into(&c.AssistantResponses, p.file.Bool)},
		field{"budget", into(&c.Budget, p.duration(MinBudget, MaxBudget))},
		field{"maxContext", into(&c.MaxContext, p.int(MinContext, MaxContext))},
		field{"providers", p.providers},
		field{"events", func(n *strictyaml.Node, what string) {
			p.fields(n, what, within(what),
				field{"userMessage", into(&c.Events.UserMessage, p.file.Bool)},
				field{"assistantResponse", into(&c.Events.AssistantResponse, p.file.Bool)},
				field{"workspace", into(&c.Events.Workspace, p.workspace)},
			)
		}},
	)
	if c.Events.UserMessage && !c.UserMessages {
		p.file.Add(n.Line, "conversation: events of user messages need userMessages: true")
	}
	if c.Events.AssistantResponse && !c.AssistantResponses {
		p.file.Add(n.Line, "conversation: events of assistant responses need assistantResponses: true")
	}
	slices.SortStableFunc(c.Providers, func(a, b rules.Provider) int { return cmp.Compare(b.Priority, a.Priority) })
}

func (p *parser) providers(n *strictyaml.Node, what string) {
	given := places{}
	for _, it := range p.items(n, what, "providers", MaxProviders) {
		v := p.provider(it)
		p.once(given, place{v.Workspace, v.Name}, it, "provider")
		p.config.Conversation.Providers = append(p.config.Conversation.Providers, v)
	}
}

func (p *parser) provider(n *strictyaml.Node) rules.Provider {
	v := rules.Provider{Workspace: auth.DefaultWorkspace}
	say := named("provider", &v.Name)
	given := p.fields(n, "a provider", say,
		field{"name", func(n *strictyaml.Node, what string) {
			if v.Name = p.matching(backendName)(n, what); v.Name == rules.EventsProvider {
				p.file.Add(n.Line, "no provider can have the name %s, which stands for the events of conversations", rules.EventsProvider)
			}
		}},
		field{"title", into(&v.Title, p.line(200))},
		field{"description", into(&v.Description, p.line(2000))},
		field{"url", into(&v.URL, p.url)},
		field{"headers", into(&v.Headers, p.headers)},
		field{"backend", into(&v.Backend, p.file.String)},
		field{"workspace", into(&v.Workspace, p.workspace)},
		field{"priority", into(&v.Priority, p.int(-maxPriority, maxPriority))},
		field{"principal", into(&v.Principal, p.file.Bool)},
	)
	if given == nil {
		return v
	}
	backend := slices.IndexFunc(p.config.Backends, func(b api.Backend) bool { return b.Name == v.Backend && b.Workspace == v.Workspace })
	if backend >= 0 {
		v.BackendURL = p.config.Backends[backend].URL
	}
	_, identity := v.Headers[rules.PrincipalHeader]
	if !given["name"] {
		p.file.Add(n.Line, "a provider has no name")
	}
	switch { // there must be one way to it
	case given["url"] == given["backend"]:
		p.file.Add(n.Line, "%s", say("either url or backend is needed"))
	case given["backend"] && given["headers"]:
		p.file.Add(n.Line, "%s", say("headers are those of the backend"))
	case given["backend"] && backend < 0:
		p.file.Add(n.Line, "%s %s does not belong to the workspace %s", say("backend"), strictyaml.Clip(v.Backend), strictyaml.Clip(v.Workspace))
	case identity:
		p.file.Add(n.Line, "%s", say("header "+rules.PrincipalHeader+" is set by the gateway"))
	}
	return v
}

var controls = regexp.MustCompile(`[\x00-\x1f\x7f-\x9f\x{2028}\x{2029}]`)

// line reads a text for people that stands in one line.
func (r reader) line(most int) func(n *strictyaml.Node, what string) string {
	return func(n *strictyaml.Node, what string) string {
		s := strings.TrimSpace(r.file.String(n, what))
		switch {
		case len(s) > most:
			r.file.Add(n.Line, "%s is longer than %d bytes", what, most)
		case controls.MatchString(s):
			r.file.Add(n.Line, "%s must be one line without control characters", what)
		}
		return s
	}
}

func (r reader) int(least, most int) func(n *strictyaml.Node, what string) int {
	return func(n *strictyaml.Node, what string) int { return r.file.Int(n, what, least, most) }
}

func (r reader) duration(least, most time.Duration) func(n *strictyaml.Node, what string) time.Duration {
	return func(n *strictyaml.Node, what string) time.Duration {
		s := r.file.String(n, what)
		d, err := time.ParseDuration(s)
		if s != "" && (err != nil || d < least || d > most) {
			r.file.Add(n.Line, "%s: %q is not a duration from %v to %v, such as 500ms", what, strictyaml.Clip(s), least, most)
		}
		return d
	}
}

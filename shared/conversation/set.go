package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// set contains the providers of one version of the configuration.
type set struct {
	rules.Conversation
	made      *rules.Conversation // the configuration that it was made from
	providers []*provider         // the most important first
}

// visible returns the providers that a principal may use.
func (s *set) visible(ctx context.Context, p auth.Principal) []*provider {
	var out []*provider
	for _, v := range s.providers {
		if v.workspace == p.Workspace && (v.visible == nil || v.visible(ctx, p)) {
			out = append(out, v)
		}
	}
	return out
}

// current returns the providers of the current configuration.
func (s *Service) current(ctx context.Context) (*set, error) {
	c, err := s.options.Source.Conversation(ctx)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the configuration")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil || s.set.made != c {
		s.set = s.make(c)
	}
	return s.set, nil
}

// make creates the providers of a configuration. A provider that existed before keeps its breaker.
func (s *Service) make(c *rules.Conversation) *set {
	next := &set{made: c, Conversation: *c}
	for _, v := range c.Providers {
		next.providers = append(next.providers, s.provider(c, v))
	}
	if p := s.eventsProvider(c.Events); p != nil {
		next.providers = append(next.providers, p)
	}
	for _, p := range next.providers {
		p.breaker = s.newBreaker(p)
		if s.set == nil {
			continue
		}
		same := func(old *provider) bool { return old.workspace == p.workspace && old.name == p.name && old.to == p.to }
		if i := slices.IndexFunc(s.set.providers, same); i >= 0 {
			p.breaker = s.set.providers[i].breaker
		}
	}
	return next
}

func (s *Service) provider(c *rules.Conversation, v rules.Provider) *provider {
	p := &provider{
		name: v.Name, title: v.Title, description: v.Description, workspace: v.Workspace, plain: v.Principal,
		kinds: listKinds(c.UserMessages, c.AssistantResponses),
	}
	if v.Backend == "" {
		p.to, p.ask = destination("url", v.URL), s.askURL(v)
		return p
	}
	p.to = destination("backend", v.Backend, v.BackendURL)
	p.ask = s.askBackend(v.Backend)
	p.visible = func(ctx context.Context, who auth.Principal) bool {
		return s.options.Backends != nil && slices.Contains(s.options.Backends.Backends(ctx, who), v.Backend)
	}
	return p
}

func listKinds(user, assistant bool) (out []Kind) {
	if user {
		out = append(out, UserMessage)
	}
	if assistant {
		out = append(out, AssistantResponse)
	}
	return out
}

// askBackend asks a backend with the method for which it declared a capability.
func (s *Service) askBackend(name string) asker {
	return func(ctx context.Context, c Caller, m *Message, principal string) (json.RawMessage, error) {
		meta, _ := json.Marshal(map[string]string{MetaPrincipal: principal}) // a string always encodes
		raw, err := s.options.Backends.Converse(ctx, c.Client, name, m.Kind.Method(), m.Params(meta[1:len(meta)-1]))
		switch {
		case err == nil:
			return raw, nil
		case errors.Is(err, api.ErrIncapable):
			return nil, failure{Incapable}
		case errors.Is(err, api.ErrRefused):
			return nil, failure{Refused}
		}
		if ctx.Err() != nil {
			s.prepare(c, name)
		}
		return nil, failure{Unreachable}
	}
}

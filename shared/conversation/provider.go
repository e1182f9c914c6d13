package conversation

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/url"
	"slices"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// reason is the reason why a provider's context is missing.
type reason string

// Reasons for missing context.
const (
	late        reason = "timeout"
	resting     reason = "resting"     // too many timeouts, see [breaker]
	unreachable reason = "unreachable" // no connection, or one that broke
	refused     reason = "refused"     // the response is an error
	malformed   reason = "malformed"   // the response is not a context
	oversized   reason = "too large"
	incapable   reason = "incapable" // the backend does not declare support for such messages
	abandoned   reason = "abandoned" // the caller no longer waits for the response
	internal    reason = "internal"
)

// failure is a provider's error, reduced to its reason.
type failure struct{ reason reason }

func (f failure) Error() string {
	return "conversation: the provider's answer is missing: " + string(f.reason)
}

// reasonOf returns the reason of an error of a call to a provider. asked is the context of this call, which ends with the
// budget, and asker is the caller's context.
func reasonOf(asked, asker context.Context, err error) reason {
	f, known := errors.AsType[failure](err)
	switch {
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return resting
	case asker.Err() != nil:
		return abandoned
	case asked.Err() != nil:
		return late
	case known:
		return f.reason
	}
	return internal
}

// Caller is the sender of a message.
type Caller struct {
	Principal auth.Principal
	// Client identifies the caller to backends.
	Client api.Client
}

// asker sends a message to a receiver, which knows the caller by the name principal, and returns the unchecked
// context. Its errors are failures.
type asker func(ctx context.Context, c Caller, m *Message, principal string) (json.RawMessage, error)

// provider is a receiver of messages. It is safe for concurrent use.
type provider struct {
	name, title, description string
	workspace                string
	to                       string // hash of the destination, which consents are bound to
	kinds                    []Kind // the kinds of messages that it receives
	plain                    bool   // whether it gets the principal's real id
	visible                  func(ctx context.Context, p auth.Principal) bool
	ask                      asker
	breaker                  *breaker
}

func (p *provider) receives(kind Kind) bool { return slices.Contains(p.kinds, kind) }

// breaker stops asking a provider after several consecutive timeouts. After a pause it lets one message through,
// whose result decides whether it continues.
type breaker = gobreaker.CircuitBreaker[json.RawMessage]

// Settings of a breaker.
const (
	tripAfter = 5
	restFor   = 30 * time.Second
)

// newBreaker returns a breaker for a provider. It counts only failures that make callers wait: timeouts and failed
// connections. It ignores other errors, because they may concern one caller's message only.
func (s *Service) newBreaker(p *provider) *breaker {
	return gobreaker.NewCircuitBreaker[json.RawMessage](gobreaker.Settings{
		MaxRequests: 1, Timeout: s.options.Rest,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter },
		IsSuccessful: func(err error) bool {
			f, _ := errors.AsType[failure](err)
			return f.reason != late && f.reason != unreachable
		},
		IsExcluded: func(err error) bool {
			f, _ := errors.AsType[failure](err)
			return f.reason == abandoned
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			s.options.Log.Info("provider state changed",
				"provider", p.name, "workspace", p.workspace, "from", from.String(), "to", to.String())
		},
	})
}

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
		out = append(out, assistantResponse)
	}
	return out
}

// askBackend asks a backend with the method for which it declared a capability.
func (s *Service) askBackend(name string) asker {
	return func(ctx context.Context, c Caller, m *Message, principal string) (json.RawMessage, error) {
		meta, _ := json.Marshal(map[string]string{metaPrincipal: principal}) // a string always encodes
		raw, err := s.options.Backends.Converse(ctx, c.Client, name, m.Kind.Method(), m.Params(meta[1:len(meta)-1]))
		switch {
		case err == nil:
			return raw, nil
		case errors.Is(err, api.ErrIncapable):
			return nil, failure{incapable}
		case errors.Is(err, api.ErrRefused):
			return nil, failure{refused}
		}
		if ctx.Err() != nil {
			s.prepare(c, name)
		}
		return nil, failure{unreachable}
	}
}

// metaPrincipal is the key in _meta that tells a backend whose message it receives.
const metaPrincipal = "io.github.mcp-events/principal"

// secrets holds the keys that are derived from the deployment's key.
type secrets struct {
	names []byte
	aead  cipher.AEAD
}

func newSecrets(key []byte) (*secrets, error) {
	names, err := hkdf.Key(sha256.New, key, nil, "mcpevents conversation principals", 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of principals")
	}
	sealing, err := hkdf.Key(sha256.New, key, nil, "mcpevents conversation contexts", 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of contexts")
	}
	block, _ := aes.NewCipher(sealing) // the key has 32 bytes
	aead, err := cipher.NewGCMWithRandomNonce(block)
	return &secrets{names, aead}, fault.Wrap(fault.Internal, err, "derive the key of contexts")
}

// nameFor returns the name of a principal for a provider. It is always the same for this provider and different for
// every other one. It does not reveal the principal unless the operator has allowed that.
func (s *Service) nameFor(p *provider, who auth.Principal) string {
	if p.plain {
		return url.PathEscape(who.ID) // a header does not allow other characters
	}
	text, _ := json.Marshal([]string{p.to, who.Workspace, who.ID}) // strings
	mac := hmac.New(sha256.New, s.secrets.names)
	mac.Write(text)
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// Seal encrypts a context for a principal's streams, so that it cannot be read from the store.
func (s *Service) Seal(who auth.Principal, text []byte) []byte {
	return s.secrets.aead.Seal(nil, nil, text, owner(who))
}

// Open decrypts the result of [Service.Seal].
func (s *Service) Open(who auth.Principal, sealed []byte) ([]byte, error) {
	text, err := s.secrets.aead.Open(nil, nil, sealed, owner(who))
	return text, fault.Wrap(fault.Internal, err, "open a context")
}

func owner(who auth.Principal) []byte {
	b, _ := json.Marshal([]string{who.Workspace, who.ID}) // strings
	return b
}

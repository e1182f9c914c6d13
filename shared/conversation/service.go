package conversation

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Source provides the current configuration. It returns the same pointer until the configuration changes.
type Source interface {
	Conversation(ctx context.Context) (*rules.Conversation, error)
}

// Backends accesses backends that are providers. [gateway.Gateway] implements it.
type Backends interface {
	// Backends returns the names of the backends that a principal may use.
	Backends(ctx context.Context, p auth.Principal) []string
	// Converse sends a request to a backend and returns the result.
	Converse(ctx context.Context, c api.Client, backend, method string, params json.RawMessage) (json.RawMessage, error)
	// Prepare starts a session with a backend, so that the next Converse is quick.
	Prepare(ctx context.Context, c api.Client, backend string) error
}

// Publisher publishes an event in the workspace of the message's principal.
type Publisher interface {
	Publish(ctx context.Context, p auth.Principal, in publish.Input) error
}

// Options configure a [Service]. Source, DB and Key are required.
type Options struct {
	Source Source
	DB     store.DB
	// Key is a key of 32 bytes. It is used to derive the names by which providers know principals, and to seal
	// contexts in the log.
	Key []byte
	// Backends may be nil if there are no backends.
	Backends Backends
	// Catalogs and Publisher are needed for events.
	Catalogs  catalog.Source
	Publisher Publisher
	// AllowAnonymous allows the single principal of --auth none to consent on behalf of all callers. It is for
	// development only.
	AllowAnonymous bool
	// HTTP is the client for providers at URLs. Nil means [newHTTP].
	HTTP *http.Client
	// Prepares lets a backend prepare a session after the response if it exceeded the budget, so that the next
	// message gets its context. It is useless on Lambda, where the process is frozen after the response.
	Prepares bool
	// Rest is how long a provider is not asked after too many timeouts. 0 means 30 s.
	Rest time.Duration
	// Rate is the quota of messages of each principal. Nil means no quota.
	Rate *quota.Rate
	// Secrets looks up the secret that a setting refers to. Nil means the environment. It is called for each message
	// to a provider at a URL.
	Secrets func(ctx context.Context, v secret.Value) (string, error)
	Log     *slog.Logger
}

// Service forwards messages to the receivers to which callers consented. It is safe for concurrent use. Create it
// with [New].
type Service struct {
	options  Options
	consents consents
	secrets  *secrets
	running  sync.WaitGroup
	ending   context.Context // context of the work after responses
	end      context.CancelFunc
	missing  metric.Tally

	mu        sync.Mutex
	set       *set
	preparing map[preparation]bool
}

// minBurst is the minimum number of messages that a principal may send in a burst, even if the quota is low.
const minBurst = 20

// NewRate returns a quota of messages per second, with bursts of two seconds' worth.
func NewRate(of quota.Of) *quota.Rate {
	return quota.New(quota.ConversationRate, "messages", of, func(perSecond float64) float64 { return max(2*perSecond, minBurst) })
}

// New creates a service. It does not call any provider.
func New(o Options) (*Service, error) {
	if o.HTTP == nil {
		o.HTTP = newHTTP()
	}
	o.Rest = cmp.Or(o.Rest, restFor)
	if o.Secrets == nil {
		o.Secrets = secret.FromEnvironment
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	s := &Service{
		options: o, consents: consents{o.DB, metric.NewUndecodable(o.Log)}, preparing: map[preparation]bool{},
		missing: metric.Tally{Name: MetricMissing, Text: "provider context missing", Log: o.Log},
	}
	s.ending, s.end = context.WithCancel(context.Background())
	var err error
	if s.secrets, err = newSecrets(o.Key); err != nil {
		return nil, err
	}
	return s, nil
}

// Close waits until all work for earlier messages has ended, or until ctx ends. Forward must not be called after
// Close, or concurrently with it.
func (s *Service) Close(ctx context.Context) error {
	s.end()
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fault.Wrap(fault.Unavailable, ctx.Err(), "wait for providers")
	}
}

// Offers are the messages that a caller is asked to send.
type Offers struct {
	OnUserMessage       bool `json:"onUserMessage,omitempty"`
	OnAssistantResponse bool `json:"onAssistantResponse,omitempty"`
}

// Any reports whether the caller is asked to send anything.
func (o Offers) Any() bool { return o.OnUserMessage || o.OnAssistantResponse }

// Has reports whether the caller is asked to send messages of the kind.
func (o Offers) Has(kind Kind) bool {
	return kind == UserMessage && o.OnUserMessage || kind == assistantResponse && o.OnAssistantResponse
}

// Enabled reports whether any caller is asked to send anything.
func (s *Service) Enabled(ctx context.Context) bool {
	now, err := s.current(ctx)
	return err == nil && now.Conversation.Enabled()
}

// Check checks a configuration before it is put into use. A missing secret is an error of kind fault.Invalid.
func (s *Service) Check(ctx context.Context, c *rules.Conversation) error {
	for _, v := range c.Providers {
		if _, err := s.headers(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// Offers returns the kinds of messages that the server asks a principal to send. A kind is offered if it is enabled and at
// least one provider could receive it.
func (s *Service) Offers(ctx context.Context, p auth.Principal) Offers {
	now, err := s.current(ctx)
	if err != nil || p.Anonymous && !s.options.AllowAnonymous {
		return Offers{}
	}
	var o Offers
	for _, v := range now.visible(ctx, p) {
		o.OnUserMessage = o.OnUserMessage || v.receives(UserMessage)
		o.OnAssistantResponse = o.OnAssistantResponse || v.receives(assistantResponse)
	}
	return o
}

// Forward sends a message to all receivers to which the caller has consented, and returns the context that arrived
// within the budget. Providers that miss the budget are skipped, logged and counted. If the quota is used up, Forward
// does not send the message and returns fault.Exhausted with [quota.RetryAfter].
func (s *Service) Forward(ctx context.Context, c Caller, m *Message) (*Context, error) {
	if err := s.options.Rate.Take(ctx, c.Principal, 1, time.Now()); err != nil {
		return nil, err
	}
	now, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	receivers, err := s.listConsented(ctx, now, c.Principal, m.Kind)
	if err != nil || len(receivers) == 0 {
		return &Context{}, err
	}
	return merge(s.gather(ctx, now.Budget, receivers, c, m), now.MaxContext), nil
}

// listConsented returns the providers to which a message of the kind may be sent now.
func (s *Service) listConsented(ctx context.Context, now *set, p auth.Principal, kind Kind) ([]*provider, error) {
	visible := slices.DeleteFunc(now.visible(ctx, p), func(v *provider) bool { return !v.receives(kind) })
	if len(visible) == 0 || p.Anonymous && !s.options.AllowAnonymous {
		return nil, nil
	}
	given, err := s.consents.list(ctx, p.Workspace, p.ID)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(visible, func(v *provider) bool { return !given[v.name].covers(v.to, kind) }), nil
}

// reply is the result of asking one provider.
type reply struct {
	answer
	missing reason // empty if there is an answer
}

// gather asks all receivers concurrently. It returns the parts that have arrived when the budget is used up, in the
// order of the receivers.
func (s *Service) gather(ctx context.Context, budget time.Duration, receivers []*provider, c Caller, m *Message) (parts []part) {
	asked, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	came := make([]chan reply, len(receivers))
	for i, p := range receivers {
		came[i] = make(chan reply, 1) // so that a late reply does not block
		s.running.Go(func() { came[i] <- s.ask(ctx, asked, p, c, m) })
	}
	for i, p := range receivers {
		x := reply{}
		select {
		case x = <-came[i]:
		case <-asked.Done():
			select {
			case x = <-came[i]:
			default:
				x.missing = reasonOf(asked, ctx, nil)
			}
		}
		if x.missing != "" {
			s.countMissing(ctx, p, x.missing)
			continue
		}
		parts = append(parts, part{p.name, p.title, x.answer})
	}
	return parts
}

// ask asks one provider, unless its breaker is open.
func (s *Service) ask(ctx, asked context.Context, p *provider, c Caller, m *Message) reply {
	raw, err := p.breaker.Execute(func() (json.RawMessage, error) {
		raw, err := p.ask(asked, c, m, s.nameFor(p, c.Principal))
		if err != nil {
			return nil, failure{reasonOf(asked, ctx, err)}
		}
		return raw, nil
	})
	if err != nil {
		return reply{missing: reasonOf(asked, ctx, err)}
	}
	a, err := parseAnswer(raw)
	if err != nil {
		return reply{missing: malformed}
	}
	return reply{answer: a}
}

// MetricMissing is the metric that counts missing contexts, by workspace, provider and reason.
const MetricMissing = "ConversationContextMissing"

// countMissing counts and logs that a provider's context is missing.
func (s *Service) countMissing(ctx context.Context, p *provider, why reason) {
	s.missing.Add(ctx, slog.String("workspace", p.workspace), slog.String("provider", p.name), slog.String("reason", string(why)))
}

// Counts returns how often the context of each provider, named workspace/provider, was missing since the start of the
// process, by reason.
func (s *Service) Counts() map[string]map[string]int64 { return s.missing.ByThird() }

// If starting a session with a backend takes longer than the budget of a message, and each message had to start one,
// the backend would never provide any context. So after the response, the service lets the backend prepare a session
// for the next message.

const (
	// prepareTime limits a preparation, and maxPreparing limits how many run concurrently.
	prepareTime  = 20 * time.Second
	maxPreparing = 64
)

// preparation identifies a preparation. Only one with the same identity runs at a time.
type preparation struct{ backend, workspace, principal, session string }

// prepare starts preparing a backend for the caller, in the background.
func (s *Service) prepare(c Caller, backend string) {
	if !s.options.Prepares {
		return
	}
	this := preparation{backend, c.Principal.Workspace, c.Principal.ID, c.Client.Session}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.preparing[this] || len(s.preparing) >= maxPreparing {
		return
	}
	s.preparing[this] = true
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.ending, prepareTime)
		defer cancel()
		if err := s.options.Backends.Prepare(ctx, c.Client, backend); err != nil {
			s.options.Log.WarnContext(ctx, "provider not ready", "workspace", this.workspace, "provider", backend, "error", err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.preparing, this)
	})
}

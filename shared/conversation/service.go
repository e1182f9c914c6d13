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

// Source is the configuration as it is now. As long as nothing changed, it is the same
// pointer.
type Source interface {
	Conversation(ctx context.Context) (*rules.Conversation, error)
}

// Backends reaches the backends that are providers; [gateway.Gateway] does.
type Backends interface {
	// Backends names those that a principal may use.
	Backends(ctx context.Context, p auth.Principal) []string
	// Converse asks one, and returns the result.
	Converse(ctx context.Context, c api.Client, backend, method string, params json.RawMessage) (json.RawMessage, error)
	// Prepare gets one ready to be asked.
	Prepare(ctx context.Context, c api.Client, backend string) error
}

// Publisher publishes an event in the workspace of the principal whose message it is.
type Publisher interface {
	Publish(ctx context.Context, p auth.Principal, in publish.Input) error
}

// Options configure a [Service]. Source, DB and Key are required.
type Options struct {
	Source Source
	DB     store.DB
	// Key is 32 bytes of the deployment: it makes the names by which providers know
	// principals, and seals contexts on their way through the log.
	Key []byte
	// Backends may be nil when there are none.
	Backends Backends
	// Catalogs and Publisher are needed for events.
	Catalogs  catalog.Source
	Publisher Publisher
	// AllowAnonymous lets the one principal of --auth none consent, for everybody; for
	// development only.
	AllowAnonymous bool
	// HTTP reaches providers at URLs; nil is [NewHTTP].
	HTTP *http.Client
	// Prepares lets a backend for which the budget was too short get ready after the answer, so that the
	// next message finds it so. It is of no use on Lambda, where nothing goes on there.
	Prepares bool
	// Rest is how long a provider rests that was late too often; 0 is 30 s.
	Rest time.Duration
	// Rate limits how many messages a principal sends; nil does not.
	Rate *quota.Rate
	// Secrets looks up what a setting refers to; nil is the environment. It is asked for each
	// message to a provider at a URL.
	Secrets func(ctx context.Context, v secret.Value) (string, error)
	Log     *slog.Logger
}

// Service forwards messages to those that callers consented to. It may be used
// concurrently. Make it with [New].
type Service struct {
	options  Options
	consents consents
	secrets  *secrets
	running  sync.WaitGroup
	ending   context.Context // of what goes on after answers
	end      context.CancelFunc
	missing  metric.Tally

	mu        sync.Mutex
	set       *set
	preparing map[preparation]bool
}

// minBurst is how many messages a principal may send at once, however low its rate is.
const minBurst = 20

// NewRate limits to a number of messages per second, with bursts of two seconds' worth.
func NewRate(of quota.Of) *quota.Rate {
	return quota.New(quota.ConversationRate, "messages", of, func(perSecond float64) float64 { return max(2*perSecond, minBurst) })
}

// New makes a service. It calls no provider yet.
func New(o Options) (*Service, error) {
	if o.HTTP == nil {
		o.HTTP = NewHTTP()
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

// Close waits until nothing of earlier messages is under way any more, or ctx ends. No
// message may be forwarded while and after it is called.
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

// Offers is what a caller is asked to send.
type Offers struct {
	OnUserMessage       bool `json:"onUserMessage,omitempty"`
	OnAssistantResponse bool `json:"onAssistantResponse,omitempty"`
}

// Any reports whether there is anything.
func (o Offers) Any() bool { return o.OnUserMessage || o.OnAssistantResponse }

// Has reports whether messages of the kind are asked for.
func (o Offers) Has(kind Kind) bool {
	return kind == UserMessage && o.OnUserMessage || kind == AssistantResponse && o.OnAssistantResponse
}

// Enabled reports whether any caller is asked to send anything.
func (s *Service) Enabled(ctx context.Context) bool {
	now, err := s.current(ctx)
	return err == nil && now.Conversation.Enabled()
}

// Check reports what speaks against a configuration, before it is taken: a secret that is
// not there, of kind fault.Invalid.
func (s *Service) Check(ctx context.Context, c *rules.Conversation) error {
	for _, v := range c.Providers {
		if _, err := s.headers(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// Offers finds out what a principal is asked to send: what is switched on and someone
// could get.
func (s *Service) Offers(ctx context.Context, p auth.Principal) Offers {
	now, err := s.current(ctx)
	if err != nil || p.Anonymous && !s.options.AllowAnonymous {
		return Offers{}
	}
	var o Offers
	for _, v := range now.visible(ctx, p) {
		o.OnUserMessage = o.OnUserMessage || v.gets(UserMessage)
		o.OnAssistantResponse = o.OnAssistantResponse || v.gets(AssistantResponse)
	}
	return o
}

// Forward hands a message to all that the caller consented to, and returns the context
// that came within the budget. Whose did not is left out, logged and counted. One more than the rate
// allows goes to no provider: fault.Exhausted with [quota.RetryAfter].
func (s *Service) Forward(ctx context.Context, c Caller, m *Message) (*Context, error) {
	if err := s.options.Rate.Take(ctx, c.Principal, 1, time.Now()); err != nil {
		return nil, err
	}
	now, err := s.current(ctx)
	if err != nil {
		return nil, err
	}
	receivers, err := s.consented(ctx, now, c.Principal, m.Kind)
	if err != nil || len(receivers) == 0 {
		return &Context{}, err
	}
	return merge(s.gather(ctx, now.Budget, receivers, c, m), now.MaxContext), nil
}

// consented are the providers to which a message of the kind may be sent now.
func (s *Service) consented(ctx context.Context, now *set, p auth.Principal, kind Kind) ([]*provider, error) {
	visible := slices.DeleteFunc(now.visible(ctx, p), func(v *provider) bool { return !v.gets(kind) })
	if len(visible) == 0 || p.Anonymous && !s.options.AllowAnonymous {
		return nil, nil
	}
	given, err := s.consents.of(ctx, p.Workspace, p.ID)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(visible, func(v *provider) bool { return !given[v.name].covers(v.to, kind) }), nil
}

// said is what came of asking one provider.
type said struct {
	answer
	missing Reason // empty when the answer is there
}

// gather asks all at once, and returns what is there when the budget is used up, in
// the order of the providers.
func (s *Service) gather(ctx context.Context, budget time.Duration, receivers []*provider, c Caller, m *Message) (parts []part) {
	asked, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	came := make([]chan said, len(receivers))
	for i, p := range receivers {
		came[i] = make(chan said, 1) // a late one must not block
		s.running.Go(func() { came[i] <- s.ask(ctx, asked, p, c, m) })
	}
	for i, p := range receivers {
		x := said{}
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
			s.missed(ctx, p, x.missing)
			continue
		}
		parts = append(parts, part{p.name, p.title, x.answer})
	}
	return parts
}

// ask asks one, unless it rests.
func (s *Service) ask(ctx, asked context.Context, p *provider, c Caller, m *Message) said {
	raw, err := p.breaker.Execute(func() (json.RawMessage, error) {
		raw, err := p.ask(asked, c, m, s.nameFor(p, c.Principal))
		if err != nil {
			return nil, failure{reasonOf(asked, ctx, err)}
		}
		return raw, nil
	})
	if err != nil {
		return said{missing: reasonOf(asked, ctx, err)}
	}
	a, err := parseAnswer(raw)
	if err != nil {
		return said{missing: Malformed}
	}
	return said{answer: a}
}

// MetricMissing is the name under which missing contexts are counted, by workspace, provider
// and reason.
const MetricMissing = "ConversationContextMissing"

// missed counts and logs that a provider's context is missing.
func (s *Service) missed(ctx context.Context, p *provider, why Reason) {
	s.missing.Add(ctx, slog.String("workspace", p.workspace), slog.String("provider", p.name), slog.String("reason", string(why)))
}

// Counts is how often the context of each provider, named workspace/provider, was
// missing since the process began, and why.
func (s *Service) Counts() map[string]map[string]int64 { return s.missing.ByThird() }

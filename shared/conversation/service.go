package conversation

import (
	"cmp"
	"context"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/opaque"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Source provides the section "conversation" of the current configuration. Its method returns the same pointer until the configuration
// changes, so that callers can compare pointers to notice a change.
type Source interface {
	Conversation(ctx context.Context) (*rules.Conversation, error)
}

// Backends calls the gateway's backends (MCP servers) that are context providers. [gateway.Gateway] implements it.
type Backends interface {
	// Backends returns the names of the backends that a principal may use.
	Backends(ctx context.Context, p auth.Principal) []string
	Converse(ctx context.Context, c api.Client, backend, method string, params json.RawMessage) (json.RawMessage, error)
	// Prepare starts a session with a backend, so that the next call of Converse need not start one.
	Prepare(ctx context.Context, c api.Client, backend string) error
}

// Publisher publishes a message of a conversation as an event, in the workspace of the principal who sent the message.
type Publisher interface {
	Publish(ctx context.Context, p auth.Principal, in publish.Input) error
}

// Options configure a [Service]. Source, DB and Key are required.
type Options struct {
	Source Source
	DB     store.DB
	// Key is a secret of 32 bytes, from which two keys are derived. One key makes the pseudonyms by which providers know principals. The
	// other one encrypts contexts in the event log, from which clients' streams read them.
	Key      []byte
	Backends Backends // may be nil
	// Catalogs and Publisher are needed to publish messages as events.
	Catalogs  catalog.Source
	Publisher Publisher
	// AllowAnonymous allows consents without authentication (--auth none), for development. All callers are then the same principal, so
	// one caller consents for all.
	AllowAnonymous bool
	HTTP           *http.Client // the client for providers at URLs; nil means [newHTTP]
	// Prepares lets the service start a session with a backend in the background if the backend was too slow to answer a message. The
	// backend can then answer the next message in time. Do not set Prepares on Lambda, which freezes the process after the response.
	Prepares bool
	Rate     *quota.Rate // limits each principal's messages; nil means no quota
	// Secrets looks up the secret to which a setting refers, for each message to a provider at a URL. Nil means that secrets are
	// environment variables.
	Secrets func(ctx context.Context, v secret.Value) (string, error)
	Log     *slog.Logger
	Metrics *metric.Set // may be nil
}

// Service forwards messages to the providers to which callers consented. It is safe for concurrent use.
type Service struct {
	options Options
	broken  *metric.Undecodable
	names   []byte      // the key from which the pseudonyms of principals are derived
	aead    cipher.AEAD // encrypts contexts
	running sync.WaitGroup
	ending  context.Context // for work that continues after the response; Close ends it
	end     context.CancelFunc
	missing metric.Tally

	mu        sync.Mutex
	set       *set
	preparing map[preparation]bool
}

// minBurst is the smallest number of messages that a principal may send in a burst, even if its quota is low.
const minBurst = 20

// NewRate returns a quota of messages per second for [Options]. A burst may have as many messages as the quota allows in two seconds, or
// [minBurst] if that is more.
func NewRate(limitOf quota.LimitFunc) *quota.Rate {
	return quota.NewRate(quota.ConversationRate, "messages", limitOf, func(perSecond float64) float64 { return max(2*perSecond, minBurst) })
}

// New creates a service. It does not call any provider.
func New(o Options) (*Service, error) {
	if o.HTTP == nil {
		o.HTTP = newHTTP()
	}
	if o.Secrets == nil {
		o.Secrets = secret.FromEnvironment
	}
	o.Log = cmp.Or(o.Log, slog.Default())
	names, err := hkdf.Key(sha256.New, o.Key, nil, "mcpevents conversation principals", 32)
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "derive the key of principals")
	}
	aead, err := opaque.NewCipher(o.Key, "mcpevents conversation contexts")
	if err != nil {
		return nil, err
	}
	s := &Service{
		options: o, broken: metric.NewUndecodable(o.Log, o.Metrics), names: names, aead: aead, preparing: map[preparation]bool{},
		missing: metric.Tally{Name: metric.ContextMissing, Text: "provider context missing", Log: o.Log, Set: o.Metrics},
	}
	s.ending, s.end = context.WithCancel(context.Background())
	return s, nil
}

// Close waits until all work for earlier messages has ended, or until ctx ends. Forward must not be called after
// Close, or concurrently with it.
func (s *Service) Close(ctx context.Context) error {
	s.end()
	return fault.Wrap(fault.Unavailable, periodic.Wait(ctx, &s.running), "wait for providers")
}

// Offers says which kinds of messages the server asks a caller to send.
type Offers struct {
	OnUserMessage       bool `json:"onUserMessage,omitempty"`
	OnAssistantResponse bool `json:"onAssistantResponse,omitempty"`
}

// Any reports whether the server asks the caller to send any messages.
func (o Offers) Any() bool { return o.OnUserMessage || o.OnAssistantResponse }

// Has reports whether the server asks the caller to send messages of the kind.
func (o Offers) Has(kind Kind) bool {
	return kind == UserMessage && o.OnUserMessage || kind == assistantResponse && o.OnAssistantResponse
}

// Enabled reports whether the configuration enables user messages or assistant responses. [Service.Offers] decides for each principal
// which of them the server asks for.
func (s *Service) Enabled(ctx context.Context) bool {
	now, err := s.current(ctx)
	return err == nil && now.Conversation.Enabled()
}

// Check returns an error of kind fault.Invalid if a secret is missing that a provider needs. The error lists all such providers.
func (s *Service) Check(ctx context.Context, c *rules.Conversation) error {
	var all []error
	for _, v := range c.Providers {
		_, err := s.headers(ctx, v)
		all = append(all, err)
	}
	return errors.Join(all...)
}

// Offers returns the kinds of messages that the server asks a principal to send. It offers a kind if at least one provider that the
// principal may use receives messages of this kind.
func (s *Service) Offers(ctx context.Context, p auth.Principal) Offers {
	now, err := s.current(ctx)
	if err != nil || p.Anonymous && !s.options.AllowAnonymous {
		return Offers{}
	}
	var o Offers
	for _, v := range now.listVisible(ctx, p) {
		o.OnUserMessage = o.OnUserMessage || v.receives(UserMessage)
		o.OnAssistantResponse = o.OnAssistantResponse || v.receives(assistantResponse)
	}
	return o
}

// Forward sends a message to all providers to which the caller has consented, and merges the contexts that arrive within the configured
// Budget. It skips providers that answer later, logs them and counts them in [metric.ContextMissing].
//
// If the caller's quota of messages is used up, Forward does not send the message and returns fault.Exhausted with [quota.RetryAfter].
func (s *Service) Forward(ctx context.Context, c api.Client, m *Message) (*Context, error) {
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

// listConsented returns the providers that receive messages of the kind and to which the principal consented.
func (s *Service) listConsented(ctx context.Context, now *set, p auth.Principal, kind Kind) ([]*provider, error) {
	visible := slices.DeleteFunc(now.listVisible(ctx, p), func(v *provider) bool { return !v.receives(kind) })
	if len(visible) == 0 || p.Anonymous && !s.options.AllowAnonymous {
		return nil, nil
	}
	given, err := s.readConsents(ctx, p.Workspace, p.ID)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(visible, func(v *provider) bool { return !given[v.name].covers(v.to, kind) }), nil
}

type reply struct {
	answer
	missing reason // empty if there is an answer
}

// gather sends the message to all receivers concurrently. It returns the answers that arrive within the time budget, in the order of the
// receivers.
func (s *Service) gather(ctx context.Context, budget time.Duration, receivers []*provider, c api.Client, m *Message) (parts []part) {
	asked, cancel := context.WithTimeout(ctx, budget)
	defer cancel()
	came := make([]chan reply, len(receivers))
	for i, p := range receivers {
		came[i] = make(chan reply, 1) // with room for a reply, so that ask ends even if its reply is late
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
			s.missing.Add(ctx, slog.String("workspace", p.workspace), slog.String("provider", p.name), slog.String("reason", string(x.missing)))
			continue
		}
		parts = append(parts, part{p.name, p.title, x.answer})
	}
	return parts
}

// ask sends the message to one provider, unless the provider's [breaker] is open after too many timeouts. The parameter ctx is the
// caller's context, and asked is the context of the request, which also ends when the time budget is used up.
func (s *Service) ask(ctx, asked context.Context, p *provider, c api.Client, m *Message) reply {
	raw, err := p.breaker.Execute(func() (json.RawMessage, error) {
		raw, err := p.ask(asked, c, m, s.nameFor(p, c.Principal))
		if err != nil {
			f, _ := errors.AsType[failure](err)
			f.reason = reasonOf(asked, ctx, err)
			return nil, f
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

// FailureCounts returns how often each provider failed or answered too late since the process started. The outer key is
// "workspace/provider", and the inner key is the reason.
func (s *Service) FailureCounts() map[string]map[string]int64 { return s.missing.ByThird() }

// A backend whose session takes longer to start than the time budget would never provide any context, because each message would start a
// new session. So the service starts a session in the background, after the response, and the next message uses it.

const (
	prepareTime  = 20 * time.Second // limits the start of one session
	maxPreparing = 64               // how many sessions may start at the same time
	maxOwn       = 16               // how many of these sessions may be of one principal
)

// preparation identifies a session that is being started, so that concurrent messages of a client start only one session.
type preparation struct{ backend, workspace, principal, session string }

// prepare starts the caller's session with a backend. If that takes longer than prepareTime, it calls timedOut.
func (s *Service) prepare(c api.Client, backend string, timedOut func()) {
	this := preparation{backend, c.Principal.Workspace, c.Principal.ID, c.Session}
	s.mu.Lock()
	defer s.mu.Unlock()
	own := 0
	for other := range s.preparing {
		if other.workspace == this.workspace && other.principal == this.principal {
			own++
		}
	}
	if s.preparing[this] || len(s.preparing) >= maxPreparing || own >= maxOwn {
		return
	}
	s.preparing[this] = true
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.ending, prepareTime)
		defer cancel()
		if err := s.options.Backends.Prepare(ctx, c, backend); err != nil {
			s.options.Log.WarnContext(ctx, "provider not ready", "workspace", this.workspace, "provider", backend, "error", err)
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				timedOut()
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.preparing, this)
	})
}

// reason is the reason why a provider's context is missing.
type reason string

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

// failure is an error that keeps only the reason, because a provider's error may contain parts of the conversation.
type failure struct {
	reason reason
	// starting is true if the session with the backend was not ready in time. The service then starts a session in the background.
	starting bool
}

func (f failure) Error() string {
	return "conversation: the provider's answer is missing: " + string(f.reason)
}

// reasonOf returns why a request to a provider failed with err. The parameter asked is the context of this request, which ends when the
// time budget is used up. The parameter caller is the context of the caller, who waits for the providers.
func reasonOf(asked, caller context.Context, err error) reason {
	f, known := errors.AsType[failure](err)
	switch {
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return resting
	case caller.Err() != nil:
		return abandoned
	case asked.Err() != nil:
		return late
	case known:
		return f.reason
	}
	return internal
}

// asker is a function that sends a message to one provider and returns the provider's response unchecked. The parameter principal is the
// principal id or the pseudonym that the provider receives. All errors are of type failure.
type asker func(ctx context.Context, c api.Client, m *Message, principal string) (json.RawMessage, error)

// provider is a context provider from the configuration, or the built-in [rules.EventsProvider].
type provider struct {
	name, title, description string
	workspace                string
	to                       string // hash of the destination; a consent is only for this destination
	kinds                    []Kind // the kinds of messages that it receives
	plain                    bool   // whether the provider receives the principal id itself, not a pseudonym
	isVisible                func(ctx context.Context, p auth.Principal) bool
	ask                      asker
	breaker                  *breaker
}

func (p *provider) receives(kind Kind) bool { return slices.Contains(p.kinds, kind) }

// breaker is a circuit breaker. After tripAfter consecutive timeouts or failed connections, it stops sending messages to a provider for
// the time restFor. Then it lets one message through, and only if that succeeds does the provider get all messages again.
type breaker = gobreaker.CircuitBreaker[json.RawMessage]

const (
	tripAfter = 5
	restFor   = 30 * time.Second
)

// newBreaker returns a breaker for a provider. The breaker counts only failures that make callers wait: timeouts, failed connections, and
// sessions that do not start within prepareTime. Other errors may concern only one caller's message.
//
// A message that fails while the caller's session with the backend is being started does not count. Other callers may already have
// sessions with the backend.
func (s *Service) newBreaker(p *provider) *breaker {
	return gobreaker.NewCircuitBreaker[json.RawMessage](gobreaker.Settings{
		MaxRequests: 1, Timeout: restFor,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter },
		IsSuccessful: func(err error) bool {
			f, _ := errors.AsType[failure](err)
			return f.reason != late && f.reason != unreachable
		},
		IsExcluded: func(err error) bool {
			f, _ := errors.AsType[failure](err)
			return f.reason == abandoned || f.starting
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			s.options.Log.Info("provider state changed",
				"provider", p.name, "workspace", p.workspace, "from", from.String(), "to", to.String())
		},
	})
}

type set struct {
	rules.Conversation
	made      *rules.Conversation // the configuration from which newSet made the providers
	providers []*provider         // the most important one first
}

func (s *set) listVisible(ctx context.Context, p auth.Principal) []*provider {
	var out []*provider
	for _, v := range s.providers {
		if v.workspace == p.Workspace && (v.isVisible == nil || v.isVisible(ctx, p)) {
			out = append(out, v)
		}
	}
	return out
}

func (s *Service) current(ctx context.Context) (*set, error) {
	c, err := s.options.Source.Conversation(ctx)
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "read the configuration")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.set == nil || s.set.made != c {
		s.set = s.newSet(c)
	}
	return s.set, nil
}

// newSet creates the providers of a configuration. A provider that existed before with the same destination keeps its breaker.
func (s *Service) newSet(c *rules.Conversation) *set {
	next := &set{made: c, Conversation: *c}
	for _, v := range c.Providers {
		next.providers = append(next.providers, s.newProvider(c, v))
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

func (s *Service) newProvider(c *rules.Conversation, v rules.Provider) *provider {
	p := &provider{
		name: v.Name, title: v.Title, description: v.Description, workspace: v.Workspace, plain: v.Principal,
		kinds: listKinds(c.UserMessages, c.AssistantResponses),
	}
	if v.Backend == "" {
		p.to, p.ask = hashStrings("url", v.URL), s.askURL(v)
		return p
	}
	p.to = hashStrings("backend", v.Backend, v.BackendURL)
	p.ask = s.askBackend(p, v.Backend)
	p.isVisible = func(ctx context.Context, caller auth.Principal) bool {
		return s.options.Backends != nil && slices.Contains(s.options.Backends.Backends(ctx, caller), v.Backend)
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

func (s *Service) askBackend(p *provider, name string) asker {
	timedOut := func() {
		_, _ = p.breaker.Execute(func() (json.RawMessage, error) { return nil, failure{reason: late} })
	}
	return func(ctx context.Context, c api.Client, m *Message, principal string) (json.RawMessage, error) {
		meta, _ := json.Marshal(map[string]string{metaPrincipal: principal}) // cannot fail for strings
		raw, err := s.options.Backends.Converse(ctx, c, name, m.Kind.Method(), m.Params(meta[1:len(meta)-1]))
		switch {
		case err == nil:
			return raw, nil
		case errors.Is(err, api.ErrIncapable):
			return nil, failure{reason: incapable}
		case errors.Is(err, api.ErrRefused):
			return nil, failure{reason: refused}
		}
		if ctx.Err() == nil || !s.options.Prepares {
			return nil, failure{reason: unreachable}
		}
		s.prepare(c, name, timedOut)
		if errors.Is(err, api.ErrNoSession) {
			return nil, failure{reason: late, starting: true}
		}
		return nil, failure{reason: late}
	}
}

// metaPrincipal is the key in _meta under which a backend receives the caller's principal id or pseudonym.
const metaPrincipal = "io.github.mcp-events/principal"

// nameFor returns the id by which a provider knows the caller. That is the principal id if the provider may see it. Otherwise it is a
// pseudonym, which is different for each provider and stays the same as long as the provider's destination does not change.
func (s *Service) nameFor(p *provider, caller auth.Principal) string {
	if p.plain {
		return url.PathEscape(caller.ID) // without the characters that are not allowed in an HTTP header
	}
	text, _ := json.Marshal([]string{p.to, caller.Workspace, caller.ID}) // cannot fail for strings
	mac := hmac.New(sha256.New, s.names)
	mac.Write(text)
	return opaque.Encode(mac.Sum(nil))
}

// Seal encrypts a context, so that it can be written to the event log. Only [Service.Open] with the same principal can decrypt it.
func (s *Service) Seal(p auth.Principal, text []byte) []byte {
	return s.aead.Seal(nil, nil, text, encodeOwner(p))
}

// Open decrypts a context that [Service.Seal] has encrypted for the same principal.
func (s *Service) Open(p auth.Principal, sealed []byte) ([]byte, error) {
	text, err := s.aead.Open(nil, nil, sealed, encodeOwner(p))
	return text, fault.Wrap(fault.Internal, err, "open a context")
}

func encodeOwner(p auth.Principal) []byte {
	b, _ := json.Marshal([]string{p.Workspace, p.ID}) // cannot fail for strings
	return b
}

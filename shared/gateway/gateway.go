// Package gateway puts existing MCP servers, the backends, behind the endpoint.
//
//	client ─▶ shared/mcp ─▶ gateway ─▶ upstream ─▶ backend
//	              ▲            │ lists: gathered, with prefixes
//	              │            │ calls: messages handed on as they come
//	              └── answers ─┘ by an id that the store knows
//
// What is handed on is the bytes that came: names get their prefix, ids are
// exchanged, and what differs between revisions is translated (package translate); all else is untouched. Nothing that a call needs lies in one process:
// the sessions with backends, and which request of a backend an answer belongs to,
// are in the store, so that the answer may arrive at any instance.
package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
	"github.com/mcp-events/mcpevents/shared/metric"
	"github.com/mcp-events/mcpevents/shared/store"
)

// Options configure a [Gateway].
type Options struct {
	// Backends are those to begin with; see [Gateway.Replace].
	Backends []config.Backend
	// Source tells which backends there are, and is asked at each use, in the place of
	// Backends; nil when they change by [Gateway.Replace] only. What it returns is not changed.
	Source func(context.Context) ([]config.Backend, error)
	// Secrets looks up what a setting refers to; nil is the environment. It is asked for each
	// request to a backend.
	Secrets Secrets
	DB      store.DB
	// HTTP reaches the backends; nil is [upstream.NewHTTP].
	HTTP *http.Client
	// Server is what the gateway calls itself to backends: an MCP Implementation.
	Server json.RawMessage
	// Key authenticates what clients carry between requests: 32 bytes; nil where there are no clients.
	Key []byte
	// ListTTL is how long a backend's list is used at most; 0 is 5 s.
	ListTTL time.Duration
	// AskTimeout bounds what the gateway asks a backend on its own behalf; 0 is 10 s.
	AskTimeout time.Duration
	// CallTimeout bounds a call; 0 is 15 minutes.
	CallTimeout time.Duration
	// SessionTTL is how long a session with a backend is kept; 0 is 24 hours.
	SessionTTL time.Duration
	Log        *slog.Logger
}

// Gateway reaches the backends. It may be used concurrently. Make it with [New].
type Gateway struct {
	options Options
	states  *states
	drops   *metric.Tally
	broken  *metric.Undecodable

	sessions     *sessions
	elicitations *elicitations

	mu   sync.Mutex
	from []config.Backend // what set was made of
	set  []*backend       // not changed, but replaced

	logged map[conflict]bool // guarded by mu
}

// New makes a gateway. It reaches no backend yet. A secret of Backends that is
// not there is of kind fault.Invalid.
func New(o Options) (*Gateway, error) {
	if o.HTTP == nil {
		o.HTTP = upstream.NewHTTP()
	}
	if o.ListTTL == 0 {
		o.ListTTL = 5 * time.Second
	}
	if o.AskTimeout == 0 {
		o.AskTimeout = 10 * time.Second
	}
	if o.CallTimeout == 0 {
		o.CallTimeout = 15 * time.Minute
	}
	if o.SessionTTL == 0 {
		o.SessionTTL = 24 * time.Hour
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Key == nil {
		o.Key = []byte(rand.Text())
	}
	if o.Secrets == nil {
		o.Secrets = environment
	}
	g := &Gateway{options: o, drops: newDrops(o.Log), broken: metric.NewUndecodable(o.Log)}
	g.sessions = &sessions{db: o.DB, log: o.Log, server: o.Server, ttl: o.SessionTTL, askTimeout: o.AskTimeout, broken: g.broken}
	g.elicitations = &elicitations{o.DB, o.Log, g.broken}
	var err error
	if g.states, err = newStates(o.Key); err != nil {
		return nil, err
	}
	return g, g.Replace(context.Background(), o.Backends)
}

// Client is who calls: what a backend is told of it, and where its answers belong.
type Client struct {
	Principal auth.Principal
	// Session is the key of its session in the earlier revisions; empty in 2026-07-28.
	Session string
	Version string
	// Capabilities and Info are as the client sent them.
	Capabilities, Info json.RawMessage
	// Level is the least severity of log messages that its session asked for; empty for none.
	Level string
	// Token is its Authorization header, for backends that get the caller's own.
	Token string
}

func (c Client) stateless() bool { return stateless(c.Version) }

// stateless reports whether a revision, as a setting or the wire names it, has no sessions.
func stateless(version string) bool {
	return version != config.AutoVersion && mcpspec.Version(version).Stateless()
}

// visible are the backends that a principal may use.
func (g *Gateway) visible(ctx context.Context, p auth.Principal) []*backend {
	var out []*backend
	for _, b := range g.backends(ctx) {
		if b.Workspace == p.Workspace && !slices.ContainsFunc(b.Scopes, func(s string) bool { return !p.Has(s) }) {
			out = append(out, b)
		}
	}
	return out
}

// shown are those of them that show something to the client: one that is asked with callers'
// tokens shows nothing to who has none.
func (g *Gateway) shown(ctx context.Context, c Client) []*backend {
	return slices.DeleteFunc(g.visible(ctx, c.Principal), func(b *backend) bool { return b.perCaller() && c.Token == "" })
}

// Offers is what the backends of a principal serve.
type Offers struct {
	Tools, Prompts, Resources, Completions, Logging bool
	// What it tells the changes of.
	ToolsChanged, PromptsChanged, ResourcesChanged, Subscribe bool
	// What it asks to be told of conversations.
	UserMessages, AssistantResponses bool
}

// offerTime is how long a client that connects waits for backends to tell what
// they serve.
const offerTime = 2 * time.Second

// Offers asks the backends of a client what they serve. Those that cannot be
// reached in time are counted by what they said last.
func (g *Gateway) Offers(ctx context.Context, c Client) Offers {
	ctx, cancel := context.WithTimeout(ctx, offerTime)
	defer cancel()
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		all Offers
	)
	for _, b := range g.shown(ctx, c) {
		wg.Go(func() {
			known, err := b.as(ctx, c).known(ctx)
			if err != nil {
				g.options.Log.WarnContext(ctx, "a backend does not tell what it serves", "backend", b.Name, "error", err)
			}
			if known == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all.Tools = all.Tools || known.offers.Tools
			all.Prompts = all.Prompts || known.offers.Prompts
			all.Resources = all.Resources || known.offers.Resources
			all.Completions = all.Completions || known.offers.Completions
			all.Logging = all.Logging || known.offers.Logging
		})
	}
	wg.Wait()
	return all
}

func unknown(what, name string) error {
	return fault.New(fault.Invalid, "there is no %s %.128q", what, name)
}

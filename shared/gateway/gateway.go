// Package gateway puts existing MCP servers, the backends, behind the endpoint.
//
//	client ─▶ shared/mcp ─▶ gateway ─▶ upstream ─▶ backend
//	              ▲            │ lists: gathered, with prefixes (lists.go, view.go)
//	              │            │ calls: messages handed on as they come, in one of four ways (call.go, exchange.go)
//	              └── answers ─┘ by an id that the store knows (elicitations.go)
//
// What is handed on is the bytes that came: names get their prefix, ids are exchanged, and what
// differs between revisions is translated (package translate); all else is untouched. What a call
// needs is in the store or, sealed, with the client, so that any instance can go on with it. What the
// endpoint does with an answer does not enter here: it sees the data of package api. Notifications of
// backends are the business of package relay, which sees a backend as a [Followed].
package gateway

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Options configure a [Gateway].
type Options struct {
	// Backends are those that there are, unless there is a Source.
	Backends []api.Backend
	// Source has the backends that there are, and is asked at each use; nil when they do not change. What it returns is
	// not changed.
	Source func(context.Context) ([]api.Backend, error)
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
	// Metrics count calls, Tracer makes spans of them; both may be nil.
	Metrics *metric.Set
	Tracer  *trace.Tracer
}

// Gateway reaches the backends. It may be used concurrently. Make it with [New].
type Gateway struct {
	options *Options
	states  *states
	drops   *metric.Tally
	broken  *metric.Undecodable

	backends     *backends
	lists        *lists
	sessions     *sessions
	elicitations *elicitations
	running      underWay
}

// New makes a gateway. It reaches no backend yet, and looks up no secret: see [Gateway.Check].
func New(o Options) (*Gateway, error) {
	if o.HTTP == nil {
		o.HTTP = upstream.NewHTTP()
	}
	o.ListTTL = cmp.Or(o.ListTTL, 5*time.Second)
	o.AskTimeout = cmp.Or(o.AskTimeout, 10*time.Second)
	o.CallTimeout = cmp.Or(o.CallTimeout, 15*time.Minute)
	o.SessionTTL = cmp.Or(o.SessionTTL, 24*time.Hour)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Key == nil {
		o.Key = []byte(rand.Text())
	}
	if o.Secrets == nil {
		o.Secrets = secret.FromEnvironment
	}
	g := &Gateway{options: &o, drops: &metric.Tally{Name: MetricDropped, Text: "backend messages dropped", Log: o.Log}, broken: metric.NewUndecodable(o.Log)}
	g.backends, g.lists = &backends{options: &o, drops: g.drops}, &lists{options: &o}
	g.sessions = &sessions{db: o.DB, log: o.Log, ttl: o.SessionTTL, idle: o.CallTimeout + usedEvery, broken: g.broken}
	g.elicitations = &elicitations{o.DB, o.Log, g.broken}
	var err error
	if g.states, err = newStates(o.Key); err != nil {
		return nil, err
	}
	g.backends.replace(context.Background(), o.Backends)
	return g, nil
}

// capabilityTime is how long a client that connects waits for backends to say what
// they serve.
const capabilityTime = 2 * time.Second

// Capabilities asks the backends of a client what they serve. Those that cannot be
// reached in time are counted by what they said last.
func (g *Gateway) Capabilities(ctx context.Context, c api.Client) api.Capabilities {
	ctx, cancel := context.WithTimeout(ctx, capabilityTime)
	defer cancel()
	var (
		wg  sync.WaitGroup
		mu  sync.Mutex
		all api.Capabilities
	)
	for _, v := range g.backends.shown(ctx, c) {
		wg.Go(func() {
			known, err := v.known(ctx)
			if err != nil {
				v.of.logCapabilities.Do(func() {
					g.options.Log.WarnContext(ctx, "backend capabilities unknown", "backend", v.of.Name, "error", err)
				})
			}
			if known == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all.Tools = all.Tools || known.Tools
			all.Prompts = all.Prompts || known.Prompts
			all.Resources = all.Resources || known.Resources
			all.Completions = all.Completions || known.Completions
			all.Logging = all.Logging || known.Logging
		})
	}
	wg.Wait()
	return all
}

func unknown(what, name string) error {
	return fault.New(fault.Invalid, "there is no %s %.128q", what, name)
}

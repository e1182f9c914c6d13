// Package gateway forwards the calls of MCP clients to backends, which are existing MCP servers, and the backends' responses, progress
// and questions to the clients. It keeps sessions with backends, input rounds and tasks for longer than one request.
//
//	client ─▶ shared/mcp ─▶ gateway ─▶ upstream ─▶ backend
//
//	call.go          a call, from the request to the response, if client and backend both have sessions or are both of 2026-07-28
//	messages.go      how one message of a call changes on its way, and the notifications of extensions
//	rounds.go        calls of a client of 2026-07-28 to a backend with sessions, and the state that clients carry between them
//	inputrounds.go   calls of a client with a session to a backend of 2026-07-28
//	elicitations.go  the questions of backends to clients, and the answers
//	strays.go        messages of a call that a backend sends on the GET stream of the session
//	cancel.go        cancellations
//	record.go        the log line and the metric of a call
//	sessions.go      the clients' sessions with backends
//	tasks.go         the backends' tasks, which get our own ids, and the notifications about them
//	conversation.go  user messages and assistant responses that clients hand to backends
//
// The gateway forwards the original bytes of a message. It changes only three things: it prefixes names, replaces ids, and translates
// differences between protocol revisions (package translate). Everything that a call needs later is in the store or, encrypted, with the
// client, so that any instance can continue it. The endpoint gets its data in the types of package api and decides how to respond.
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
	"github.com/mcp-events/mcpevents/shared/gateway/backends"
	"github.com/mcp-events/mcpevents/shared/gateway/sealed"
	"github.com/mcp-events/mcpevents/shared/gateway/sessionstream"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/loglines"
	"github.com/mcp-events/mcpevents/shared/platform/metric"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Secrets is a function that returns the text of a secret in a backend's settings.
type Secrets = backends.Secrets

// Options configure a [Gateway].
type Options struct {
	Backends []api.Backend // ignored if there is a Source
	// Source returns the current backends; nil means that they never change. The gateway calls it before each use and does not modify the
	// result.
	Source func(context.Context) ([]api.Backend, error)
	// Secrets returns the text of a secret for each request to a backend; nil reads environment variables.
	Secrets  Secrets
	DB       store.DB
	HTTP     *http.Client      // nil means [upstream.NewHTTP]
	Commands backends.Commands // nil if this process runs none
	// EventsWanted reports whether clients are subscribed to events of a backend that runs as a command. It may be nil.
	EventsWanted func(ctx context.Context, workspace, backend string) bool
	// Server is the MCP Implementation object with which the gateway identifies itself to backends, and to clients in the results of backends
	// that do not identify themselves.
	Server json.RawMessage
	// Key is the 32-byte secret that encrypts the state that clients carry between requests. All instances of a deployment have the same
	// key. Nil means a random key, which suffices in a process that serves no clients.
	Key        []byte
	ListTTL    time.Duration // how long the gateway reuses a backend's list; 0 means 5 s
	AskTimeout time.Duration // limits the gateway's own requests to a backend; 0 means 10 s
	// StreamLinger is how long a session's GET stream stays open after the last call; see [sessionstream.Streams.Linger].
	StreamLinger time.Duration
	CallTimeout  time.Duration // 0 means 15 minutes
	Log          *slog.Logger
	// LogDelay is how long a call's log line may wait to be written together with others; 0 writes each line immediately. [Gateway.Flush]
	// writes the waiting lines early.
	LogDelay time.Duration
	// Metrics counts calls and Tracer traces them. Both may be nil.
	Metrics *metric.Set
	Tracer  *trace.Tracer
}

// Gateway forwards requests to the backends. It is safe for concurrent use. Create it with [New].
type Gateway struct {
	*backends.Set // has the methods that read the backends' lists and capabilities

	options      *Options
	drops        *metric.Tally
	states       *sealed.States
	tasks        *sealed.TaskIDs
	broken       *metric.Undecodable
	sessions     *sessions
	elicitations *elicitations
	strays       *sessionstream.Streams
	running      sync.Map // the cancel function (a *context.CancelCauseFunc) of each running call, by the key of its cancellation mark
	lines        loglines.Writer
}

// New creates a gateway. It does not contact backends or resolve secrets yet; see [backends.Set.Check].
func New(o Options) (*Gateway, error) {
	if o.HTTP == nil {
		o.HTTP = upstream.NewHTTP()
	}
	o.ListTTL = cmp.Or(o.ListTTL, 5*time.Second)
	o.AskTimeout = cmp.Or(o.AskTimeout, 10*time.Second)
	o.CallTimeout = cmp.Or(o.CallTimeout, 15*time.Minute)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Key == nil {
		o.Key = []byte(rand.Text())
	}
	if o.Secrets == nil {
		o.Secrets = secret.FromEnvironment
	}
	states, err := sealed.NewStates(o.Key)
	if err != nil {
		return nil, err
	}
	tasks, err := sealed.NewTaskIDs(o.Key)
	if err != nil {
		return nil, err
	}
	drops := &metric.Tally{Name: metric.BackendDropped, Text: "backend messages dropped", Log: o.Log, Set: o.Metrics}
	set := backends.New(backends.Options{
		Source: o.Source, Secrets: o.Secrets, DB: o.DB, HTTP: o.HTTP, Commands: o.Commands, EventsWanted: o.EventsWanted, Server: o.Server, ListTTL: o.ListTTL, AskTimeout: o.AskTimeout,
		Log: o.Log, Metrics: o.Metrics, Tracer: o.Tracer, Drops: drops,
	})
	set.Replace(context.Background(), o.Backends)
	broken := metric.NewUndecodable(o.Log, o.Metrics)
	return &Gateway{
		Set: set, options: &o, drops: drops, states: states, tasks: tasks, broken: broken,
		sessions:     &sessions{db: o.DB, log: o.Log, key: o.Key, idle: o.CallTimeout + usedEvery, broken: broken},
		strays:       &sessionstream.Streams{Linger: o.StreamLinger},
		elicitations: &elicitations{db: o.DB, log: o.Log, broken: broken},
		lines:        loglines.Writer{Handler: o.Log.Handler(), Delay: o.LogDelay},
	}, nil
}

// DroppedCounts returns how many messages of each backend the gateway has dropped since the process started. The outer key is
// workspace/backend, the inner key is the reason.
func (g *Gateway) DroppedCounts() map[string]map[string]int64 { return g.drops.ByThird() }

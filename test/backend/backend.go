package backend

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Kind says which backend.
type Kind string

// The kinds of backends.
const (
	Stateful    Kind = "stateful"
	Stateless   Kind = "stateless"
	Misbehaving Kind = "misbehaving"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Stateful, Stateless, Misbehaving} }

// v20260728 is the revision of [Stateless].
const v20260728 = "2026-07-28"

// New makes a backend. It serves
//
//	/mcp      the MCP endpoint
//	/state    what it saw, as the JSON of [State]
//	/healthz  200
//	/changed  POST announces that a list has changed (?list=tools|prompts|resources)
//	          or that a resource has (?uri=…); with ?tool=NAME the tools have one more;
//	          not with [Misbehaving]
func New(kind Kind) (http.Handler, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	seen := &observer{}
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(seen.state())
	})
	switch kind {
	case Stateful, Stateless:
		f := newFixtures(kind == Stateless)
		f.server.AddReceivingMiddleware(seen.middleware)
		if kind == Stateful {
			seen.live = f.server.Sessions
		}
		mux.Handle("/mcp", seen.http(f.handler()))
		mux.HandleFunc("POST /changed", f.change)
	case Misbehaving:
		mux.Handle("/mcp", seen.http(newRogue(seen)))
	default:
		return nil, fmt.Errorf("no backend is %q; there are %v", kind, Kinds())
	}
	return mux, nil
}

// Run serves a well-behaved kind over standard input and output, until the input ends.
func Run(ctx context.Context, kind Kind) error {
	if kind != Stateful && kind != Stateless {
		return fmt.Errorf("%q does not speak over standard input", kind)
	}
	f := newFixtures(kind == Stateless)
	return f.server.Run(ctx, &mcp.StdioTransport{})
}

// fixtures is a well-behaved server with the tools, prompts and resources that the conformance suite uses.
type fixtures struct {
	server    *mcp.Server
	stateless bool
	events    mcp.EventStore // for resumed streams; nil without sessions
	key       []byte         // seals request states
}

func newFixtures(stateless bool) *fixtures {
	f := &fixtures{stateless: stateless, key: make([]byte, 32)}
	_, _ = rand.Read(f.key)
	opts := &mcp.ServerOptions{
		CompletionHandler:  complete,
		SubscribeHandler:   subscribe,
		UnsubscribeHandler: unsubscribe,
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) {
			c.TTLMs, c.CacheScope = 5000, "public"
		},
	}
	if !stateless {
		f.events = mcp.NewMemoryEventStore(nil)
		opts.SupportedProtocolVersions = []string{"2025-11-25", "2025-06-18", "2025-03-26"} // over HTTP the transport already decides that
	} else {
		opts.SupportedProtocolVersions = []string{v20260728}
	}
	f.server = mcp.NewServer(&mcp.Implementation{Name: "fixtures", Title: "Fixtures", Version: "1"}, opts)
	for _, t := range tools() {
		f.add(t)
	}
	f.addResources()
	f.addPrompts()
	return f
}

func (f *fixtures) handler() http.Handler {
	return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return f.server }, &mcp.StreamableHTTPOptions{
		Stateless:                    f.stateless,
		EventStore:                   f.events,
		PropagateRequestCancellation: true,
	})
}

// change answers POST /changed.
func (f *fixtures) change(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if uri := q.Get("uri"); uri != "" {
		_ = f.server.ResourceUpdated(r.Context(), &mcp.ResourceUpdatedNotificationParams{URI: uri})
		return
	}
	if name := q.Get("tool"); name != "" {
		f.add(tool{name: name, description: "Was added while the server ran.", run: content(sentence)})
		return
	}
	switch list := q.Get("list"); list {
	case "tools":
		f.changeTools()
	case "prompts":
		f.changePrompts()
	case "resources":
		f.changeResources()
	default:
		http.Error(w, fmt.Sprintf("no list is %q", list), http.StatusBadRequest)
	}
}

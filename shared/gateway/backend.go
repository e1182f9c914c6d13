package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

// backend is one MCP server behind the gateway.
type backend struct {
	config.Backend
	gateway *Gateway
	http    *http.Client
	granted granted

	throttle *throttle
	changed  chan struct{} // receives when what is wanted of it may have changed

	*view // with the operator's credentials
	views views
}

// learned is what a backend said of itself.
type learned struct {
	version string
	session string // of the gateway's own session with it, in the earlier revisions
	offers  Offers
	at      time.Time
}

func (g *Gateway) newBackend(c config.Backend) *backend {
	b := &backend{Backend: c, gateway: g, http: g.options.HTTP, changed: make(chan struct{}, 1), throttle: newThrottle()}
	b.view = newView(b, "")
	return b
}

// client speaks to the backend for a caller, or for the gateway itself with an
// empty token.
func (b *backend) client(callerToken string) *upstream.Client {
	return &upstream.Client{URL: b.URL, HTTP: b.http, Credentials: b.credentials(callerToken)}
}

// relearn is how long what a backend said of itself is believed.
const relearn = 5 * time.Minute

// known is what the backend said of itself, asked for by one caller at a time.
// Something older is better than nothing: with an error, it is what was known before.
func (v *view) known(ctx context.Context) (*learned, error) {
	for {
		v.mu.Lock()
		have, f := v.learned, v.asking
		if have != nil && time.Since(have.at) < relearn {
			v.mu.Unlock()
			return have, nil
		}
		first := f == nil
		if first {
			f = newFlight[*learned]()
			v.asking = f
		}
		v.mu.Unlock()
		if first {
			now, err := f.fly(ctx, func() (*learned, error) { return v.learn(ctx, have) })
			if err == nil && have != nil {
				// Who still uses it finds it gone, and asks for the new one.
				v.of.gateway.sessions.end(context.WithoutCancel(ctx), v.of, v.token, backendSession{Version: have.version, ID: have.session})
			}
			return now, err
		}
		if now, err, ok := f.wait(ctx); ok {
			if now == nil {
				now = have
			}
			return now, fault.Wrap(fault.Unavailable, err, "wait for backend %s", v.of.Name)
		}
	}
}

func (v *view) learn(ctx context.Context, have *learned) (now *learned, err error) {
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		v.asking = nil
		if err == nil {
			v.learned = now
		}
	}()
	if now, err = v.ask(ctx); err != nil {
		return have, err
	}
	now.at = time.Now()
	return now, nil
}

// forget makes the next caller ask again, unless somebody has already.
func (v *view) forget(was *learned) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if was != nil && v.learned == was {
		old := *was
		old.at = time.Time{}
		v.learned = &old
	}
}

// ask finds out the revision and what is served: by server/discover, which only
// 2026-07-28 has, and else by initialize.
func (v *view) ask(ctx context.Context) (*learned, error) {
	b, c := v.of, v.client()
	pinned := b.ProtocolVersion
	if pinned == config.AutoVersion || stateless(pinned) {
		got, err := b.discover(ctx, c)
		if err == nil || stateless(pinned) || fault.Is(err, fault.Unavailable) && !refused(err) {
			return got, err
		}
	}
	version := string(mcpspec.LatestSessionBased)
	if pinned != config.AutoVersion {
		version = pinned
	}
	params, _ := json.Marshal(map[string]json.RawMessage{
		"protocolVersion": jsonrpc.Quote(version), "capabilities": json.RawMessage(`{}`), "clientInfo": b.gateway.options.Server,
	})
	session, got, err := b.initialize(ctx, c, params)
	if err != nil {
		return nil, err
	}
	return &learned{version: got.version, session: session, offers: got.offers}, nil
}

// refused reports whether the backend answered, though not with what was asked for.
func refused(err error) bool {
	_, ok := errors.AsType[*upstream.StatusError](err)
	return ok || errors.Is(err, errRPC)
}

var errRPC = errors.New("gateway: the backend answered with an error")

func (b *backend) discover(ctx context.Context, c *upstream.Client) (*learned, error) {
	const version = string(mcpspec.V20260728)
	params := b.meta(version, json.RawMessage(`{}`))
	result, err := b.request(ctx, c, upstream.Request{Version: version}, mcpspec.MethodDiscover, params)
	if err != nil {
		return nil, err
	}
	// It may tell of itself in this revision and serve only others.
	for v := range jsonrpc.Elements(jsonrpc.Member(result, "supportedVersions")) {
		if text, _ := jsonrpc.String(v); text == version {
			return &learned{version: version, offers: offersOf(jsonrpc.Member(result, "capabilities"))}, nil
		}
	}
	return nil, fault.Wrap(fault.Unavailable, errRPC, "backend %s does not serve %s", b.Name, version)
}

// meta is params with nothing but what every request of revision 2026-07-28 has.
func (b *backend) meta(version string, capabilities json.RawMessage) json.RawMessage {
	out := append([]byte(`{"_meta":{"`+mcpspec.MetaVersion+`":`), jsonrpc.Quote(version)...)
	out = append(append(out, `,"`+mcpspec.MetaCapabilities+`":`...), capabilities...)
	out = append(append(out, `,"`+mcpspec.MetaClient+`":`...), b.gateway.options.Server...)
	return append(out, `}}`...)
}

type initialized struct {
	version string
	offers  Offers
}

// initialize begins a session of the earlier revisions.
func (b *backend) initialize(ctx context.Context, c *upstream.Client, params json.RawMessage) (session string, got initialized, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.gateway.options.AskTimeout)
	defer cancel()
	body := jsonrpc.AppendRequest(nil, json.RawMessage(`0`), mcpspec.MethodInitialize, params)
	x, err := c.Post(ctx, upstream.Request{Body: body})
	if err != nil {
		return "", got, err
	}
	defer x.Close()
	result, err := b.response(ctx, x)
	if err != nil {
		return "", got, err
	}
	version, ok := jsonrpc.String(jsonrpc.Member(result, "protocolVersion"))
	if !ok || version < string(mcpspec.V20250326) || stateless(version) {
		return "", got, fault.New(fault.Unavailable, "backend %s speaks the revision %.40q", b.Name, version)
	}
	got = initialized{version, offersOf(jsonrpc.Member(result, "capabilities"))}
	session = x.Session
	note := jsonrpc.AppendNotification(nil, mcpspec.NoteInitialized, nil)
	done, err := c.Post(ctx, upstream.Request{Body: note, Version: version, Session: session})
	if err != nil {
		return "", got, err
	}
	done.Close()
	return session, got, nil
}

func offersOf(capabilities json.RawMessage) Offers {
	has := func(name string) bool { return jsonrpc.Member(capabilities, name) != nil }
	tells := func(name, what string) bool {
		return string(jsonrpc.Member(jsonrpc.Member(capabilities, name), what)) == "true"
	}
	return Offers{
		Tools: has("tools"), Prompts: has("prompts"), Resources: has("resources"),
		Completions: has("completions"), Logging: has("logging"),
		ToolsChanged: tells("tools", "listChanged"), PromptsChanged: tells("prompts", "listChanged"),
		ResourcesChanged: tells("resources", "listChanged"), Subscribe: tells("resources", "subscribe"),
		UserMessages: tells("conversationEvents", "onUserMessage"), AssistantResponses: tells("conversationEvents", "onAssistantResponse"),
	}
}

// request asks the backend on the gateway's own behalf and returns the result.
func (b *backend) request(ctx context.Context, c *upstream.Client, r upstream.Request, method string, params json.RawMessage) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, b.gateway.options.AskTimeout)
	defer cancel()
	// Others may ask within the same session at the same time.
	r.Body = jsonrpc.AppendRequest(nil, freshID(), method, params)
	if stateless(r.Version) {
		r.Header = http.Header{mcpspec.HeaderMethod: {method}}
	}
	x, err := c.Post(ctx, r)
	if err != nil {
		if _, ok := errors.AsType[*upstream.Garbage](err); ok {
			b.dropped(ctx, dropGarbage)
		}
		return nil, err
	}
	defer x.Close()
	return b.response(ctx, x)
}

// response waits for the result of a request that has nothing else to say.
func (b *backend) response(ctx context.Context, x *upstream.Exchange) (json.RawMessage, error) {
	for {
		raw, err := x.Next()
		if _, garbage := errors.AsType[*upstream.Garbage](err); garbage {
			b.dropped(ctx, dropGarbage)
			continue
		}
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "wait for a backend's answer")
		}
		m, ok := upstream.Read(raw)
		switch {
		case !ok:
			b.dropped(ctx, dropNoMessage)
		case !m.Response():
			// It has things to say on the way, which are not meant for anybody here.
		case m.Error != nil:
			x.Finish()
			return nil, fault.Wrap(fault.Unavailable, errRPC, "a backend answered with the error %s", jsonrpc.Member(m.Error, "code"))
		default:
			x.Finish()
			return m.Result, nil
		}
	}
}

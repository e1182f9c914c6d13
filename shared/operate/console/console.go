// Package console serves the web page for operators at /console/. The page calls the admin API with the user's key or token. The handler
// generates config.json, which tells the page how users sign in. The files in static/lib are unchanged libraries from npm.
package console

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"io/fs"
	"log/slog"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
)

// Prefix is the path of the console.
const Prefix = "/console/"

//go:embed static
var static embed.FS

// Client is the OAuth client that the console uses when people sign in at an authorization server.
type Client struct {
	Issuer, ID string
	Scopes     []string
	// Resource is the audience of the access token that the console requests (RFC 8707).
	Resource string
	// Endpoints returns the URLs of the authorization server's endpoints for authorization and tokens.
	Endpoints func(context.Context) (authorize, token string, err error)
}

// Options configure a [Handler].
type Options struct {
	Auth auth.Mode
	// Client is nil if users sign in by entering a key or a token into the page.
	Client *Client
}

// Handler serves the console. Use [New] to create one.
type Handler struct {
	Options

	log   *slog.Logger
	files map[string]file

	signIn *refresh.Value[*signIn]
}

type file struct {
	kind, tag string
	content   []byte
}

// signIn has the data that the page needs for OAuth's authorization code flow.
type signIn struct {
	Issuer    string   `json:"issuer"`
	ClientID  string   `json:"clientId"`
	Scopes    []string `json:"scopes"`
	Resource  string   `json:"resource"`
	Authorize string   `json:"authorizationEndpoint"`
	Token     string   `json:"tokenEndpoint"`
}

const (
	// fresh is how long the handler uses the authorization server's endpoints before it requests them again.
	fresh = 10 * time.Minute
	// retry is how long the handler waits after a failed request to the authorization server.
	retry = 5 * time.Second
)

// New returns a handler.
func New(o Options, log *slog.Logger) *Handler {
	h := &Handler{Options: o, log: log, files: map[string]file{}}
	h.signIn = refresh.New(refresh.Options{
		Name: "the authorization server", Fresh: fresh, Shared: refresh.Forever, Stale: refresh.Forever, Backoff: retry, EmptyBackoff: retry,
	}, h.ask)
	root, _ := fs.Sub(static, "static")
	_ = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		sum := sha256.Sum256(content)
		kind := cmp.Or(mime.TypeByExtension(path.Ext(name)), "text/plain; charset=utf-8")
		h.files[name] = file{kind, `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`, content}
		return err
	})
	return h
}

// ServeHTTP serves a file. It does not authenticate callers, because the files contain no data.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := cmp.Or(strings.TrimPrefix(r.URL.Path, Prefix), "index.html")
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Opener-Policy", "same-origin")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Cache-Control", "no-cache")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, r.Method+" is not allowed (allowed: GET, HEAD)", http.StatusMethodNotAllowed)
		return
	}
	at := h.endpoints(r.Context())
	header.Set("Content-Security-Policy", buildPolicy(at))
	if name == "config.json" {
		header.Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(struct {
			Auth   auth.Mode `json:"auth"`
			Client bool      `json:"client"` // whether a client is configured, even if its authorization server does not answer
			SignIn *signIn   `json:"signIn,omitempty"`
		}{h.Auth, h.Client != nil, at})
		return
	}
	f, ok := h.files[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	header.Set("Content-Type", f.kind)
	header.Set("ETag", f.tag)
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(f.content)
}

// buildPolicy returns the Content-Security-Policy of the page. It permits the page's own files, requests to the page's own host, and
// token requests to the authorization server.
func buildPolicy(at *signIn) string {
	connect := "'self'"
	if at != nil {
		if u, err := url.Parse(at.Token); err == nil {
			connect += " " + u.Scheme + "://" + u.Host
		}
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src " + connect +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types lit-html"
}

// endpoints returns the endpoints of the authorization server, or nil if the console has no OAuth client. Until the endpoints are known,
// callers wait for the authorization server, and get nil if it does not answer. After that, callers immediately get the last known
// endpoints. If these are older than [fresh], the handler asks for newer ones in the background.
func (h *Handler) endpoints(ctx context.Context) *signIn {
	if h.Client == nil {
		return nil
	}
	known, asked := h.signIn.Peek()
	if known == nil {
		known, _ = h.signIn.Get(ctx)
	} else if time.Since(asked) >= fresh {
		go func() { _, _ = h.signIn.Get(context.WithoutCancel(ctx)) }()
	}
	return known
}

// ask requests the URLs of the endpoints from the authorization server.
func (h *Handler) ask(ctx context.Context, _ *signIn) (*signIn, error) {
	c := h.Client
	authorize, token, err := c.Endpoints(ctx)
	if err != nil {
		h.log.WarnContext(ctx, "authorization server not found", "issuer", c.Issuer, "error", err)
		return nil, err
	}
	return &signIn{c.Issuer, c.ID, c.Scopes, c.Resource, authorize, token}, nil
}

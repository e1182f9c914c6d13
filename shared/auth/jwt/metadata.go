package jwt

import (
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// WellKnown is the path of the protected resource metadata (RFC 9728, section 3). If the resource has a path, that is appended.
const WellKnown = "/.well-known/oauth-protected-resource"

// resourcePath matches paths that need no encoding or resolving.
var resourcePath = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?$`)

// metadataURL returns the URL of a resource's metadata. The resource is a URL without a fragment (RFC 8707, section 2).
func metadataURL(text string) (*url.URL, error) {
	u, err := parseSecureURL(text)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "--jwt-audience must begin with the URL of the MCP endpoint")
	}
	if u.RawQuery != "" {
		return nil, fault.New(fault.Invalid, "--jwt-audience: %.200q has a query", text)
	}
	if !resourcePath.MatchString(u.Path) {
		return nil, fault.New(fault.Invalid, "--jwt-audience: %.200q has a path that is not simple", text)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: WellKnown + strings.TrimSuffix(u.Path, "/")}, nil
}

// MetadataURL returns the URL of this resource's metadata, which 401 and 403 responses contain (RFC 9728, section 5.1).
func (a *Authenticator) MetadataURL() string { return a.metadata.String() }

// metadata is the metadata of this resource (RFC 9728, section 2).
type metadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	Scopes               []string `json:"scopes_supported"`
	Methods              []string `json:"bearer_methods_supported"`
	Name                 string   `json:"resource_name"`
}

// Mount serves the metadata at the well-known path with and without the resource's path, because clients look for the metadata of
// https://host/mcp at either. It is public, also for web pages.
func (a *Authenticator) Mount(mux *http.ServeMux) {
	var scopes []string
	for _, scope := range auth.Scopes() {
		scopes = append(scopes, a.options.ScopePrefix+scope)
	}
	body, _ := json.Marshal(metadata{ // strings always marshal
		Resource: a.options.Audience[0], AuthorizationServers: a.options.Issuers,
		Scopes: scopes, Methods: []string{"header"}, Name: "mcp-events",
	})
	serve := func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", "*")
		if r.Method == http.MethodOptions {
			h.Set("Access-Control-Allow-Methods", "GET")
			h.Set("Access-Control-Allow-Headers", "Mcp-Protocol-Version")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "public, max-age=300")
		_, _ = w.Write(body) // fails if the caller has left
	}
	paths := []string{WellKnown, WellKnown + "/mcp", a.metadata.Path}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		for _, method := range []string{http.MethodGet, http.MethodOptions} { // GET includes HEAD
			mux.HandleFunc(method+" "+path, serve)
		}
	}
}

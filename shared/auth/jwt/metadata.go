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

// WellKnown is the path of the protected resource metadata (RFC 9728, section 3). That of a
// resource with a path has it after.
const WellKnown = "/.well-known/oauth-protected-resource"

// resourcePath is a path without what would have to be encoded or resolved.
var resourcePath = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?$`)

// metadataURL is where the metadata of a resource is, by its identifier (RFC 8707, section 2): a URL without a fragment.
func metadataURL(text string) (*url.URL, error) {
	u, err := secureURL(text)
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

// MetadataURL is where clients find the metadata of this resource; a 401 and a 403
// name it (RFC 9728, section 5.1).
func (a *Authenticator) MetadataURL() string { return a.metadata.String() }

// metadata is the document (RFC 9728, section 2).
type metadata struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers"`
	Scopes               []string `json:"scopes_supported"`
	Methods              []string `json:"bearer_methods_supported"`
	Name                 string   `json:"resource_name"`
}

// Mount serves the metadata: at the well-known path, and there with a path after, for
// clients look for that of https://host/mcp at either. Everybody may read it, web
// pages included; there is no secret in it.
func (a *Authenticator) Mount(mux *http.ServeMux) {
	var scopes []string
	for _, scope := range auth.Scopes() {
		scopes = append(scopes, a.options.ScopePrefix+scope)
	}
	body, _ := json.Marshal(metadata{ // strings only
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
		_, _ = w.Write(body) // the caller may be gone
	}
	paths := []string{WellKnown, WellKnown + "/mcp", a.metadata.Path}
	slices.Sort(paths)
	for _, path := range slices.Compact(paths) {
		for _, method := range []string{http.MethodGet, http.MethodOptions} { // GET stands for HEAD too
			mux.HandleFunc(method+" "+path, serve)
		}
	}
}

package config

import (
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
)

var (
	backendName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	backendPrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,32}$`)
)

func (p *parser) backend(n *strictyaml.Node) api.Backend {
	b := api.Backend{Workspace: auth.DefaultWorkspace, ProtocolVersion: api.AutoVersion}
	say := named("backend", &b.Name)
	given := p.fields(n, "a backend", say,
		field{"name", into(&b.Name, p.matching(backendName))},
		field{"url", into(&b.URL, p.url)},
		field{"prefix", into(&b.Prefix, p.matching(backendPrefix))},
		field{"workspace", into(&b.Workspace, p.workspace)},
		field{"scopes", into(&b.Scopes, p.scopes)},
		field{"protocolVersion", into(&b.ProtocolVersion, p.protocolVersion)},
		field{"headers", into(&b.Headers, p.headers)},
		field{"oauth", into(&b.OAuth, p.oauth)},
		field{"forwardToken", into(&b.ForwardToken, p.file.Bool)},
	)
	if given != nil && !given["name"] {
		p.file.Add(n.Line, "a backend has no name")
	}
	if given != nil && !given["url"] {
		p.file.Add(n.Line, "%s is missing", say("url"))
	}
	// Both are for the gateway's own requests and, without forwardToken, for those of callers.
	if _, fixed := b.Headers["Authorization"]; fixed && b.OAuth != nil {
		p.file.Add(n.Line, "%s", say("only one of an Authorization header and oauth is possible"))
	}
	return b
}

func (r reader) protocolVersion(n *strictyaml.Node, what string) string {
	s := r.file.String(n, what)
	if s != api.AutoVersion && !slices.Contains(api.ProtocolVersions(), s) {
		r.file.Add(n.Line, "%s: %q is not known (auto, %s)", what, strictyaml.Clip(s), strings.Join(api.ProtocolVersions(), ", "))
	}
	return s
}

func (r reader) url(n *strictyaml.Node, what string) string {
	s := r.file.String(n, what)
	if s == "" && n.Value != "" {
		return ""
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || len(s) > 2048:
		r.file.Add(n.Line, "%s: %q is not an http or https URL", what, strictyaml.Clip(s))
	case u.User != nil:
		r.file.Add(n.Line, "%s must not hold a password; use headers", what)
	case u.Fragment != "":
		r.file.Add(n.Line, "%s must not have a fragment", what)
	}
	return s
}

func (p *parser) oauth(n *strictyaml.Node, what string) *api.OAuth {
	o := &api.OAuth{}
	given := p.fields(n, what, func(member string) string { return what + " " + member },
		field{"tokenUrl", into(&o.TokenURL, p.tokenURL)},
		field{"clientId", into(&o.ClientID, p.file.String)},
		field{"clientSecret", into(&o.ClientSecret, p.secret)},
		field{"scopes", into(&o.Scopes, p.scopes)},
	)
	if o.TokenURL == "" || o.ClientID == "" || !given["clientSecret"] {
		p.file.Add(n.Line, "%s needs tokenUrl, clientId and clientSecret", what)
	}
	return o
}

func (r reader) tokenURL(n *strictyaml.Node, what string) string {
	s := r.url(n, what)
	if u, err := url.Parse(s); err == nil && u.Scheme == "http" && !auth.Loopback(u.Hostname()) {
		r.file.Add(n.Line, "%s must be https, for the secret is sent there", what)
	}
	return s
}

package config

import (
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config/strictyaml"
)

var (
	backendName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	backendPrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,32}$`)
)

var backendMembers = []string{
	"name", "url", "prefix", "workspace", "scopes", "protocolVersion", "headers", "oauth", "forwardToken",
}

// backend reads one backend. Members are checked as they come, the whole at the end.
func (p *parser) backend(n *strictyaml.Node) Backend {
	b := Backend{Workspace: auth.DefaultWorkspace, ProtocolVersion: AutoVersion}
	say := func(member string) string {
		if b.Name == "" {
			return "a backend: " + member
		}
		return "backend " + strictyaml.Clip(b.Name) + ": " + member
	}
	members := p.file.Members(n, "a backend")
	named, located := false, false
	for _, m := range members {
		switch m.Key {
		case "name":
			named = true
			b.Name = p.matching(m.Value, "a backend: name", backendName)
		case "url":
			located = true
			b.URL = p.url(m.Value, say("url"))
		case "prefix":
			b.Prefix = p.matching(m.Value, say("prefix"), backendPrefix)
		case "workspace":
			b.Workspace = p.file.String(m.Value, say("workspace"))
			if b.Workspace != "" && !auth.ValidWorkspace(b.Workspace) {
				p.file.Add(m.Line, "%s: %q is not the name of a workspace", say("workspace"), strictyaml.Clip(b.Workspace))
			}
		case "scopes":
			b.Scopes = p.scopes(m.Value, say("scopes"))
		case "protocolVersion":
			b.ProtocolVersion = p.file.String(m.Value, say("protocolVersion"))
			if b.ProtocolVersion != AutoVersion && !slices.Contains(ProtocolVersions(), b.ProtocolVersion) {
				p.file.Add(m.Line, "%s: %q is not known (auto, %s)", say("protocolVersion"),
					strictyaml.Clip(b.ProtocolVersion), strings.Join(ProtocolVersions(), ", "))
			}
		case "headers":
			b.Headers = p.headers(m.Value, say("header"))
		case "oauth":
			b.OAuth = p.oauth(m.Value, say("oauth"))
		case "forwardToken":
			b.ForwardToken = p.file.Bool(m.Value, say("forwardToken"))
		default:
			p.file.Unknown(m, "a backend", backendMembers...)
		}
	}
	if members != nil && !named {
		p.file.Add(n.Line, "a backend has no name")
	}
	if members != nil && !located {
		p.file.Add(n.Line, "%s is missing", say("url"))
	}
	p.oneCredential(n, b, say)
	return b
}

// oneCredential refuses two credentials of the operator's, which are for the gateway's own requests
// and, without forwardToken, for those of callers.
func (p *parser) oneCredential(n *strictyaml.Node, b Backend, say func(string) string) {
	if _, fixed := b.Headers["Authorization"]; fixed && b.OAuth != nil {
		p.file.Add(n.Line, "%s", say("only one of an Authorization header and oauth is possible"))
	}
}

func (p *parser) matching(n *strictyaml.Node, what string, pattern *regexp.Regexp) string {
	before := p.file.Count()
	s := p.file.String(n, what)
	if p.file.Count() == before && !pattern.MatchString(s) {
		p.file.Add(n.Line, "%s: %q does not match %s", what, strictyaml.Clip(s), pattern)
	}
	return s
}

func (p *parser) url(n *strictyaml.Node, what string) string {
	s := p.file.String(n, what)
	if s == "" && n.Value != "" {
		return ""
	}
	u, err := url.Parse(s)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || len(s) > 2048:
		p.file.Add(n.Line, "%s: %q is not an http or https URL", what, strictyaml.Clip(s))
	case u.User != nil:
		p.file.Add(n.Line, "%s must not hold a password; use headers", what)
	case u.Fragment != "":
		p.file.Add(n.Line, "%s must not have a fragment", what)
	}
	return s
}

func (p *parser) oauth(n *strictyaml.Node, what string) *OAuth {
	o := &OAuth{}
	secret := false
	for _, m := range p.file.Members(n, what) {
		switch m.Key {
		case "tokenUrl":
			o.TokenURL = p.url(m.Value, what+" tokenUrl")
			if u, err := url.Parse(o.TokenURL); err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
				p.file.Add(m.Line, "%s tokenUrl must be https, for the secret is sent there", what)
			}
		case "clientId":
			o.ClientID = p.file.String(m.Value, what+" clientId")
		case "clientSecret":
			secret = true
			o.ClientSecret = p.value(m.Value, what+" clientSecret", true)
		case "scopes":
			o.Scopes = p.scopes(m.Value, what+" scopes")
		default:
			p.file.Unknown(m, what, "tokenUrl", "clientId", "clientSecret", "scopes")
		}
	}
	if o.TokenURL == "" || o.ClientID == "" || !secret {
		p.file.Add(n.Line, "%s needs tokenUrl, clientId and clientSecret", what)
	}
	return o
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

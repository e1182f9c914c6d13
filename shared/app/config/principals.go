package config

import (
	"cmp"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/rules"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/platform/strictyaml"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

func (p *parser) readKeys(n *strictyaml.Node, what string) {
	lines := map[string]int{}
	p.config.Keys = []auth.Key{}
	for _, it := range p.file.Items(n, what, auth.MaxKeys) {
		k := p.readKey(it)
		hash := strings.ToLower(k.SHA256)
		if line := lines[hash]; line > 0 {
			p.file.Add(it.Line, "a key: the same sha256 was already given in line %d", line)
		}
		lines[hash] = it.Line
		p.config.Keys = append(p.config.Keys, k)
	}
}

func (p *parser) readKey(n *strictyaml.Node) auth.Key {
	k := auth.Key{Workspace: auth.DefaultWorkspace}
	before := p.file.Count()
	p.file.Fields(n, nameMembers("a key"),
		strictyaml.Var("principal", &k.Principal, p.file.String),
		strictyaml.Var("workspace", &k.Workspace, p.file.String),
		strictyaml.Func("scopes", func(n *strictyaml.Node, what string) {
			k.Scopes = p.readScopes(n, what)
			p.checkSpelling(n, k.Scopes)
		}),
		strictyaml.Var("sha256", &k.SHA256, p.file.String),
		strictyaml.Var("expires", &k.Expires, p.readTime),
		strictyaml.Var("path", &k.Path, p.file.Bool),
		strictyaml.Func("claims", func(n *strictyaml.Node, what string) {
			k.Claims = map[string]string{}
			for _, c := range p.file.Members(n, what) {
				k.Claims[c.Key] = p.file.String(c.Value, "claim "+strictyaml.Clip(c.Key))
			}
		}),
	)
	if p.file.Count() == before {
		if err := k.Check(); err != nil {
			p.file.Add(n.Line, "a key: %v", err)
		}
	}
	return k
}

// checkSpelling adds a fault for each unknown scope that begins with "events:" or looks like a misspelled known scope. It accepts all
// other scopes, because event types and backends can require scopes of any name.
func (p *parser) checkSpelling(n *strictyaml.Node, scopes []string) {
	known := append(auth.Scopes(), auth.ScopeManage, auth.ScopeOperate)
	for _, s := range scopes {
		if slices.Contains(known, s) {
			continue
		}
		lower := strings.ToLower(s)
		if strings.HasPrefix(lower, "events:") || slices.ContainsFunc(known, func(k string) bool { return editDistance(lower, k) <= maxTypos }) {
			p.file.Add(n.Line, "scopes: %q is not known (known: %s, and those that event types and backends require)", strictyaml.Clip(s), strings.Join(known, ", "))
		}
	}
}

// maxTypos is the edit distance up to which an unknown scope counts as a misspelled known one.
const maxTypos = 2

// editDistance returns how many bytes to insert, remove or replace to get from one text to the other (Levenshtein distance). If the
// lengths differ by more than maxTypos, it returns maxTypos+1 without comparing the texts, because the distance is at least the
// difference between the lengths.
func editDistance(a, b string) int {
	if d := len(a) - len(b); d > maxTypos || -d > maxTypos {
		return maxTypos + 1
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			above := row[j+1]
			if a[i] == b[j] {
				row[j+1] = diagonal
			} else {
				row[j+1] = 1 + min(diagonal, above, row[j])
			}
			diagonal = above
		}
	}
	return row[len(b)]
}

const (
	maxQuotas     = 10_000
	maxPrincipals = 10_000
)

// QuotaLimit returns the limit of a quota for principals that have no limit of their own. This is the limit from the settings or, for a
// quota without a setting, its default. 0 means no limit.
func (l Limits) QuotaLimit(name string) float64 {
	switch name {
	case quota.Subscriptions:
		return float64(l.Quota)
	case quota.Streams:
		return float64(l.Streams)
	case quota.Calls:
		return quota.DefaultCalls
	case quota.Sessions:
		return quota.DefaultSessions
	case quota.PublishRate:
		return l.PublishRate
	case quota.RegistrationRate:
		return l.RegistrationRate
	case quota.ConversationRate:
		return quota.DefaultConversationRate
	case quota.Verifications:
		return quota.DefaultVerifications
	}
	return 0
}

// QuotaLimit returns the limit of a quota for a principal. If the configuration sets a limit for the principal itself, QuotaLimit returns
// this limit. Otherwise it returns the limit that the configuration sets for all principals of the workspace or, without one, the limit
// from the parameter l.
func (c *Config) QuotaLimit(name, workspace, principal string, l Limits) float64 {
	for _, id := range []identity{{workspace, principal}, {workspace, ""}} {
		if most, ok := c.quotas[id][name]; ok {
			return most
		}
	}
	return l.QuotaLimit(name)
}

// Profile returns the MCP Events profile that the configuration sets for a principal or, without one, for the principal's workspace. It
// is empty if the configuration sets no profile for them.
func (c *Config) Profile(workspace, principal string) spec.Profile {
	return cmp.Or(c.profiles[identity{workspace, principal}], c.profiles[identity{workspace, ""}])
}

func (p *parser) readQuotas(n *strictyaml.Node, what string) {
	lines := map[identity]int{}
	p.config.quotas = map[identity]map[string]float64{}
	for _, it := range p.file.Items(n, what, maxQuotas) {
		id, limits := p.readQuota(it)
		if line := lines[id]; line > 0 {
			p.file.Add(it.Line, "a quota: %s of workspace %s already has one in line %d", strictyaml.Clip(cmp.Or(id.name, "each principal")), strictyaml.Clip(id.workspace), line)
		}
		lines[id] = it.Line
		p.config.quotas[id] = limits
	}
}

func (p *parser) readQuota(n *strictyaml.Node) (id identity, limits map[string]float64) {
	id, limits = identity{workspace: auth.DefaultWorkspace}, map[string]float64{}
	fields := []strictyaml.Field{
		strictyaml.Var("workspace", &id.workspace, p.readWorkspace),
		strictyaml.Var("principal", &id.name, p.readPrincipal),
	}
	for _, name := range quota.Names() {
		fields = append(fields, strictyaml.Func(name, func(n *strictyaml.Node, what string) { limits[name] = p.readLimit(n, what) }))
	}
	p.file.Fields(n, nameMembers("a quota"), fields...)
	if _, ok := limits[quota.WorkspaceSubscriptions]; ok && id.name != "" {
		p.file.Add(n.Line, "a quota: %s is of a workspace, not of a principal", quota.WorkspaceSubscriptions)
	}
	if len(limits) == 0 {
		p.file.Add(n.Line, "a quota: it has none of %s", strings.Join(quota.Names(), ", "))
	}
	return id, limits
}

func (p *parser) readLimit(n *strictyaml.Node, name string) float64 {
	if !strings.HasSuffix(name, "Rate") {
		return float64(p.file.Int(1, 1_000_000_000)(n, name))
	}
	var rate *float64 // stays nil for null and for an empty value
	if err := n.Decode(&rate); err != nil || rate == nil || !(*rate >= 0) || *rate > 1e9 {
		p.file.Add(n.Line, "%s must be a number per second from 0, which means no limit", name)
		return 0
	}
	return *rate
}

func (p *parser) readPrincipals(n *strictyaml.Node, what string) {
	lines := map[identity]int{}
	p.config.profiles = map[identity]spec.Profile{}
	for _, it := range p.file.Items(n, what, maxPrincipals) {
		id, profile := identity{workspace: auth.DefaultWorkspace}, ""
		p.file.Fields(it, nameMembers("a principal"),
			strictyaml.Var("workspace", &id.workspace, p.readWorkspace),
			strictyaml.Var("principal", &id.name, p.readPrincipal),
			strictyaml.Var("profile", &profile, p.file.String),
		)
		if !slices.Contains(spec.Profiles(), profile) {
			p.file.Add(it.Line, "a principal: profile %q is not allowed (allowed: %s)", strictyaml.Clip(profile), strings.Join(spec.Profiles(), ", "))
		}
		if line := lines[id]; line > 0 {
			p.file.Add(it.Line, "a principal: %s of workspace %s was already given in line %d", strictyaml.Clip(cmp.Or(id.name, "each principal")), strictyaml.Clip(id.workspace), line)
		}
		lines[id] = it.Line
		p.config.profiles[id] = spec.Profile(profile)
	}
}

const maxBackends = 100

var (
	backendName   = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)
	backendPrefix = regexp.MustCompile(`^[A-Za-z0-9_.-]{0,32}$`)
)

func (p *parser) readBackends(n *strictyaml.Node, what string) {
	lines := map[identity]int{}
	for _, it := range p.file.Items(n, what, maxBackends) {
		b := p.readBackend(it)
		p.checkUnique(lines, identity{b.Workspace, b.Name}, it, "backend")
		p.config.Backends = append(p.config.Backends, b)
	}
}

func (p *parser) readBackend(n *strictyaml.Node) api.Backend {
	b := api.Backend{Workspace: auth.DefaultWorkspace, ProtocolVersion: api.AutoVersion}
	command := &api.Command{}
	say := nameAfter("backend", &b.Name)
	given := p.file.Fields(n, say, append([]strictyaml.Field{
		strictyaml.Var("name", &b.Name, p.file.Matching(backendName)),
		strictyaml.Var("url", &b.URL, p.readURL),
		strictyaml.Var("prefix", &b.Prefix, p.file.Matching(backendPrefix)),
		strictyaml.Var("workspace", &b.Workspace, p.readWorkspace),
		strictyaml.Var("scopes", &b.Scopes, p.readScopes),
		strictyaml.Var("tools", &b.Tools, p.readRules),
		strictyaml.Var("prompts", &b.Prompts, p.readRules),
		strictyaml.Var("resources", &b.Resources, p.readRules),
		strictyaml.Var("extensions", &b.Extensions, p.readRules),
		strictyaml.Var("protocolVersion", &b.ProtocolVersion, p.readProtocolVersion),
		strictyaml.Var("headers", &b.Headers, p.readHeaders),
		strictyaml.Var("oauth", &b.OAuth, p.readOAuth),
		strictyaml.Var("forwardToken", &b.ForwardToken, p.file.Bool),
		strictyaml.Func("credentials", p.checkCredentials),
		strictyaml.Var("exchange", &b.Exchange, p.readExchange),
	}, p.commandFields(command)...)...)
	if given == nil {
		return b
	}
	if !given["name"] {
		p.file.Add(n.Line, "a backend has no name")
	}
	p.checkCommand(n, &b, command, given, say)
	// A request has only one Authorization header. So a backend cannot have both a configured header and an OAuth token.
	if _, fixed := b.Headers["Authorization"]; fixed && b.OAuth != nil {
		p.file.Add(n.Line, "%s", say("only one of an Authorization header and oauth is possible"))
	}
	switch {
	case given["exchange"] != given["credentials"]:
		p.file.Add(n.Line, "%s", say("a token exchange needs both credentials: exchange and the settings in exchange"))
	case given["exchange"] && b.ForwardToken:
		p.file.Add(n.Line, "%s", say("only one of forwardToken and exchange is possible, because an exchanged token replaces the caller's"))
	}
	return b
}

func (p *parser) readRules(n *strictyaml.Node, what string) (r rules.Rules) {
	p.file.Fields(n, nameWithin(what),
		strictyaml.Func("allow", func(n *strictyaml.Node, what string) {
			// Without the list "allow", everything is allowed. An empty list in a file is refused, because its author may have wanted to
			// allow nothing. A stored empty list is accepted, because earlier versions stored it and allowed everything.
			faults := p.file.Count()
			if r.Allow = p.readGlobs(n, what); len(r.Allow) == 0 && !p.stored && p.file.Count() == faults {
				p.file.Add(n.Line, "%s is empty; leave it out to allow everything, or set deny: [\"*\"] to allow nothing", what)
			}
		}),
		strictyaml.Var("deny", &r.Deny, p.readGlobs),
		strictyaml.Func("scopes", func(n *strictyaml.Node, what string) {
			r.Scopes = map[string][]string{}
			for _, m := range p.file.Members(n, what) {
				p.checkGlob(m.Line, what, m.Key)
				r.Scopes[m.Key] = p.readScopes(m.Value, what+" "+strictyaml.Clip(m.Key))
			}
			p.checkGlobs(n, what, len(r.Scopes))
		}),
	)
	return r
}

func (p *parser) readGlobs(n *strictyaml.Node, what string) []string {
	globs := p.file.Strings(n, what)
	for _, glob := range globs {
		p.checkGlob(n.Line, what, glob)
	}
	p.checkGlobs(n, what, len(globs))
	return globs
}

func (p *parser) checkGlob(line int, what, glob string) {
	if err := rules.CheckGlob(glob); err != nil {
		p.file.Add(line, "%s: %v", what, err)
	}
}

func (p *parser) checkGlobs(n *strictyaml.Node, what string, count int) {
	if count > rules.MaxGlobs {
		p.file.Add(n.Line, "%s has %d globs (allowed: up to %d)", what, count, rules.MaxGlobs)
	}
}

func (p *parser) readProtocolVersion(n *strictyaml.Node, what string) string {
	s := p.file.String(n, what)
	if s != api.AutoVersion && !slices.Contains(api.ProtocolVersions(), s) {
		p.file.Add(n.Line, "%s: %q is not known (auto, %s)", what, strictyaml.Clip(s), strings.Join(api.ProtocolVersions(), ", "))
	}
	return s
}

func (p *parser) readOAuth(n *strictyaml.Node, what string) *api.OAuth {
	o := &api.OAuth{}
	given := p.readClient(n, what, o)
	p.checkClient(n, what, o, given["clientSecret"], clientWithSecret)
	return o
}

// readClient reads a section with the settings of an OAuth client into the parameter o. The parameter others lists further fields that
// the section may have. readClient returns the names of the members that are in the section.
func (p *parser) readClient(n *strictyaml.Node, what string, o *api.OAuth, others ...strictyaml.Field) map[string]bool {
	say := func(member string) string { return strings.TrimSpace(what + " " + member) }
	return p.file.Fields(n, say, append([]strictyaml.Field{
		strictyaml.Var("tokenUrl", &o.TokenURL, p.readTokenURL),
		strictyaml.Var("clientId", &o.ClientID, p.file.String),
		strictyaml.Var("clientSecret", &o.ClientSecret, p.readSecret),
		strictyaml.Var("scopes", &o.Scopes, p.readScopes),
	}, others...)...)
}

const clientWithSecret = "tokenUrl, clientId and clientSecret"

// checkClient adds a fault if an OAuth client lacks its token URL, its id or its credential. The parameter needed has the names of the
// needed settings for the fault's message.
func (p *parser) checkClient(n *strictyaml.Node, what string, o *api.OAuth, hasCredential bool, needed string) {
	if o.TokenURL == "" || o.ClientID == "" || !hasCredential {
		p.file.Add(n.Line, "%s needs %s", what, needed)
	}
}

func (p *parser) readTokenURL(n *strictyaml.Node, what string) string {
	s := p.readURL(n, what)
	if u, err := url.Parse(s); err == nil && u.Scheme == "http" && !auth.IsLoopback(u.Hostname()) {
		p.file.Add(n.Line, "%s must be https, because the gateway sends the client secret there", what)
	}
	return s
}

func (p *parser) checkCredentials(n *strictyaml.Node, what string) {
	if s := p.file.String(n, what); s != "exchange" {
		p.file.Add(n.Line, "%s: %q is not known (exchange)", what, strictyaml.Clip(s))
	}
}

// The gateway can authenticate itself at a token endpoint in these ways.
const (
	secretInHeader = "client_secret_basic"
	secretInBody   = "client_secret_post"
	signedByKey    = "private_key_jwt"
)

func (p *parser) readExchange(n *strictyaml.Node, what string) *api.Exchange {
	x, clientAuth := &api.Exchange{}, secretInHeader
	given := p.readClient(n, what, &x.OAuth,
		strictyaml.Var("audience", &x.Audience, p.file.String),
		strictyaml.Var("resource", &x.Resource, p.readURL),
		strictyaml.Var("clientAuth", &clientAuth, func(n *strictyaml.Node, what string) string {
			s, known := p.file.String(n, what), []string{secretInHeader, secretInBody, signedByKey}
			if !slices.Contains(known, s) {
				p.file.Add(n.Line, "%s: %q is not known (%s)", what, strictyaml.Clip(s), strings.Join(known, ", "))
			}
			return s
		}),
		strictyaml.Var("clientKey", &x.ClientKey, p.readSecret),
		strictyaml.Var("keyId", &x.KeyID, p.file.String),
		strictyaml.Var("issuer", &x.Issuer, p.readURL),
	)
	x.SecretInBody = clientAuth == secretInBody
	switch ofKey := given["clientKey"] || given["keyId"] || given["issuer"]; {
	case clientAuth != signedByKey && ofKey:
		p.file.Add(n.Line, "%s: clientKey, keyId and issuer need clientAuth: %s", what, signedByKey)
	case clientAuth != signedByKey:
		p.checkClient(n, what, &x.OAuth, given["clientSecret"], clientWithSecret)
	case given["clientSecret"]:
		p.file.Add(n.Line, "%s: with clientAuth: %s there is no clientSecret", what, signedByKey)
	default:
		p.checkClient(n, what, &x.OAuth, given["clientKey"] && given["issuer"], "tokenUrl, clientId, clientKey and issuer")
	}
	if x.Audience == "" && x.Resource == "" {
		p.file.Add(n.Line, "%s needs an audience or a resource, so that the token is valid for this backend only", what)
	}
	return x
}

func (p *parser) commandFields(c *api.Command) []strictyaml.Field {
	return []strictyaml.Field{
		strictyaml.Var("command", &c.Args, p.readCommand),
		strictyaml.Var("env", &c.Env, p.readEnvironment),
		strictyaml.Var("dir", &c.Dir, p.file.NonEmpty),
		strictyaml.Var("memoryMiB", &c.MemoryMiB, p.file.Int(16, 1<<20)),
		strictyaml.Var("idle", &c.Idle, p.readDuration(time.Second, 24*time.Hour)),
	}
}

// checkCommand checks that a backend has either a command or a url. It adds a fault for each setting that does not fit, for example
// headers next to a command. If the backend has a command, checkCommand sets b.Command to the parameter c.
//
// The parameter given has the names of the settings in the file. The function say puts the backend's name before an error message.
func (p *parser) checkCommand(n *strictyaml.Node, b *api.Backend, c *api.Command, given map[string]bool, say func(string) string) {
	switch {
	case given["command"] && given["url"]:
		p.file.Add(n.Line, "%s", say("only one of url and command is possible"))
	case given["command"]:
		b.Command, b.URL = c, c.URL(b.Workspace, b.Name)
		for _, member := range []string{"headers", "oauth", "forwardToken", "credentials", "exchange"} {
			if given[member] {
				p.file.Add(n.Line, "%s is for a backend with a url; pass a command its credentials in env", say(member))
			}
		}
	case !given["url"]:
		p.file.Add(n.Line, "%s is missing", say("url or command"))
	}
	for _, member := range []string{"env", "dir", "memoryMiB", "idle"} {
		if given[member] && !given["command"] {
			p.file.Add(n.Line, "%s is for a backend with a command", say(member))
		}
	}
}

const maxArguments = 200

func (p *parser) readCommand(n *strictyaml.Node, what string) (args []string) {
	for _, it := range p.file.Items(n, what, maxArguments) {
		arg := p.file.String(it, what)
		if strings.ContainsRune(arg, 0) || len(arg) > 8192 {
			p.file.Add(it.Line, "%s: an argument is too long or has a NUL", what)
		}
		args = append(args, arg)
	}
	if len(args) == 0 || args[0] == "" {
		p.file.Add(n.Line, "%s has no program, such as [npx, -y, NAME]", what)
	}
	return args
}

// readEnvironment reads the environment variables of a command. If the name of a variable suggests a secret, the value must be a
// reference to a secret and not the secret itself.
func (p *parser) readEnvironment(n *strictyaml.Node, what string) map[string]secret.Value {
	out := map[string]secret.Value{}
	for _, m := range p.file.Members(n, what) {
		if !envName.MatchString(m.Key) {
			p.file.Add(m.Line, "%s: %q is not the name of an environment variable", what, strictyaml.Clip(m.Key))
			continue
		}
		out[m.Key] = p.readValue(m.Value, what+" "+m.Key, carriesCredentials(m.Key))
	}
	return out
}

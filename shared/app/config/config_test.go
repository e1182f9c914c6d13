package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/settings/settingstest"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/expect"
)

func hashOf(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

func TestParseReadsAllMembers(t *testing.T) {
	c := expect.Value(Parse(fmt.Appendf(nil, `# who may call
keys:
  - {principal: alice, workspace: default, scopes: [events:read, events:subscribe], sha256: %s}
  - principal: bob
    workspace: other
    scopes: [events:publish, consent:manage, tickets, read]
    sha256: %s
    expires: 2027-01-31
    claims: {org: acme}
backends:
  - {name: github, url: "http://127.0.0.1:9000/mcp", prefix: gh_, headers: {authorization: "env:GITHUB_AUTH", X-Team: blue}}
  - name: tickets
    url: https://tickets.example.com/mcp
    workspace: other
    scopes: [tickets]
    protocolVersion: 2025-11-25
    oauth: {tokenUrl: https://id.example.com/token, clientId: me, clientSecret: env:SECRET, scopes: [a]}
  - {name: mine, url: "https://x.example.com/mcp", forwardToken: true}
  - name: theirs
    url: https://y.example.com/mcp
    credentials: exchange
    exchange: {tokenUrl: https://id.example.com/token, clientId: me, clientSecret: env:SECRET, scopes: [a], audience: y, resource: "https://y.example.com/", clientAuth: client_secret_post}
`, hashOf("a"), hashOf("b"))))(t)
	if k := c.Keys[0]; k.Principal != "alice" || k.Workspace != "default" || len(k.Scopes) != 2 || k.SHA256 != hashOf("a") || !k.Expires.IsZero() {
		t.Errorf("got %+v", k)
	}
	if k := c.Keys[1]; k.Workspace != "other" || !k.Expires.Equal(time.Date(2027, 1, 31, 0, 0, 0, 0, time.UTC)) || k.Claims["org"] != "acme" {
		t.Errorf("got %+v", k)
	}
	gh, tickets, mine := c.Backends[0], c.Backends[1], c.Backends[2]
	if gh.Name != "github" || gh.URL != "http://127.0.0.1:9000/mcp" || gh.Prefix != "gh_" || gh.ProtocolVersion != api.AutoVersion || gh.Workspace != "default" {
		t.Errorf("got %+v", gh)
	}
	lookup := func(name string) (string, bool) { return "Bearer x", name == "GITHUB_AUTH" }
	expect.Equal(t, "the header Authorization", expect.Value(gh.Headers["Authorization"].Resolve(lookup))(t), "Bearer x")
	expect.Equal(t, "the header X-Team", expect.Value(gh.Headers["X-Team"].Resolve(lookup))(t), "blue")
	expect.Fault(t, "a missing variable", expect.ErrOf(tickets.OAuth.ClientSecret.Resolve(lookup)), fault.Invalid)
	if tickets.ProtocolVersion != "2025-11-25" || tickets.Scopes[0] != "tickets" || tickets.OAuth.ClientID != "me" || tickets.ForwardToken || !mine.ForwardToken {
		t.Errorf("got %+v, %+v", tickets, mine)
	}
	want := api.Exchange{
		OAuth:    api.OAuth{TokenURL: "https://id.example.com/token", ClientID: "me", ClientSecret: secret.Env("SECRET"), Scopes: []string{"a"}},
		Audience: "y", Resource: "https://y.example.com/", SecretInBody: true,
	}
	if got := c.Backends[3].Exchange; got == nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("GWN-27: got %+v, want %+v", got, want)
	}
	expect.Lacks(t, "a header's printed value", fmt.Sprint(gh.Headers), "blue")
	for _, src := range []string{"", "\n# nothing\n"} {
		if c, err := Parse([]byte(src)); err != nil || c.Keys != nil {
			t.Errorf("an empty file: got %+v, %v", c, err)
		}
	}
}

// exchangeWith returns the settings of a token exchange with further ones.
func exchangeWith(settings string) string {
	return "exchange: {tokenUrl: 'https://id.example.com/t', clientId: a, clientSecret: env:A, " + settings + "}"
}

// signedWith returns the settings of a token exchange with a key, and further ones.
func signedWith(settings string) string {
	return "exchange: {tokenUrl: 'https://id.example.com/t', clientId: a, audience: x, clientAuth: private_key_jwt, " + settings + "}"
}

// refuses checks that Parse refuses a file with the wanted error, and that the error does not repeat the secret "hunter2".
func refuses(t *testing.T, src, want string) {
	t.Helper()
	_, err := Parse([]byte(src))
	if !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), ": :") {
		t.Errorf("got\n%v\nwant it to contain\n%s", err, want)
	}
	if err != nil && strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error repeats a secret: %v", err)
	}
}

func TestParseFaults(t *testing.T) {
	backend := func(members ...string) string {
		return "backends:\n  - name: b\n    url: https://b.example.com/mcp\n    " + strings.Join(members, "\n    ") + "\n"
	}
	key := func(member string) string {
		return "keys:\n  - principal: a\n    sha256: " + hashOf("a") + "\n    " + member + "\n"
	}
	for name, tc := range map[string]struct{ src, want string }{
		"unknown section":         {"keys: []\nbackend: []\n", `config.yaml:2: the configuration: unknown member "backend"`},
		"keys is not a list":      {"keys: {a: b}\n", "config.yaml:1: keys must be a list"},
		"AUT-02 unknown member":   {key("role: admin"), `config.yaml:4: a key: unknown member "role"`},
		"AUT-02 a plain key":      {"keys:\n  - {principal: a, key: hunter2}\n", `unknown member "key"`},
		"AUT-02 short hash":       {"keys:\n  - {principal: a, sha256: abcd}\n", "config.yaml:2: a key: sha256 is not 64"},
		"AUT-02 no principal":     {"keys:\n  - {sha256: " + hashOf("a") + "}\n", "config.yaml:2: a key: principal"},
		"AUT-02 same hash":        {"keys:\n  - {principal: a, sha256: " + hashOf("a") + "}\n  - {principal: b, sha256: " + hashOf("a") + "}\n", "config.yaml:3: a key: the same sha256 was already given in line 2"},
		"AUT-02 bad expiry":       {key("expires: soon"), `expires: "soon" is not a time`},
		"AUT-02 bad scope":        {key("scopes: ['a b']"), "not an OAuth scope"},
		"AUT-02 misspelt scope":   {key("scopes: [events:raed]"), `config.yaml:4: scopes: "events:raed" is not known (known: events:read, events:subscribe, events:publish, consent:manage, events:operate, and`},
		"AUT-02 misspelt prefix":  {key("scopes: [event:publish]"), `"event:publish" is not known`},
		"no name":                 {"backends:\n  - {url: 'http://x/mcp'}\n", "config.yaml:2: a backend has no name"},
		"no url":                  {"backends:\n  - {name: a}\n", "config.yaml:2: backend a: url or command is missing"},
		"two of a name":           {"backends:\n  - {name: a, url: 'http://x'}\n  - {name: a, url: 'http://y'}\n", "config.yaml:3: backend a was already given in line 2"},
		"password in the URL":     {"backends:\n  - {name: a, url: 'http://u:p@x'}\n", "must not hold a password"},
		"unknown version":         {backend("protocolVersion: 2024-11-05"), `backend b: protocolVersion: "2024-11-05" is not known`},
		"unknown backend member":  {backend("timeout: 5"), `config.yaml:4: backend b: unknown member "timeout"`},
		"a secret in the file":    {backend("headers: {Authorization: Bearer hunter2}"), "a secret must not stand in this file; refer to an environment variable as env:NAME"},
		"an own header":           {backend("headers: {host: x}"), "Host is set by the gateway"},
		"a header twice":          {backend("headers: {x-a: x, X-A: y}"), "X-A is given twice"},
		"bad header name":         {backend("headers: {'x a': x}"), "not a header name"},
		"bad parameter":           {backend("headers: {X-A: 'ssm:A'}"), "not the name of a parameter"},
		"bad reference":           {backend("headers: {X-A: 'env:A-B'}"), "not the name of an environment variable"},
		"header injection":        {backend(`headers: {X-A: "a\r\nB: c"}`), "control characters"},
		"oauth in clear":          {backend("oauth: {tokenUrl: 'http://id.example.com/t', clientId: a, clientSecret: env:A}"), "tokenUrl must be https"},
		"oauth incomplete":        {backend("oauth: {tokenUrl: 'https://id.example.com/t'}"), "needs tokenUrl, clientId and clientSecret"},
		"two credentials":         {backend("oauth: {tokenUrl: \"https://x/t\", clientId: me, clientSecret: env:S}", "headers: {Authorization: env:A}"), "only one of"},
		"GWN-27 no settings":      {backend("credentials: exchange"), "needs both credentials: exchange and the settings in exchange"},
		"GWN-27 no such switch":   {backend("credentials: trade"), `credentials: "trade" is not known (exchange)`},
		"GWN-27 no target":        {backend("credentials: exchange", exchangeWith("scopes: [a]")), "exchange needs an audience or a resource"},
		"GWN-27 bad client auth":  {backend("credentials: exchange", exchangeWith("audience: x, clientAuth: none")), `"none" is not known (client_secret_basic, client_secret_post, private_key_jwt)`},
		"GWN-27 key and secret":   {backend("credentials: exchange", exchangeWith("audience: x, clientAuth: private_key_jwt, clientKey: env:K, issuer: 'https://i'")), "with clientAuth: private_key_jwt there is no clientSecret"},
		"GWN-27 key alone":        {backend("credentials: exchange", exchangeWith("audience: x, clientKey: env:K")), "clientKey, keyId and issuer need clientAuth: private_key_jwt"},
		"GWN-27 no issuer":        {backend("credentials: exchange", signedWith("clientKey: env:K")), "exchange needs tokenUrl, clientId, clientKey and issuer"},
		"GWN-27 key in the file":  {backend("credentials: exchange", signedWith("issuer: 'https://i', clientKey: hunter2")), "a secret must not stand in this file"},
		"GWN-27 and forwarded":    {backend("credentials: exchange", "forwardToken: true", exchangeWith("audience: x")), "only one of forwardToken and exchange"},
		"GWN-27 in clear":         {backend("credentials: exchange", strings.Replace(exchangeWith("audience: x"), "https", "http", 1)), "tokenUrl must be https"},
		"bad flag":                {backend("forwardToken: yes please"), "must be true or false"},
		"bad workspace":           {backend("workspace: a/b"), "not the name of a workspace"},
		"bad prefix":              {backend("prefix: 'a b'"), "does not match"},
		"GWN-25 unknown rule":     {backend("tools: {only: [a]}"), `config.yaml:4: backend b: tools: unknown member "only"`},
		"GWN-25 no list of globs": {backend("tools: {allow: get_x}"), "backend b: tools: allow must be a list"},
		"GWN-25 empty allow":      {backend("tools: {allow: []}"), `config.yaml:4: backend b: tools: allow is empty; leave it out to allow everything, or set deny: ["*"] to allow nothing`},
		"GWN-25 empty glob":       {backend("prompts: {deny: ['']}"), "config.yaml:4: backend b: prompts: deny: the glob is empty"},
		"GWN-25 glob of scopes":   {backend("tools: {scopes: {'%25252525252e': [x]}}"), "tools: scopes: the glob is percent-encoded more than 3 times"},
		"GWN-25 too many globs":   {backend("tools: {allow: [" + manyGlobs(101) + "]}"), "tools: allow has 101 globs (allowed: up to 100)"},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, tc.src, tc.want) })
	}
}

// An earlier version stored an empty list of allowed names, which allowed everything.
func TestAStoredEmptyAllowListCanBeRead(t *testing.T) {
	_, err := parseStored([]byte("backends:\n  - {name: b, url: 'https://b', tools: {allow: []}}\n"))
	expect.OK(t, err)
}

func parsed(t *testing.T, src string) *Config {
	t.Helper()
	return expect.Value(Parse([]byte(src)))(t)
}

// replace stores a configuration, which must differ from the stored one.
func replace(t *testing.T, db store.DB, src string) {
	t.Helper()
	e := expect.Value(Read(t.Context(), db))(t).Replace(parsed(t, src))
	expect.True(t, src+" is a change", e.Changes())
	expect.OK(t, settings.Write(t.Context(), db, e))
}

func TestStoredKeysAreRevokedWithinMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		stored := NewStored(db, nil, nil)
		caller := func(key string) string {
			p, err := stored.Authenticator().Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + key}})
			if err != nil && !fault.Is(err, fault.Unauthenticated) {
				t.Errorf("got %v", err)
			}
			return p.ID
		}
		expect.Equal(t, "AUT-02: the caller without a configuration", caller("a"), "")
		for _, name := range []string{"a", "b"} {
			src := "keys:\n  - {principal: " + name + ", sha256: " + hashOf(name) + "}\n"
			replace(t, db, src)
			time.Sleep(settings.MaxAge)
			expect.Equal(t, fmt.Sprint("AUT-02: the caller with the key of ", name), caller(name), name)
		}
		expect.Equal(t, "AUT-02: the caller with the removed key", caller("a"), "")
		expect.Equal(t, "the principal of the stored key", expect.Value(stored.Config(t.Context()))(t).Keys[0].Principal, "b")
		expect.Equal(t, "the principal of the loaded key", expect.Value(Load(t.Context(), db))(t).Keys[0].Principal, "b")
	})
	expect.Equal(t, "the keys of an empty store", len(expect.Value(Load(t.Context(), settingstest.New()))(t).Keys), 0)
}

func TestLimits(t *testing.T) {
	l := DefaultLimits()
	if l.Quota != 1000 || l.LogRetention != 24*time.Hour || l.WebhookTimeout != 20*time.Second ||
		len(l.RetrySchedule) != 10 || len(l.EventsSchedule) != 5 || l.StreamMaxAge != 5*time.Minute {
		t.Errorf("got %+v", l)
	}
	if l.AllowInsecureTargets || l.AllowNoExpiry || l.VerifiedTargets != nil || len(l.TargetPorts) != 2 || l.WebhookSecret != "standard" {
		t.Errorf("got %+v", l)
	}
	l, err := FromEnv(environ(map[string]string{
		"MCPEVENTS_WEBHOOK_TIMEOUT": "5s", "MCPEVENTS_RETRY_SCHEDULE": "0s, 1s", "MCPEVENTS_QUOTA": "7", "MCPEVENTS_STREAMS": "",
		"MCPEVENTS_ALLOW_INSECURE_TARGETS": "true", "MCPEVENTS_VERIFIED_TARGETS": "https://a.example/, https://b.example/x/",
	}))
	if !l.AllowInsecureTargets || len(l.VerifiedTargets) != 2 {
		t.Errorf("got %+v", l)
	}
	if err != nil || l.WebhookTimeout != 5*time.Second || len(l.RetrySchedule) != 2 || l.Quota != 7 || l.Streams != 100 {
		t.Errorf("got %+v, %v", l, err)
	}
	for name, value := range map[string]string{
		"QUOTA": "many", "STREAMS": "0", "PUBLISH_RATE": "NaN", "REGISTRATION_RATE": "-1", "WEBHOOK_TIMEOUT": "5", "RETRY_SCHEDULE": "5s",
		"EVENTS_RETRY_SCHEDULE": "0s,1ms", "DELIVERY_LOG": "some", "JWT_ALGORITHMS": "RS256", "DEFAULT_TTL": "200h", "LOG_RETENTION": "1s",
		"MIN_TTL": "0s", "ALLOW_NO_EXPIRY": "maybe", "WEBHOOK_SECRET": "weak", "PROFILE": "draft", "WEBHOOK_ID": "event", "EVENT_CODES": "sketch", "UNKNOWN_UNSUBSCRIBE": "empty",
		"VERIFIED_TARGETS": "https://good.example", "TARGET_PORTS": "443,0", "ENDPOINT_RATE": "-1",
	} {
		expect.Fault(t, name+"="+value, expect.ErrOf(FromEnv(environ(map[string]string{envPrefix + name: value}))), fault.Invalid)
	}
	err = expect.ErrOf(FromEnv(environ(map[string]string{envPrefix + "PUBLISH_RATE": "inf"}))) // JSON, and so the admin API, cannot show it
	expect.Fault(t, "an infinite rate", err, fault.Invalid, "--publish-rate is +Inf and must be a number from 0")
	l.MinTTL, l.DefaultTTL, l.MaxTTL = 2*time.Hour, time.Hour, time.Hour
	expect.Fault(t, "a minimum above the maximum", l.Check(), fault.Invalid)
	err = expect.ErrOf(FromEnv(environ(map[string]string{envPrefix + "OTLP_ENDPOINT": "ftp://alice:secret@collector.example"})))
	expect.Fault(t, "a collector without HTTP", err, fault.Invalid)
	expect.Lacks(t, "the error", err.Error(), "alice", "secret")
	expect.Equal(t, "EnvName", EnvName("allow-insecure-targets"), "MCPEVENTS_ALLOW_INSECURE_TARGETS")
}

// manyGlobs returns the elements of a list of globs.
func manyGlobs(n int) string {
	var globs []string
	for i := range n {
		globs = append(globs, fmt.Sprintf("g%d", i))
	}
	return strings.Join(globs, ", ")
}

func FuzzParse(f *testing.F) {
	f.Add("backends:\n  - {name: a, url: 'http://x', tools: {allow: ['a*'], deny: [b], scopes: {'*': [s]}}}\n")
	f.Add("keys:\n  - {principal: a, sha256: abcd, expires: 2027-01-01}\n")
	f.Add("backends:\n  - {name: a, url: 'http://x', headers: {A: env:B}, oauth: {tokenUrl: 'https://x'}}\n")
	f.Fuzz(func(t *testing.T, src string) {
		c, err := Parse([]byte(src))
		if err != nil {
			expect.Fault(t, src, err, fault.Invalid)
			return
		}
		expect.OK(t, expect.ErrOf(auth.NewStaticKeys(c.Keys, nil)), "the keys")
	})
}

// GWN-20: given changed scopes of a backend, then they apply to its event types within [settings.MaxAge], although no relay runs that could
// store the types again. A decision that cannot be undone uses them immediately.
func TestScopesOfBackendsApplyToTheirEventTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := settingstest.New()
		own := api.Backend{Name: "own", Workspace: "default"}
		catalogs := catalog.NewStored(db, nil, nil, NewStored(db, nil, nil, own).EventTypes)
		expect.OK(t, expect.ErrOf(catalog.ReplaceBackends(t.Context(), db, "default", func(all map[string]catalog.BackendTypes) {
			all["shop"] = catalog.BackendTypes{Types: []catalog.BackendType{{Name: "shipped"}}}
			all["own"] = catalog.BackendTypes{Types: []catalog.BackendType{{Name: "built"}}}
		})))
		shop := func(more string) string {
			return "backends:\n  - {name: shop, url: https://shop.example/mcp" + more + "}\n"
		}
		for _, tc := range []struct {
			what, config, name string
			scopes             []string
		}{
			{"without scopes", shop(""), "shipped", nil},
			{"with a scope", shop(", scopes: [team]"), "shipped", []string{"team"}},
			{"with a prefix", shop(", scopes: [team], prefix: s_"), "s_shipped", []string{"team"}},
			{"that acts for callers", shop(", forwardToken: true"), "", nil},
			{"removed", "", "", nil},
		} {
			replace(t, db, tc.config)
			check := func(when string, c *catalog.Catalog, err error) {
				t.Helper()
				expect.OK(t, err)
				want := 1 // built
				if tc.name != "" {
					want++
				}
				expect.Equal(t, tc.what+", "+when+": the event types", len(c.Entries()), want)
				if e := c.ByName(tc.name); tc.name != "" {
					expect.MustEqual(t, tc.what+", "+when+": there is "+tc.name, e != nil, true)
					var scopes []string
					if e.Access != nil {
						scopes = e.Access.Scopes
					}
					expect.List(t, tc.what+", "+when+": the scopes", scopes, tc.scopes)
				}
			}
			now, err := catalogs.Latest(t.Context(), "default")
			check("immediately", now, err)
			time.Sleep(settings.MaxAge)
			now, err = catalogs.Catalog(t.Context(), "default")
			check("later", now, err)
		}
	})
}

const githubSource = `sources:
  - name: github
    verify: {scheme: github, secrets: ["env:NEW", "env:OLD"]}
    events:
      - match: {headers: {x-github-event: [pull_request]}, body: {action: [opened, {prefix: re}]}}
        name: github.pull_request
        variables: {owner: /body/repository/owner/login, repo: /body/repository/name}
        id: /headers/x-github-delivery
        data: {action: /body/action, fixed: 7}
`

func TestSources(t *testing.T) {
	t.Run("SRC-01 an HTTP source", func(t *testing.T) {
		s := expect.Value(Parse([]byte(githubSource)))(t).Sources[0]
		if s.Name != "github" || s.Workspace != "default" || s.From != source.HTTP || len(s.Secrets) != 2 || s.Secrets[0].String() != "env:NEW" {
			t.Errorf("got %+v", s)
		}
		doc := expect.Value(source.DecodeDocument([]byte(`{"headers":{"x-github-event":"pull_request","x-github-delivery":"d"},"body":{"action":"reopened","repository":{"name":"r","owner":{"login":"o"}}}}`)))(t)
		e, err := s.Map(doc)
		if err != nil || e == nil || e.ID != "d" || e.Variables["owner"] != "o" || string(e.Data) != `{"action":"reopened","fixed":7}` {
			t.Errorf("got %+v, %v", e, err)
		}
	})
	t.Run("SRC-02 the settings of hmac", func(t *testing.T) {
		c := expect.Value(Parse([]byte(`sources:
  - name: own
    verify: {scheme: hmac, secrets: ["ssm:/x"], header: X-Sig, algorithm: sha512, encoding: base64, prefix: "v1=", signed: "{timestamp}.{body}", timestamp: X-Time, tolerance: 1m}
    events: [{name: a.b}]
`)))(t)
		if v := c.Sources[0].Verify; v.Header != "X-Sig" || v.Algorithm != "sha512" || v.Timestamp != "X-Time" || v.Tolerance != time.Minute {
			t.Errorf("got %+v", v)
		}
	})
	t.Run("SRC-04 constants", func(t *testing.T) {
		expect.OK(t, expect.ErrOf(Parse([]byte(`sources: [{name: a, from: sns, events: [{name: a.b, variables: {a: x, b: 7, c: true}, time: "2026-11-23T08:00:00Z", data: fixed}]}]`))))
	})
	t.Run("SRC-03 patterns and constants that are right", func(t *testing.T) {
		for _, change := range []struct{ from, to string }{
			{"[pull_request]", `["5", {prefix: "1"}, {anything-but: [5]}, {exists: false}, {wildcard: "*"}, {equals-ignore-case: A}, {cidr: 10.0.0.0/8}]`},
			{"headers: {x-github-event: [pull_request]}", `$or: [{headers: {a: [{exists: true}]}}, {query: {b: [c]}}]`},
			{"fixed: 7", "fixed: /headers, other: /query, third: /body"},
			{"id: /headers/x-github-delivery", "id: /body"},
			{"headers: {x-github-event: [pull_request]}", "headers: {host: [events.example]}, query: {'': [a]}"},
			{"fixed: 7", "fixed: $.50, other: $, third: US$, fourth: 'costs $.a'"},
		} {
			expect.OK(t, expect.ErrOf(Parse([]byte(strings.Replace(githubSource, change.from, change.to, 1)))), change.to)
		}
	})
	t.Run("SRC-01 a bus source", func(t *testing.T) {
		c := expect.Value(Parse([]byte("sources: [{name: alarms, from: eventbridge, events: [{name: a.b, id: /id, time: /time, data: /detail}]}]")))(t)
		expect.Equal(t, "the source's origin", c.Sources[0].From, source.EventBridge)
	})
}

func TestSourcesRefused(t *testing.T) {
	for _, tt := range []struct{ name, file, want string }{
		{"a mistake in a pattern has its line", strings.Replace(githubSource, "{prefix: re}", "\n          {prefx: re}", 1), "config.yaml:6: "},
		{"a secret in the file", strings.Replace(githubSource, "env:NEW", "hunter2hunter2", 1), "config.yaml:3: source github: verify: secrets: a secret must not stand in this file"},
		{"no secrets", strings.Replace(githubSource, `, secrets: ["env:NEW", "env:OLD"]`, "", 1), "0 secrets"},
		{"an unknown scheme", strings.Replace(githubSource, "scheme: github", "scheme: gihub", 1), "config.yaml:3: source github: verify: "},
		{"an unknown member", strings.Replace(githubSource, "id: /", "ident: /", 1), `config.yaml:8: `},
		{"a bad pointer", strings.Replace(githubSource, "/body/action,", "/body/~action,", 1), "config.yaml:9: source github: events: data: /action: "},
		{"a pointer to nothing of a request", strings.Replace(githubSource, "id: /headers/", "id: /header/", 1), `config.yaml:8: source github: events: id: "/header/x-github-delivery" finds no value: a request has /headers, /query and /body`},
		{"a header in capitals", strings.Replace(githubSource, "id: /headers/x-g", "id: /headers/X-G", 1), "config.yaml:8: source github: events: id: \"/headers/X-Github-delivery\" finds no value: names of headers are in lower case"},
		{"a header in capitals in a pattern", strings.Replace(githubSource, "x-github-event", "X-GitHub-Event", 1), "config.yaml:5: source github: events: match: \"/headers/X-GitHub-Event\" finds no value"},
		{"a pattern for nothing of a request", strings.Replace(githubSource, "headers: {x-github-event: [pull_request]}", "$or: [{body: {a: [1]}}, {detail: {a: [1]}}]", 1), `events: match: "/detail" finds no value`},
		{"the header with the signature", strings.Replace(githubSource, "fixed: 7", "fixed: /headers/x-hub-signature-256", 1), "config.yaml:9: source github: events: data: \"/headers/x-hub-signature-256\" finds no value: headers with credentials or signatures"},
		{"a variable of credentials", strings.Replace(githubSource, "owner: /body/repository/owner/login", "owner: /headers/authorization", 1), "config.yaml:7: source github: events: variables: "},
		{"an id that is the same for all", strings.Replace(githubSource, "id: /headers", "id: headers", 1), `config.yaml:8: source github: events: id: must be a JSON Pointer to a value that is unique per delivery`},
		{"an id of several values", strings.Replace(githubSource, "id: /headers/x-github-delivery", "id: {a: /body/id}", 1), `config.yaml:8: source github: events: id: must be a JSON Pointer`},
		{"a variable of several values", strings.Replace(githubSource, "repo: /body/repository/name", "repo: [a]", 1), `config.yaml:7: source github: events: variables: repo: must be a JSON Pointer, or a text`},
		{"an empty variable", strings.Replace(githubSource, "repo: /body/repository/name", `repo: ""`, 1), `config.yaml:7: source github: events: variables: repo: must be a JSON Pointer, or a text`},
		{"a constant that is no time", strings.Replace(githubSource, "data: {action", "time: body/at\n        data: {action", 1), `config.yaml:9: source github: events: time: must be a JSON Pointer, or a time`},
		{"a number for a header", strings.Replace(githubSource, "[pull_request]", "[pull_request, 5]", 1), `config.yaml:5: source github: events: match: /headers/x-github-event/1: a header is a string: write "5"`},
		{"a number for a parameter of the query", strings.Replace(githubSource, "headers: {x-github-event: [pull_request]}", "query: {a: [true]}", 1), `match: /query/a/0: a parameter of the query is a string: write "true"`},
		{"null for a header", strings.Replace(githubSource, "[pull_request]", "[null]", 1), `match: /headers/x-github-event/0: a header is a string and never null`},
		{"a range for a header", strings.Replace(githubSource, "[pull_request]", "[{numeric: ['>', 5]}]", 1), `match: /headers/x-github-event/0: a header is a string, which numeric never matches`},
		{"values for all headers", strings.Replace(githubSource, "{x-github-event: [pull_request]}", "[pull_request]", 1), `config.yaml:5: source github: events: match: /headers: needs the name of a member, e.g. {headers: {NAME: […]}}`},
		{"members of a header", strings.Replace(githubSource, "[pull_request]", "\n            {a: [b]}", 1), `config.yaml:6: source github: events: match: /headers/x-github-event: a header is a string without members: write its allowed values, e.g. [opened, closed]`},
		{"in an alternative", strings.Replace(githubSource, "headers: {x-github-event: [pull_request]}", "$or: [{body: {a: [1]}}, {headers: {$or: [{a: [b]}, {a: [1]}]}}]", 1), `match: /$or/1/headers/$or/1/a/0: a header is a string: write "1"`},
		{"a pointer below a header", strings.Replace(githubSource, "x-github-delivery", "x-github-delivery/0", 1), `config.yaml:8: source github: events: id: "/headers/x-github-delivery/0" finds no value: a header is a string without members; write /headers/x-github-delivery`},
		{"a pointer below a parameter", strings.Replace(githubSource, "/headers/x-github-delivery", "/query/a/b", 1), `id: "/query/a/b" finds no value: a parameter of the query is a string without members; write /query/a`},
		{"a mapping that is never reached", "sources:\n- name: x\n  from: sns\n  events:\n  - {name: a}\n  - {name: b}\n  - {name: c, match: {a: [b]}}", "config.yaml:6: source x: events: this mapping and those after it are never reached: that of line 5 has no match and takes all; give it one, or write it last"},
		{"an id that is all headers", strings.Replace(githubSource, "/headers/x-github-delivery", "/headers", 1), `config.yaml:8: source github: events: id: "/headers" is always an object: write one of its members, e.g. /headers/NAME`},
		{"a variable that is the query", strings.Replace(githubSource, "repo: /body/repository/name", "repo: /query", 1), `config.yaml:7: source github: events: variables: repo: "/query" is always an object: write one of its members, e.g. /query/NAME`},
		{"a time that is all headers", strings.Replace(githubSource, "data: {action", "time: /headers\n        data: {action", 1), `config.yaml:9: source github: events: time: "/headers" is always an object`},
		{"a name that no header has", strings.Replace(githubSource, "x-github-event", `"x a"`, 1), `config.yaml:5: source github: events: match: "/headers/x a" finds no value: this is not a header name; write one without spaces, e.g. x-request-id`},
		{"a header without a name", strings.Replace(githubSource, "x-github-event", `""`, 1), `match: "/headers/" finds no value: this is not a header name`},
		{"a pointer to a header without a name", strings.Replace(githubSource, "x-github-delivery", "", 1), `config.yaml:8: source github: events: id: "/headers/" finds no value: this is not a header name`},
		{"how the body came", strings.Replace(githubSource, "fixed: 7", "fixed: /headers/content-length", 1), `"/headers/content-length" finds no value`},
		{"a part of a request in a message of EventBridge", "sources:\n- name: x\n  from: eventbridge\n  events:\n  - {name: a, variables: {v: /body/detail/v}}", `config.yaml:5: source x: events: variables: v: "/body/detail/v" finds no value: a message of EventBridge has /id, /time, /source, /detail-type and /detail`},
		{"a pattern for a part of a request in a message of SNS", "sources:\n- name: x\n  from: sns\n  events:\n  - {name: a, match: {headers: {a: [b]}}}", `config.yaml:5: source x: events: match: "/headers" finds no value: a message of SNS has /MessageId`},
		{"the whole query of a message of SNS", "sources:\n- name: x\n  from: sns\n  events:\n  - {name: a, id: /query}", `config.yaml:5: source x: events: id: "/query" finds no value: a message of SNS`},
		{"all records of a notification of S3", "sources:\n- name: x\n  from: s3\n  events:\n  - {name: a, data: {key: /Records/0/s3/object/key}}", `config.yaml:5: source x: events: data: "/Records/0/s3/object/key" finds no value: a document of S3 is one record, with /eventName, /eventTime and /s3`},
		{"the same match twice", "sources:\n- name: x\n  from: sns\n  events:\n  - {name: a, match: {Subject: [b]}}\n  - {name: b, match: {Subject: [c]}}\n  - {name: c, match: {Subject: [b]}}", "config.yaml:7: source x: events: this mapping is never reached: that of line 5 has the same match; give it another, or delete it"},
		{"a signature of itself", strings.Replace(githubSource, "scheme: github,", `scheme: hmac, header: X-S, signed: "{header:x-s}{body}",`, 1), `config.yaml:3: source github: verify: signed: {header:x-s} is the header with the signature, which cannot sign itself; write the name of another`},
		{"a signature that is a time", strings.Replace(githubSource, "scheme: github,", `scheme: hmac, header: X-S, signed: "{timestamp}{body}", timestamp: x-s,`, 1), `config.yaml:3: source github: verify: timestamp: "x-s" is the header with the signature; write the name of that with the time`},
		{"a JSONPath", strings.Replace(githubSource, "fixed: 7", "fixed: $.body.action", 1), `config.yaml:9: source github: events: data: /fixed: "$.body.action" looks like a JSONPath: write a JSON Pointer, which begins with /, such as /body/action`},
		{"a JSONPath of an index", strings.Replace(githubSource, "repo: /body/repository/name", "repo: '$[0].name'", 1), `config.yaml:7: source github: events: variables: repo: "$[0].name" looks like a JSONPath`},
		{"all of it", strings.Replace(githubSource, "match: {headers: {x-github-event: [pull_request]}, body: {action: [opened, {prefix: re}]}}", "match: {}", 1), `events: match: is an empty object`},
		{"a scheme alone", strings.Replace(githubSource, `{scheme: github, secrets: ["env:NEW", "env:OLD"]}`, "none", 1), `config.yaml:3: source github: verify must be a mapping: {scheme: none, secrets: ["env:NAME"]}`},
		{"a setting of another scheme", strings.Replace(githubSource, "scheme: github,", "scheme: github, prefix: x,", 1), `config.yaml:3: source github: verify: prefix: is a setting of the scheme hmac only`},
		{"no verification", "sources: [{name: x, events: [{name: a}]}]", "source x: verify is missing: one of "},
		{"verification of a bus", "sources: [{name: x, from: sns, verify: {scheme: none, secrets: ['env:X']}, events: [{name: a}]}]", "is not possible with from"},
		{"an unknown bus", "sources: [{name: x, from: sqs, events: [{name: a}]}]", `"sqs" is not known (eventbridge, sns, s3; `},
		{"no events", "sources: [{name: x, from: sns}]", "source x: events are missing"},
		{"an empty list of events", "sources: [{name: x, from: sns, events: []}]", "0 mappings"},
		{"events of nothing", "sources:\n- name: x\n  from: sns\n  events:", "config.yaml:4: source x: events must be a list, not null"},
		{"no event type", "sources: [{name: x, from: sns, events: [{id: /id}]}]", "a mapping has no name"},
		{"a name twice, even in two workspaces", "sources:\n- {name: x, from: sns, events: [{name: a}]}\n- {name: x, workspace: w, from: s3, events: [{name: a}]}", "config.yaml:3: source x was already given in line 2"},
		{"a name that is no segment", "sources: [{name: a/b, from: sns, events: [{name: a}]}]", "does not match"},
	} {
		t.Run("SRC-01 "+tt.name, func(t *testing.T) { refuses(t, tt.file, tt.want) })
	}
}

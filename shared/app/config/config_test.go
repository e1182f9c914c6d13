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
	if got, err := gh.Headers["Authorization"].Resolve(lookup); got != "Bearer x" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := gh.Headers["X-Team"].Resolve(lookup); got != "blue" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
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
	if s := fmt.Sprint(gh.Headers); strings.Contains(s, "blue") {
		t.Errorf("a header's value is printed: %s", s)
	}
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
		"AUT-02 other case":       {key("scopes: [Events:Read]"), `"Events:Read" is not known`},
		"no name":                 {"backends:\n  - {url: 'http://x/mcp'}\n", "config.yaml:2: a backend has no name"},
		"no url":                  {"backends:\n  - {name: a}\n", "config.yaml:2: backend a: url or command is missing"},
		"two of a name":           {"backends:\n  - {name: a, url: 'http://x'}\n  - {name: a, url: 'http://y'}\n", "config.yaml:3: backend a was already given in line 2"},
		"other scheme":            {"backends:\n  - {name: a, url: 'ftp://x'}\n", "is not an http or https URL"},
		"password in the URL":     {"backends:\n  - {name: a, url: 'http://u:p@x'}\n", "must not hold a password"},
		"unknown version":         {backend("protocolVersion: 2024-11-05"), `backend b: protocolVersion: "2024-11-05" is not known`},
		"unknown backend member":  {backend("timeout: 5"), `config.yaml:4: backend b: unknown member "timeout"`},
		"a secret in the file":    {backend("headers: {Authorization: Bearer hunter2}"), "a secret must not stand in this file; refer to an environment variable as env:NAME"},
		"an own header":           {backend("headers: {host: x}"), "Host is set by the gateway"},
		"a header twice":          {backend("headers: {x-a: x, X-A: y}"), "X-A is given twice"},
		"bad header name":         {backend("headers: {'x a': x}"), "not a header name"},
		"bad parameter":           {backend("headers: {X-A: 'ssm:A'}"), "not the name of a parameter"},
		"bad parameter version":   {backend("headers: {X-A: 'ssm:/a:1'}"), "not the name of a parameter"},
		"bad reference":           {backend("headers: {X-A: 'env:A-B'}"), "not the name of an environment variable"},
		"header injection":        {backend(`headers: {X-A: "a\r\nB: c"}`), "control characters"},
		"oauth in clear":          {backend("oauth: {tokenUrl: 'http://id.example.com/t', clientId: a, clientSecret: env:A}"), "tokenUrl must be https"},
		"oauth incomplete":        {backend("oauth: {tokenUrl: 'https://id.example.com/t'}"), "needs tokenUrl, clientId and clientSecret"},
		"two credentials":         {backend("oauth: {tokenUrl: \"https://x/t\", clientId: me, clientSecret: env:S}", "headers: {Authorization: env:A}"), "only one of"},
		"GWN-27 no switch":        {backend(exchangeWith("audience: x")), "needs both credentials: exchange and the settings in exchange"},
		"GWN-27 no settings":      {backend("credentials: exchange"), "needs both credentials: exchange and the settings in exchange"},
		"GWN-27 no such switch":   {backend("credentials: trade"), `credentials: "trade" is not known (exchange)`},
		"GWN-27 no target":        {backend("credentials: exchange", exchangeWith("scopes: [a]")), "exchange needs an audience or a resource"},
		"GWN-27 bad client auth":  {backend("credentials: exchange", exchangeWith("audience: x, clientAuth: none")), `"none" is not known (client_secret_basic, client_secret_post, private_key_jwt)`},
		"GWN-27 key and secret":   {backend("credentials: exchange", exchangeWith("audience: x, clientAuth: private_key_jwt, clientKey: env:K, issuer: 'https://i'")), "with clientAuth: private_key_jwt there is no clientSecret"},
		"GWN-27 key alone":        {backend("credentials: exchange", exchangeWith("audience: x, clientKey: env:K")), "clientKey, keyId and issuer need clientAuth: private_key_jwt"},
		"GWN-27 id without key":   {backend("credentials: exchange", exchangeWith("audience: x, clientAuth: client_secret_post, keyId: k")), "clientKey, keyId and issuer need clientAuth: private_key_jwt"},
		"GWN-27 no key":           {backend("credentials: exchange", signedWith("issuer: 'https://i'")), "exchange needs tokenUrl, clientId, clientKey and issuer"},
		"GWN-27 no issuer":        {backend("credentials: exchange", signedWith("clientKey: env:K")), "exchange needs tokenUrl, clientId, clientKey and issuer"},
		"GWN-27 key in the file":  {backend("credentials: exchange", signedWith("issuer: 'https://i', clientKey: hunter2")), "a secret must not stand in this file"},
		"GWN-27 key for oauth":    {backend("oauth: {tokenUrl: 'https://i/t', clientId: a, clientKey: env:K}"), `unknown member "clientKey"`},
		"GWN-27 and forwarded":    {backend("credentials: exchange", "forwardToken: true", exchangeWith("audience: x")), "only one of forwardToken and exchange"},
		"GWN-27 in clear":         {backend("credentials: exchange", strings.Replace(exchangeWith("audience: x"), "https", "http", 1)), "tokenUrl must be https"},
		"bad flag":                {backend("forwardToken: yes please"), "must be true or false"},
		"bad workspace":           {backend("workspace: a/b"), "not the name of a workspace"},
		"empty workspace":         {backend("workspace: \"\""), `workspace: "" is not the name of a workspace`},
		"bad prefix":              {backend("prefix: 'a b'"), "does not match"},
		"GWN-25 unknown rule":     {backend("tools: {only: [a]}"), `config.yaml:4: backend b: tools: unknown member "only"`},
		"GWN-25 no list of globs": {backend("tools: {allow: get_x}"), "backend b: tools: allow must be a list"},
		"GWN-25 empty glob":       {backend("prompts: {deny: ['']}"), "config.yaml:4: backend b: prompts: deny: the glob is empty"},
		"GWN-25 long glob":        {backend("resources: {deny: ['" + strings.Repeat("a", 257) + "']}"), "the glob has 257 bytes (allowed: up to 256)"},
		"GWN-25 glob of scopes":   {backend("tools: {scopes: {'%25252525252e': [x]}}"), "tools: scopes: the glob is percent-encoded more than 3 times"},
		"GWN-25 bad scope":        {backend("tools: {scopes: {'*': ['a b']}}"), "tools: scopes *: \"a b\" is not an OAuth scope"},
		"GWN-25 too many globs":   {backend("tools: {allow: [" + manyGlobs(101) + "]}"), "tools: allow has 101 globs (allowed: up to 100)"},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, tc.src, tc.want) })
	}
}

func parsed(t *testing.T, src string) *Config {
	t.Helper()
	c := expect.Value(Parse([]byte(src)))(t)
	return c
}

// replace stores a configuration, which must differ from the stored one.
func replace(t *testing.T, db store.DB, src string) {
	t.Helper()
	d := expect.Value(Read(t.Context(), db))(t)
	e := d.Replace(parsed(t, src))
	if !e.Changes() {
		t.Errorf("got no change to %q", src)
	}
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
		if c, err := stored.Config(t.Context()); err != nil || c.Keys[0].Principal != "b" {
			t.Errorf("got %+v, %v", c, err)
		}
		if c, err := Load(t.Context(), db); err != nil || c.Keys[0].Principal != "b" {
			t.Errorf("got %+v, %v", c, err)
		}
	})
	if c, err := Load(t.Context(), settingstest.New()); err != nil || len(c.Keys) != 0 {
		t.Errorf("an empty store: got %+v, %v", c, err)
	}
}

func TestLimits(t *testing.T) {
	l := DefaultLimits()
	if l.Quota != 1000 || l.LogRetention != 24*time.Hour || l.WebhookTimeout != 20*time.Second ||
		l.EventsTimeout != 10*time.Second || len(l.RetrySchedule) != 10 || len(l.EventsSchedule) != 5 || l.StreamMaxAge != 5*time.Minute {
		t.Errorf("got %+v", l)
	}
	if l.AllowInsecureTargets || l.AllowNoExpiry || l.VerifiedTargets != nil || len(l.TargetPorts) != 2 || l.WebhookSecret != "standard" {
		t.Errorf("got %+v", l)
	}
	l, err := FromEnv(environ(map[string]string{
		"MCPEVENTS_WEBHOOK_TIMEOUT": "5s", "MCPEVENTS_RETRY_SCHEDULE": "0s, 1s", "MCPEVENTS_QUOTA": "7", "MCPEVENTS_HEARTBEAT": "",
		"MCPEVENTS_ALLOW_INSECURE_TARGETS": "true", "MCPEVENTS_VERIFIED_TARGETS": "https://a.example/, https://b.example/x/",
	}))
	if !l.AllowInsecureTargets || len(l.VerifiedTargets) != 2 {
		t.Errorf("got %+v", l)
	}
	if err != nil || l.WebhookTimeout != 5*time.Second || len(l.RetrySchedule) != 2 || l.Quota != 7 || l.Heartbeat != 15*time.Second {
		t.Errorf("got %+v, %v", l, err)
	}
	for name, value := range map[string]string{
		"QUOTA": "many", "STREAMS": "0", "PUBLISH_RATE": "NaN", "REGISTRATION_RATE": "-1", "WEBHOOK_TIMEOUT": "5", "RETRY_SCHEDULE": "5s",
		"EVENTS_RETRY_SCHEDULE": "0s,1ms", "DELIVERY_LOG": "some", "HEARTBEAT": "1m", "DEFAULT_TTL": "200h", "LOG_RETENTION": "1s",
		"MIN_TTL": "0s", "ALLOW_NO_EXPIRY": "maybe", "WEBHOOK_SECRET": "weak", "PROFILE": "draft", "WEBHOOK_ID": "event", "EVENT_CODES": "sketch", "UNKNOWN_UNSUBSCRIBE": "empty",
		"VERIFIED_TARGETS": "https://good.example", "TARGET_PORTS": "443,0",
	} {
		if _, err := FromEnv(environ(map[string]string{envPrefix + name: value})); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s=%s: got %v", name, value, err)
		}
	}
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
			if !fault.Is(err, fault.Invalid) {
				t.Fatalf("got %v of kind %v", err, fault.KindOf(err))
			}
			return
		}
		if _, err := auth.Keys(c.Keys, nil); err != nil {
			t.Fatalf("keys were accepted that do not work: %v", err)
		}
	})
}

package config

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestQuotas(t *testing.T) {
	c, err := Parse([]byte(`quotas:
  - {principal: alice, subscriptions: 5000, publishRate: 0, calls: 20}
  - {workspace: small, subscriptions: 10, streams: 2, sessions: 7, registrationRate: 0.5, workspaceSubscriptions: 30}
  - {workspace: small, principal: alice, streams: 5, conversationRate: 3, verifications: 7}
`))
	expect.OK(t, err)
	l := DefaultLimits()
	for _, x := range []struct {
		who  string
		want []float64 // in the order of quota.Names
	}{
		{"default alice", []float64{5000, 100, 20, 1000, 0, 20, 10, 200, 0}},
		{"default bob", []float64{1000, 100, 100, 1000, 1000, 20, 10, 200, 0}},
		{"small bob", []float64{10, 2, 100, 7, 1000, 0.5, 10, 200, 30}},
		{"small alice", []float64{10, 5, 100, 7, 1000, 0.5, 3, 7, 30}},
	} {
		workspace, principal, _ := strings.Cut(x.who, " ")
		for i, name := range quota.Names() {
			expect.Equal(t, fmt.Sprintf("OPS-15: %s of %s", name, x.who), c.QuotaLimit(name, workspace, principal, l), x.want[i])
		}
	}
	_, err = Parse([]byte(`quotas:
  - {principal: alice}
  - {subscriptions: 0}
  - {streams: 1.5}
  - {publishRate: -1}
  - {publishRate: fast}
  - {workspace: "a b", streams: 1}
  - {principal: "", streams: 1}
  - {stream: 1, streams: 2}
  - {principal: bob, streams: 1}
  - {principal: bob, streams: 2}
  - {principal: eve, workspaceSubscriptions: 2}
  - {workspace: w, workspaceSubscriptions: 0}
  - {principal: ann, publishRate: }
`))
	for _, want := range []string{
		":2: a quota: it has none of subscriptions, streams,", ":3: subscriptions is 0 and must be", ":4: streams must be", ":5: publishRate must be",
		":6: publishRate must be", `:7: workspace: "a b" is not`, ":8: principal: must not be empty",
		`:9: a quota: unknown member "stream"`, ":11: a quota: bob of workspace default already has one in line 10",
		":12: a quota: workspaceSubscriptions is of a workspace, not of a principal", ":13: workspaceSubscriptions is 0 and must be",
		":14: publishRate must be",
	} {
		expect.Error(t, "OPS-15: the configuration", err, want)
	}
}

func TestPrincipals(t *testing.T) {
	t.Run("EVX-25 a principal has its own profile, that of its workspace, or none", func(t *testing.T) {
		c := expect.Value(Parse([]byte(`principals:
  - {principal: alice, profile: final}
  - {workspace: small, profile: final}
  - {workspace: small, principal: bob, profile: released}
`)))(t)
		for who, want := range map[string]spec.Profile{
			"default alice": spec.Final, "default bob": "", "small alice": spec.Final, "small bob": spec.Released,
		} {
			workspace, principal, _ := strings.Cut(who, " ")
			expect.Equal(t, "the profile of "+who, c.Profile(workspace, principal), want)
		}
	})
	t.Run("EVX-25 mistakes are refused with their line", func(t *testing.T) {
		_, err := Parse([]byte(`principals:
  - {principal: alice}
  - {principal: bob, profile: draft}
  - {principal: "", profile: final}
  - {principal: eve, profile: final}
  - {principal: eve, profile: released}
  - {principal: dan, profile: final, revision: 1}
`))
		for _, want := range []string{
			`:2: a principal: profile "" is not allowed (allowed: released, final)`, `:3: a principal: profile "draft" is not allowed`,
			":4: principal: must not be empty", ":6: a principal: eve of workspace default was already given in line 5", `:7: a principal: unknown member "revision"`,
		} {
			expect.Error(t, "the configuration", err, want)
		}
	})
}

func TestRemovedSettings(t *testing.T) {
	t.Run("EVX-25 a removed setting is an error that names its replacement", func(t *testing.T) {
		for variable, value := range map[string]string{
			"MCPEVENTS_WEBHOOK_ID": "event", "MCPEVENTS_EVENT_CODES": "sketch", "MCPEVENTS_UNKNOWN_UNSUBSCRIBE": "empty",
			EnvSettings: "quota=50; event-codes=sketch",
		} {
			_, err := FromEnv(environ(map[string]string{variable: value}))
			if !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Public(err), "use --profile (MCPEVENTS_PROFILE) instead") {
				t.Errorf("%s=%s: got %v", variable, value, err)
			}
		}
	})
	t.Run("a deployment that sets a value that is fixed now starts with a warning", func(t *testing.T) {
		env := environ(map[string]string{"MCPEVENTS_CALLS": "500", EnvSettings: "quota=50; jwt-leeway=never", "MCPEVENTS_SESSIONS": ""})
		expect.Equal(t, "the quota", expect.Value(FromEnv(env))(t).Quota, 50)
		var log strings.Builder
		LogIgnored(env, slog.New(slog.NewTextHandler(&log, nil)))
		for _, want := range []string{`setting=calls why="it was removed; use quotas in the configuration instead"`, `setting=jwt-leeway why="it was removed; it is always 30s"`} {
			expect.Contains(t, "the log", log.String(), want)
		}
		expect.Equal(t, "warnings", strings.Count(log.String(), "setting ignored"), 2)
	})
	t.Run("AUT-01 a list of algorithms is not ignored, because it may have been shorter than the one of today", func(t *testing.T) {
		for _, variable := range []map[string]string{{"MCPEVENTS_JWT_ALGORITHMS": "PS256"}, {EnvSettings: "jwt-algorithms=PS256"}} {
			_, err := FromEnv(environ(variable))
			expect.Fault(t, fmt.Sprint(variable)+": the error", err, fault.Invalid)
			expect.Contains(t, fmt.Sprint(variable)+": the public error", fault.Public(err), "choose the algorithm at the authorization server")
		}
	})
	t.Run("a Go program that sets a value that is fixed now gets an error", func(t *testing.T) {
		if _, err := FromNames(map[string]string{"sessions": "5"}); !fault.Is(err, fault.Invalid) || !strings.Contains(fault.Public(err), "use quotas") {
			t.Errorf("got %v, want Invalid with the replacement", err)
		}
	})
	t.Run("the reference lists exactly the removed settings", func(t *testing.T) {
		doc := string(expect.Value(os.ReadFile("../../../docs/reference/settings.md"))(t))
		_, doc, _ = strings.Cut(doc, "### Removed settings")
		doc, _, _ = strings.Cut(doc, "\n### ")
		stops := map[string]bool{}
		for _, row := range regexp.MustCompile("(?m)^\\| `([a-z-]+)`( ²)? \\|").FindAllStringSubmatch(doc, -1) {
			stops[row[1]] = row[2] != ""
		}
		want := map[string]bool{}
		for name, r := range removed {
			want[name] = r.stops
		}
		expect.Map(t, "the times in settings.md", stops, want)
	})
}

func TestParseConversation(t *testing.T) {
	c := expect.Value(Parse([]byte(`
conversation:
  userMessages: true
  assistantResponses: true
  budget: 1500ms
  maxContext: 4096
  providers:
    - {name: notes, title: Notes, description: What you wrote., backend: n}
    - {name: memory, url: "https://memory.example.com/context", headers: {authorization: env:MEMORY, X-Team: blue}, priority: 5, principal: true}
    - {name: notes, url: "http://10.0.0.1/x", workspace: other}
  events: {userMessage: true, workspace: other}
backends:
  - {name: n, url: "https://n.example.com/mcp"}
`)))(t)
	v := c.Conversation
	if !v.UserMessages || !v.AssistantResponses || v.Budget != 1500*time.Millisecond || v.MaxContext != 4096 || !v.Enabled() ||
		v.Events != (rules.Events{UserMessage: true, Workspace: "other"}) {
		t.Errorf("got %+v", v)
	}
	memory, notes, other := v.Providers[0], v.Providers[1], v.Providers[2]
	if memory.Name != "memory" || memory.Priority != 5 || !memory.Principal || memory.Headers["Authorization"].String() != "env:MEMORY" {
		t.Errorf("got %+v", memory)
	}
	if notes.Backend != "n" || notes.Title != "Notes" || notes.Description != "What you wrote." || notes.Workspace != "default" || other.Workspace != "other" {
		t.Errorf("got %+v and %+v", notes, other)
	}
	expect.Lacks(t, "a header's printed value", fmt.Sprint(memory.Headers), "blue")
}

// CNV-01: all features for conversations are off by default.
func TestConversationIsOffByDefault(t *testing.T) {
	for _, src := range []string{"", "keys: []\n", "conversation: {}\n", "conversation: {providers: [{name: a, url: 'http://x'}]}\n"} {
		c, err := Parse([]byte(src))
		if err != nil || c.Conversation.Enabled() || c.Conversation.Events.Any() {
			t.Errorf("%q: got %+v, %v", src, c, err)
		}
	}
	c, err := Parse([]byte("conversation: {userMessages: true}\n"))
	if err != nil || c.Conversation.Budget != 500*time.Millisecond || c.Conversation.MaxContext != 32768 || c.Conversation.AssistantResponses {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestConversationFaults(t *testing.T) {
	provider := func(members string) string {
		return "backends: [{name: b, url: 'http://b/mcp', workspace: other}]\nconversation:\n  providers:\n    - {" + members + "}\n"
	}
	for name, tc := range map[string]struct{ src, want string }{
		"unknown member":          {"conversation: {userMesages: true}\n", `config.yaml:1: conversation: unknown member "userMesages"`},
		"a text for a flag":       {"conversation: {userMessages: 'yes'}\n", "conversation: userMessages must be true or false"},
		"a number for a time":     {"conversation: {budget: 500}\n", "conversation: budget must be text"},
		"no time":                 {"conversation: {budget: soon}\n", `conversation: budget: "soon" is not a duration from 10ms to 10s`},
		"a text for a size":       {"conversation: {maxContext: big}\n", "conversation: maxContext must be a whole number"},
		"too large a size":        {"conversation: {maxContext: 1000000}\n", "conversation: maxContext is 1000000 and must be from 256 to 49152"},
		"a fraction":              {"conversation: {maxContext: 1000.5}\n", "must be a whole number"},
		"events of nothing":       {"conversation: {events: {userMessage: true}}\n", "events of user messages need userMessages: true"},
		"events of no responses":  {"conversation: {userMessages: true, events: {assistantResponse: true}}\n", "events of assistant responses need assistantResponses: true"},
		"no workspace":            {"conversation: {events: {workspace: a/b}}\n", "not the name of a workspace"},
		"no name":                 {provider("url: 'http://x'"), "config.yaml:4: a provider has no name"},
		"a bad name":              {provider("name: 'a: b', url: 'http://x'"), "does not match"},
		"the reserved name":       {provider("name: events, url: 'http://x'"), "no provider can have the name events"},
		"two of a name":           {provider("name: a, url: 'http://x'") + "    - {name: a, url: 'http://y'}\n", "config.yaml:5: provider a was already given in line 4"},
		"neither URL nor backend": {provider("name: a"), "provider a: either url or backend is needed"},
		"no URL":                  {provider("name: a, url: 'ftp://x'"), "is not an http or https URL"},
		"an unknown backend":      {provider("name: a, backend: c"), "provider a: backend c does not belong to the workspace default"},
		"another's backend":       {provider("name: a, backend: b"), "provider a: backend b does not belong to the workspace default"},
		"headers for a backend":   {provider("name: a, backend: b, workspace: other, headers: {X-A: b}"), "headers are those of the backend"},
		"a secret":                {provider("name: a, url: 'http://x', headers: {Authorization: hunter2}"), "a secret must not stand in this file"},
		"an own header":           {provider("name: a, url: 'http://x', headers: {x-mcp-principal: x}"), "is set by the gateway"},
		"two lines":               {provider(`name: a, url: 'http://x', title: "a\nb"`), "title must be one line"},
		"a long title":            {provider("name: a, url: 'http://x', title: " + strings.Repeat("x", 201)), "title is longer than 200 bytes"},
		"priority":                {provider("name: a, url: 'http://x', priority: first"), "priority must be a whole number"},
		"no list":                 {"conversation: {providers: {}}\n", "conversation: providers must be a list"},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, tc.src, tc.want) })
	}
}

func environ(of map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := of[name]; return v, ok }
}

// AWS-09: a setting that is not a parameter of the template can be set in the list of additional settings.
func TestSettingsInOneVariable(t *testing.T) {
	l, err := FromEnv(environ(map[string]string{
		EnvSettings: " quota=50 ; webhook-timeout=10s;target-ports=443,8443,9443;allow-no-expiry=true;", "MCPEVENTS_STREAMS": "7",
	}))
	if err != nil || l.Quota != 50 || l.WebhookTimeout != 10*time.Second || len(l.TargetPorts) != 3 || !l.AllowNoExpiry || l.Streams != 7 {
		t.Errorf("got %+v, %v", l, err)
	}
	for text, want := range map[string]string{
		"quota":               `"quota" is not NAME=VALUE`,
		"quotas=5":            `unknown setting "quotas"`,
		"quota=5;quota=6":     "quota is given twice",
		"quota=many":          "MCPEVENTS_QUOTA",
		"streams=5;quota=6":   `streams is also set to "7"`,
		"default-ttl=10000h;": "--default-ttl",
	} {
		_, err := FromEnv(environ(map[string]string{EnvSettings: text, "MCPEVENTS_STREAMS": "7"}))
		expect.Fault(t, text, err, fault.Invalid, want)
	}
}

// AWS-02: a setting that the function does not need keeps its default, even if its value is invalid.
func TestSettingsThatAreNotNeeded(t *testing.T) {
	l, err := FromEnv(environ(map[string]string{EnvSettings: "quota=many", "MCPEVENTS_STREAMS": "-1"}), "quota", "streams")
	if err != nil || l.Quota != 1000 || l.Streams != 100 {
		t.Errorf("got %+v, %v", l, err)
	}
}

// GWN-01: a change of a setting that may change what clients see of a backend changes the fingerprint of its workspace. The
// fingerprints of other workspaces stay the same.
func TestFingerprint(t *testing.T) {
	const (
		a     = "{name: a, url: 'https://a.example/mcp'}"
		b     = "{name: b, url: 'https://b.example/mcp', workspace: other}"
		oauth = "{name: a, url: 'https://a.example/mcp', oauth: {tokenUrl: 'https://t.example/', clientId: c, clientSecret: 'env:S'}}"

		exchange = "{name: a, url: 'https://a.example/mcp', credentials: exchange, exchange: {tokenUrl: 'https://t.example/', clientId: c, clientSecret: 'env:S', audience: x}}"
	)
	parse := func(backends ...string) *Config {
		t.Helper()
		src := "backends:\n"
		for _, x := range backends {
			src += "  - " + x + "\n"
		}
		if len(backends) == 0 {
			src = "backends: []\n"
		}
		c, err := Parse([]byte(src))
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		return c
	}
	before := parse(a, b)
	if got := parse(a, b).fingerprint("default"); got == "" || got != before.fingerprint("default") || before.fingerprint("other") == "" || before.fingerprint("third") != "" {
		t.Errorf("got fingerprint %q, want the same for the same backends, and none only for workspace third", got)
	}
	for _, c := range []struct {
		what  string
		after *Config
		want  []string
	}{
		{"nothing", parse(b, a), nil},
		{"none", parse(), []string{"default", "other"}},
		{"one is gone", parse(a), []string{"other"}},
		{"another workspace", parse(a, "{name: b, url: 'https://b.example/mcp', workspace: third}"), []string{"other", "third"}},
		{"url", parse("{name: a, url: 'https://c.example/mcp'}", b), []string{"default"}},
		{"name", parse("{name: c, url: 'https://a.example/mcp'}", b), []string{"default"}},
		{"prefix", parse("{name: a, url: 'https://a.example/mcp', prefix: x_}", b), []string{"default"}},
		{"scopes", parse("{name: a, url: 'https://a.example/mcp', scopes: [x]}", b), []string{"default"}},
		{"rules", parse("{name: a, url: 'https://a.example/mcp', tools: {allow: [x]}}", b), []string{"default"}},
		{"scopes of a rule", parse("{name: a, url: 'https://a.example/mcp', resources: {scopes: {x: [y]}}}", b), []string{"default"}},
		{"revision", parse("{name: a, url: 'https://a.example/mcp', protocolVersion: '2025-11-25'}", b), []string{"default"}},
		{"caller's token", parse("{name: a, url: 'https://a.example/mcp', forwardToken: true}", b), []string{"default"}},
		{"header", parse("{name: a, url: 'https://a.example/mcp', headers: {X-Tenant: one}}", b), []string{"default"}},
		{"reference", parse("{name: a, url: 'https://a.example/mcp', headers: {Authorization: 'env:A'}}", b), []string{"default"}},
		{"oauth", parse(oauth, b), []string{"default"}},
		{"exchange", parse(exchange, b), []string{"default"}},
	} {
		expect.List(t, c.what, findChangedWorkspaces(before, c.after), c.want)
	}
	one, two := parse("{name: a, url: 'https://a.example/mcp', headers: {X-Tenant: one}}"), parse("{name: a, url: 'https://a.example/mcp', headers: {X-Tenant: two}}")
	expect.List(t, "the workspaces with changed backends after a change of a header's value", findChangedWorkspaces(one, two), []string{"default"})
	one, two = parse(exchange), parse(strings.Replace(exchange, "audience: x", "audience: y", 1))
	expect.List(t, "GWN-27: the workspaces with changed backends after a change of the audience", findChangedWorkspaces(one, two), []string{"default"})
	one = parse(strings.Replace(exchange, "clientSecret: 'env:S'", "clientAuth: private_key_jwt, clientKey: 'env:S', issuer: 'https://t.example/'", 1))
	two = parse(strings.Replace(exchange, "clientSecret: 'env:S'", "clientAuth: private_key_jwt, clientKey: 'env:S', issuer: 'https://u.example/'", 1))
	expect.List(t, "GWN-27: the workspaces with changed backends after a change of the issuer", findChangedWorkspaces(one, two), []string{"default"})
}

// GWN-01: storing a configuration records the workspaces whose backends have changed, so that their clients are notified.
// Each version of the configuration has records of its own.
func TestApplySaysWhoseBackendsChanged(t *testing.T) {
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{}))(t)
	defer func() { _ = db.Close() }()
	for _, src := range []string{
		"backends:\n  - {name: a, url: 'https://a.example/mcp'}\n",
		"# the same\nbackends:\n  - {name: a, url: 'https://a.example/mcp'}\n",
		"backends:\n  - {name: a, url: 'https://a.example/mcp'}\n  - {name: b, url: 'https://b.example/mcp', workspace: other}\n",
	} {
		replace(t, db, src)
	}
	announced := map[settings.Change]int{}
	err := settings.Announce(t.Context(), db, 0, func(_ context.Context, c settings.Change) error {
		announced[c]++
		return nil
	})
	if err != nil || len(announced) != 2 || announced[settings.Change{Kind: settings.Backends, Workspace: "default", Version: 1}] != 1 ||
		announced[settings.Change{Kind: settings.Backends, Workspace: "other", Version: 3}] != 1 {
		t.Errorf("announced %v, %v; want default in version 1 and other in version 3", announced, err)
	}
}

func TestCommands(t *testing.T) {
	parse := func(members string) api.Backend {
		c := expect.Value(Parse([]byte("backends:\n  - {name: files, command: [npx, -y, server, /data]" + members + "}\n")))(t)
		return c.Backends[0]
	}
	t.Run("GWN-26 a backend can be a command", func(t *testing.T) {
		b := parse(", env: {LEVEL: debug, TOKEN: 'env:A'}, dir: /tmp, memoryMiB: 512, idle: 1h")
		expect.List(t, "the command", b.Command.Args, []string{"npx", "-y", "server", "/data"})
		c := b.Command
		if c.Env["LEVEL"] != secret.Plain("debug") || c.Env["TOKEN"] != secret.Env("A") || c.Dir != "/tmp" || c.MemoryMiB != 512 || c.Idle != time.Hour {
			t.Errorf("got %+v", c)
		}
	})
	t.Run("GWN-26 a changed command is another server", func(t *testing.T) {
		urls := map[string]bool{}
		for _, members := range []string{"", ", env: {A: b}", ", env: {A: c}", ", dir: /tmp", ", workspace: other", ", idle: 1h", ", prefix: a_"} {
			urls[parse(members).URL] = true
		}
		expect.Equal(t, "addresses", len(urls), 6) // the prefix does not matter
	})
	for name, tc := range map[string]struct{ members, want string }{
		"a url":           {"url: 'http://x', command: [x]", "only one of url and command is possible"},
		"no program":      {"command: []", "command has no program"},
		"headers":         {"command: [x], headers: {X-A: b}", "headers is for a backend with a url"},
		"env of a url":    {"url: 'http://x', env: {A: b}", "env is for a backend with a command"},
		"a plain secret":  {"command: [x], env: {API_TOKEN: hunter2}", "env API_TOKEN: a secret must not stand in this file"},
		"a bad variable":  {"command: [x], env: {A-B: c}", "not the name of an environment variable"},
		"a bad idle time": {"command: [x], idle: 1ms", "is not a duration from 1s to 24h0m0s"},
	} {
		t.Run("GWN-26 is refused with "+name, func(t *testing.T) {
			expect.Error(t, "the configuration", expect.ErrOf(Parse([]byte("backends: [{name: a, "+tc.members+"}]"))), tc.want)
		})
	}
}

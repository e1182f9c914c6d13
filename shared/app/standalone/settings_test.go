package standalone

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

func types(t *testing.T, names ...string) []byte {
	t.Helper()
	src := "events:\n"
	for _, name := range names {
		src += "  - {name: " + name + ", uri: 'event://" + name + "'}\n"
	}
	return []byte(src)
}

func ownTypes(t *testing.T, names ...string) *catalog.Catalog {
	t.Helper()
	return expect.Value(catalog.Parse(types(t, names...)))(t)
}

func configured(t *testing.T, src string) *config.Config {
	t.Helper()
	return expect.Value(config.Parse([]byte(src)))(t)
}

// in returns the names of the event types that a workspace has.
func in(t *testing.T, s *Server, workspace string) (names []string) {
	t.Helper()
	c := expect.Value(s.core.Catalogs.Catalog(t.Context(), workspace))(t)
	for _, e := range c.Entries() {
		names = append(names, e.Name)
	}
	return names
}

// The files of a start replace the catalogs and backends of an earlier run.
func TestFilesOfTheStartWin(t *testing.T) {
	var o Options
	end(t, serve(t, func(s *Options) {
		s.Catalog, s.Workspaces = types(t, "shared"), map[string]*catalog.Catalog{"own": ownTypes(t, "own"), "kept": ownTypes(t, "kept")}
		s.Config = configured(t, "backends:\n  - {name: b, url: 'http://127.0.0.1:1/mcp'}\n")
		o = *s
	}))
	delete(o.Workspaces, "own")
	o.Config = nil
	for range 2 {
		s := expect.Value(New(t.Context(), o))(t)
		for workspace, want := range map[string]string{"own": "shared", "kept": "kept", "any": "shared"} {
			expect.List(t, fmt.Sprint("the event types of workspace ", workspace), in(t, s, workspace), []string{want})
		}
		if c, err := s.core.Config.Config(t.Context()); err != nil || len(c.Backends) != 0 || s.backends.Any(t.Context()) {
			t.Errorf("backends of the run before: %+v, %v", c, err)
		}
		end(t, s)
	}
	o.Workspaces["own"] = ownTypes(t, "again")
	s := restart(t, o)
	expect.List(t, "a catalog that is given again", in(t, s, "own"), []string{"again"})
}

func TestAllMissingSecretsAreNamedWithTheFile(t *testing.T) {
	o := settingsFor(t, func(o *Options) {
		o.Config = expect.Value(config.ParseFile("conf/my.yaml", []byte(`sources:
  - {name: one, verify: {scheme: github, secrets: ["env:MISSING_ONE"]}, events: [{name: ci.build_finished}]}
  - {name: two, verify: {scheme: github, secrets: ["env:MISSING_TWO"]}, events: [{name: ci.build_finished}]}
backends:
  - {name: a, url: "http://127.0.0.1:1/mcp", headers: {Authorization: "env:MISSING_A"}}
  - {name: b, command: [program], env: {TOKEN: "env:MISSING_B"}}
conversation:
  userMessages: true
  providers:
    - {name: p, url: "http://127.0.0.1:1/p", headers: {X-Key: "env:MISSING_P"}}
    - {name: q, url: "http://127.0.0.1:1/q", headers: {X-Key: "env:MISSING_Q"}}
`)))(t)
	})
	for _, want := range []string{
		"conf/my.yaml: line 2: source one: the environment variable MISSING_ONE,", "conf/my.yaml: line 3: source two: the environment variable MISSING_TWO,",
		"conf/my.yaml: backend a: header Authorization: ", "conf/my.yaml: backend b: env TOKEN: ", "conf/my.yaml: provider p", "conf/my.yaml: provider q",
	} {
		refuses(t, o, want)
	}
}

// The same file may be used on AWS, so a bus source is no error.
func TestASourceThatReceivesNothingIsLogged(t *testing.T) {
	var log bytes.Buffer
	end(t, serve(t, func(o *Options) {
		o.Config = configured(t, `sources:
  - {name: topic, from: sns, events: [{name: ci.build_finished}]}
  - {name: hook, verify: {scheme: none, secrets: ["env:PATH"]}, events: [{name: ci.build_finished}]}
`)
		t.Setenv("PATH", "a-secret-of-at-least-24-characters")
		o.Log = slog.New(slog.NewTextHandler(&log, nil))
	}))
	expect.Contains(t, "the log", log.String(), `level=WARN msg="source receives nothing" source=topic from=sns`)
	expect.Lacks(t, "the log", log.String(), "source=hook")
}

// A reload returns only when the new catalog and keys are in use.
func TestAReloadIsInUseAtOnce(t *testing.T) {
	key := func(secret string) *config.Config {
		return configured(t, "keys:\n  - {principal: a, scopes: [events:read], sha256: "+hash(secret)+"}\n")
	}
	s, o := serveOptions(t, func(with *Options) {
		with.Auth, with.Catalog, with.Config = auth.ModeKeys, types(t, "before"), key("key")
	})
	caller := func(secret string) error {
		_, err := s.core.Auth.Authenticate(t.Context(), http.Header{"Authorization": {"Bearer " + secret}})
		return err
	}
	expect.OK(t, caller("key"))
	o.Catalog, o.Config = types(t, "after"), key("two")
	expect.OK(t, s.Reload(t.Context(), o))
	expect.List(t, "EVS-14: the event types", in(t, s, "default"), []string{"after"})
	if err := caller("two"); err != nil || !fault.Is(caller("key"), fault.Unauthenticated) {
		t.Errorf("AUT-02: got %v for the new key, want nil; got %v for the old key, want a refusal", err, caller("key"))
	}
	o.Config = nil
	if err := s.Reload(t.Context(), o); !fault.Is(err, fault.Invalid) || caller("two") != nil {
		t.Errorf("got %v, want a refusal, because without keys all calls would fail", err)
	}
}

// EVS-14: when the shared catalog changes, the workspaces that use it are notified once, even if the server was down during
// the change. Workspaces with a catalog of their own are not notified.
func TestStreamsAreNotifiedOfASharedCatalog(t *testing.T) {
	s, o := serveOptions(t, func(with *Options) {
		with.Catalog, with.Workspaces = types(t, "before"), map[string]*catalog.Catalog{"own": ownTypes(t, "own")}
	})
	open := func(workspace, cursor string) *stream.Feed {
		t.Helper()
		f := expect.Value(s.tails.Open(t.Context(), stream.Request{Workspace: workspace, Topics: []string{stream.TopicCatalog}, Cursor: cursor}))(t)
		t.Cleanup(f.Close)
		return f
	}
	// notified returns the number of changes that a feed receives before a mark, a change that notified itself announces.
	marks := 0
	notified := func(f *stream.Feed, workspace string) (n int, cursor string) {
		t.Helper()
		marks++
		mark := string(rune('a' + marks))
		expect.OK(t, stream.AnnounceBackends(t.Context(), &eventlog.Log{DB: s.db}, workspace, mark))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		for {
			d, ok, err := f.Poll(ctx)
			if err == nil && !ok {
				select {
				case <-f.Ready():
					continue
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			if err != nil {
				t.Fatalf("workspace %s: %v", workspace, err)
			}
			if stream.IsBackendsNotice(d.Notice) {
				return n, d.Cursor
			}
			n++
		}
	}
	first, second, own := open("first", ""), open("second", ""), open("own", "")
	o.Catalog = types(t, "after")
	for range 2 { // the second reload has the same catalog
		expect.OK(t, s.Reload(t.Context(), o))
	}
	cursors := map[string]string{}
	for workspace, c := range map[string]struct {
		feed *stream.Feed
		want int
	}{"first": {first, 1}, "second": {second, 1}, "own": {own, 0}} {
		n, cursor := notified(c.feed, workspace)
		expect.Equal(t, fmt.Sprint("notifications of workspace ", workspace), n, c.want)
		cursors[workspace] = cursor
	}
	end(t, s)
	o.Catalog = types(t, "later")
	s = restart(t, o)
	for workspace, want := range map[string]int{"first": 1, "own": 0} {
		if n, _ := notified(open(workspace, cursors[workspace]), workspace); n != want {
			t.Errorf("SUB-08: workspace %s came back and was notified %d times, want %d", workspace, n, want)
		}
	}
}

// CNV-07: a start and a reload refuse a catalog that has events of conversations without an access rule, and a provider
// whose secret is missing.
func TestConversationsNeedARule(t *testing.T) {
	const (
		chatter  = "events:\n  - {name: conversation.user_message, uri: event://conversation/user-message"
		ruled    = chatter + ", access: {scopes: [conversation]}}\n"
		events   = "conversation: {userMessages: true, events: {userMessage: true}"
		provider = events + ", providers: [{name: notes, url: 'http://127.0.0.1:1/notes', headers: {Authorization: 'env:NOT_THERE'}}]"
	)
	s, o := serveOptions(t, func(with *Options) {
		with.Catalog, with.Config = []byte(ruled), configured(t, events+"}\n")
		with.Limits.AllowInsecureTargets = false
	})
	// CNV-06: without authentication a caller cannot consent for all others.
	if status, text := ask(t, s, "", "PUT", "/consent/events", ""); status != http.StatusForbidden || !strings.Contains(text, "--allow-insecure-targets") {
		t.Errorf("got %d %s", status, text)
	}
	for _, c := range []struct{ catalog, config, says string }{
		{chatter + "}\n", events, "needs an access rule"},
		{ruled, provider, "provider notes: header Authorization: the environment variable NOT_THERE"},
	} {
		bad := o
		bad.Catalog, bad.Config = []byte(c.catalog), configured(t, c.config+"}\n")
		expect.Fault(t, "the reload", s.Reload(t.Context(), bad), fault.Invalid, c.says)
		bad.Data = ":memory:"
		refuses(t, bad, c.says)
	}
}

// For example, a secret was read from a file together with its last line break.
func TestASecretThatAHeaderMustNotHave(t *testing.T) {
	t.Setenv("MCPEVENTS_TEST_TOKEN", "Bearer hunter2\n")
	const member = "headers: {Authorization: 'env:MCPEVENTS_TEST_TOKEN'}"
	for text, whose := range map[string]string{
		"backends: [{name: b, url: 'http://127.0.0.1:1/mcp', prefix: b_, " + member + "}]\n":                        "backend b",
		"conversation: {userMessages: true, providers: [{name: p, url: 'http://127.0.0.1:1/p', " + member + "}]}\n": "provider p",
	} {
		s, o := serveOptions(t, nil)
		o.Config = configured(t, text)
		err := s.Reload(t.Context(), o)
		expect.Fault(t, whose, err, fault.Invalid, whose+": header Authorization: the value of env:MCPEVENTS_TEST_TOKEN has a line break")
		expect.Lacks(t, whose, fmt.Sprint(err), "hunter2")
	}
}

func TestSettingsThatAreRefused(t *testing.T) {
	s, o := serveOptions(t, func(with *Options) { with.Catalog = types(t, "good") })
	good, bad := o, o
	bad.Catalog = []byte("events: nonsense")
	ready := func(t *testing.T, s *Server, want string) {
		t.Helper()
		if code, body := ask(t, s, "", "GET", "/readyz", ""); code != http.StatusOK || body != want {
			t.Errorf("GET /readyz got %d %s, want 200 %s", code, body, want)
		}
	}
	const usual, refused = `{"status":"ready"}`, `{"settings":"refused","status":"ready"}`
	t.Run("OPS-16 a refused reload keeps the settings and shows in readyz and the metrics", func(t *testing.T) {
		ready(t, s, usual)
		expect.Fault(t, "the reload", s.Reload(t.Context(), bad), fault.Invalid)
		expect.List(t, "the event types", in(t, s, "any"), []string{"good"})
		ready(t, s, refused)
		if _, text := ask(t, s, "", "GET", "/metrics", ""); !strings.Contains(text, "\nmcpevents_settings_refused 1") {
			t.Error("the metric mcpevents_settings_refused is not 1")
		}
		expect.OK(t, s.Reload(t.Context(), good))
		ready(t, s, usual)
	})
	end(t, s)
	t.Run("OPS-16 a start with refused settings fails unless it may use the last ones", func(t *testing.T) {
		expect.Fault(t, "the call", expect.ErrOf(New(t.Context(), bad)), fault.Invalid)
	})
	unread := good
	unread.Catalog, unread.SettingsError = nil, fault.New(fault.Invalid, "there is no catalog")
	for name, with := range map[string]Options{"invalid": bad, "unreadable": unread} {
		t.Run("OPS-16 a start with settings that are "+name+" uses the last ones", func(t *testing.T) {
			var log expect.Buffer
			with.LastSettings, with.Log = true, slog.New(slog.NewTextHandler(&log, nil))
			s := restart(t, with)
			expect.Contains(t, "the log", log.String(), `msg="settings refused at start" error=`, `used="the last valid settings"`)
			expect.List(t, "the event types", in(t, s, "any"), []string{"good"})
			ready(t, s, refused)
			expect.OK(t, s.Reload(t.Context(), good))
			ready(t, s, usual)
		})
	}
	t.Run("OPS-16 the first start with refused settings fails", func(t *testing.T) {
		first := bad
		first.Data, first.LastSettings = t.TempDir(), true
		expect.Fault(t, "the call", expect.ErrOf(New(t.Context(), first)), fault.Invalid)
	})
}

func TestAConfigurationThatBecomesEmptyIsRefused(t *testing.T) {
	s, o := serveOptions(t, func(with *Options) {
		with.Config = configured(t, "backends: [{name: shop, url: \"http://127.0.0.1:1/mcp\"}]\n")
	})
	backends := func() int {
		return len(expect.Value(s.core.Config.Backends(t.Context()))(t))
	}
	o.Config = configured(t, "")
	expect.Fault(t, "the reload", s.Reload(t.Context(), o), fault.Invalid, "has become empty")
	expect.Equal(t, "backends after an empty file", backends(), 1)
	end(t, s)
	o.LastSettings = true
	s = restart(t, o)
	expect.Equal(t, "backends after a start with the empty file", backends(), 1)
	expect.Equal(t, "the settings are refused", s.refused.Load(), true)
	o.Config = configured(t, "# nothing\n")
	expect.OK(t, s.Reload(t.Context(), o))
	expect.Equal(t, "backends after a file with a comment", backends(), 0)
}

// TestAKeyThatIsRemoved removes a key from the configuration while other settings are refused.
func TestAKeyThatIsRemoved(t *testing.T) {
	key := func(principal string) string {
		return fmt.Sprintf("  - {principal: %s, scopes: [\"events:read\"], sha256: %s}\n", principal, hash(principal))
	}
	start := func(t *testing.T) (*Server, Options) {
		s, o := serveOptions(t, func(with *Options) {
			with.Auth, with.Catalog = auth.ModeKeys, types(t, "good")
			with.Config = configured(t, "keys:\n"+key("leaked")+key("kept"))
		})
		return s, o
	}
	valid := func(t *testing.T, s *Server, principal string, want bool) {
		t.Helper()
		code, _ := ask(t, s, principal, "GET", "/admin/v1/subscriptions", "")
		expect.Equal(t, fmt.Sprintf("the key of %s is valid with the status %d", principal, code), code != http.StatusUnauthorized, want)
	}
	for name, refuse := range map[string]func(o *Options){
		"invalid": func(o *Options) { o.Catalog = []byte("events: nonsense") },
		"unreadable": func(o *Options) {
			o.Catalog, o.SettingsError = nil, fault.New(fault.Invalid, "there is no catalog")
		},
	} {
		t.Run("EVS-14 is refused although the catalog is "+name, func(t *testing.T) {
			s, o := start(t)
			refuse(&o)
			o.Config = configured(t, "keys:\n"+key("kept"))
			expect.Fault(t, "the reload", s.Reload(t.Context(), o), fault.Invalid)
			valid(t, s, "leaked", false)
			valid(t, s, "kept", true)
		})
		t.Run("EVS-14 is refused after a start although the catalog is "+name, func(t *testing.T) {
			s, o := start(t)
			end(t, s)
			refuse(&o)
			o.Config, o.LastSettings = configured(t, "keys:\n"+key("kept")), true
			s = restart(t, o)
			valid(t, s, "leaked", false)
			valid(t, s, "kept", true)
			if _, body := ask(t, s, "", "GET", "/readyz", ""); !strings.Contains(body, "refused") {
				t.Errorf("readyz says %s, want refused settings", body)
			}
		})
	}
	t.Run("EVS-14 is refused although it was the last one", func(t *testing.T) {
		s, o := start(t)
		o.Config = configured(t, "keys: []\n")
		expect.Fault(t, "the reload", s.Reload(t.Context(), o), fault.Invalid)
		valid(t, s, "leaked", false)
	})
	for name, text := range map[string]string{
		"is empty": "", "has only comments": "# keys:\n", "has other sections only": "quotas: [{streams: 5}]\n",
	} {
		t.Run("EVS-14 stays valid while the file "+name, func(t *testing.T) {
			s, o := start(t)
			o.Config = configured(t, text)
			expect.Fault(t, "the reload", s.Reload(t.Context(), o), fault.Invalid)
			valid(t, s, "kept", true)
			end(t, s)
			o.LastSettings = true
			s = restart(t, o)
			valid(t, s, "kept", true)
		})
	}
}

// limited starts a server with a caller for each quota. For example, the caller "streams" may have only one stream. A
// caller's key is its name.
func limited(t *testing.T) *Server {
	return serve(t, func(o *Options) {
		text := "quotas:\n  - {subscriptions: 7}\n  - {workspace: few, workspaceSubscriptions: 2}\n  - {principal: subscriptions, subscriptions: 1}\n  - {principal: streams, streams: 1}\n" +
			"  - {principal: publishRate, publishRate: 1}\n  - {principal: registrationRate, registrationRate: 0.1}\n  - {principal: sessions, sessions: 1}\nkeys:\n"
		for _, who := range []string{"op", "caller", "subscriptions", "streams", "publishRate", "registrationRate", "sessions"} {
			text += fmt.Sprintf("  - {principal: %s, sha256: %s, scopes: [events:read, events:subscribe, events:publish, events:operate]}\n", who, hash(who))
		}
		for _, who := range []string{"workspaceSubscriptions", "neighbour"} {
			text += fmt.Sprintf("  - {principal: %s, workspace: few, sha256: %s, scopes: [events:subscribe, events:operate]}\n", who, hash(who))
		}
		o.Config, o.Auth = expect.Value(config.ParseFile("config.yaml", []byte(text)))(t), auth.ModeKeys
	})
}

// TestLimits reaches each limit that has a name in docs/reference/limits.md, except for the limits that other packages test.
func TestLimits(t *testing.T) {
	s := limited(t)
	send := func(who, method, path, body string) string {
		_, text := ask(t, s, who, method, path, body)
		return text
	}
	publish := func(who, body string) string { return send(who, "POST", "/events", body) }
	mcp := func(who, method string, params map[string]any) string {
		_, text := read(t, call(t, s, who, method, params))
		return text
	}
	register := func(who string, params map[string]any) string {
		all := map[string]any{"uris": []string{"event://ci/build-finished"}, "targetUri": "http://127.0.0.1:9/"}
		for name, v := range params {
			all[name] = v
		}
		return mcp(who, "resources/subscriptions/register", all)
	}
	uris := func(n int, format string) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf(format, i))
		}
		return all
	}
	listen := func(all []string) string {
		return mcp("caller", spec.MethodListen, map[string]any{"notifications": map[string]any{"resourceSubscriptions": all}})
	}
	const event = `{"uri":"event://ci/build-finished","data":{"build":1,"status":"passed"}}`
	events := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat(event+",", n), ",") + "]" }
	twice := func(f func() string) func() string { return func() string { f(); return f() } }

	meet := map[string]func() string{
		"publishRate":      func() string { publish("publishRate", events(1000)); return publish("publishRate", event) },
		"registrationRate": twice(func() string { return register("registrationRate", nil) }),
		"subscriptions":    twice(func() string { return register("subscriptions", nil) }),
		"workspaceSubscriptions": func() string {
			register("neighbour", nil)
			return twice(func() string { return register("workspaceSubscriptions", nil) })()
		},
		"payload": func() string {
			return publish("caller", `{"uri":"event://ci/build-finished","data":{"text":"`+strings.Repeat("x", 240<<10)+`"}}`)
		},
		"nesting": func() string {
			return publish("caller", `{"uri":"event://ci/build-finished","data":`+strings.Repeat("[", 65)+strings.Repeat("]", 65)+`}`)
		},
		"eventsPerRequest": func() string { return publish("caller", events(1001)) },
		"eventURI": func() string {
			return publish("caller", `{"uri":"event://ci/`+strings.Repeat("x", 1024)+`","data":{}}`)
		},
		"body": func() string {
			return publish("caller", `"`+strings.Repeat("x", 5<<20)+`"`) + send("caller", "POST", "/mcp", strings.Repeat(" ", 2<<20))
		},
		"registrationURIs": func() string {
			return register("caller", map[string]any{"uris": uris(51, "event://ci/build-finished?%d")})
		},
		"targetURL": func() string {
			return register("caller", map[string]any{"targetUri": "http://127.0.0.1:9/" + strings.Repeat("x", 2048)})
		},
		"streamURIs":     func() string { return listen(uris(201, "event://github/acme/r%d/pull_request")) },
		"streamPatterns": func() string { return listen(uris(21, "event://github/acme%d")) },
		"liveStreams": func() string {
			for range 20 {
				resp := request(t, s, "op", "GET", "/admin/v1/live", "", "")
				defer func() { _ = resp.Body.Close() }()
			}
			return send("op", "GET", "/admin/v1/live", "")
		},
		"testsPerEndpoint": func() string {
			register("neighbour", nil)
			id := regexp.MustCompile(`"id":"(sub_\w+)"`).FindStringSubmatch(send("neighbour", "GET", "/admin/v1/subscriptions", ""))
			if id == nil {
				t.Fatal("there is no subscription to test")
			}
			return twice(func() string { return send("neighbour", "POST", "/admin/v1/subscriptions/"+id[1]+"/test", "") })()
		},
		"sessions": func() string { // the second session ends the first one
			for range 2 {
				send("sessions", "POST", "/mcp", `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
			}
			return `"limit":"sessions","max":`
		},
		// The server ends the oldest stream instead of refusing the new one, so no response mentions the limit.
		"streams": func() string { superseded(t, s); return `"limit":"streams","max":` },
	}
	for name, f := range meet {
		t.Run("OPS-15 "+name, func(t *testing.T) {
			count := func() float64 { return value(scrape(t, s, "op"), "mcpevents_limits_reached_total", name) }
			before := count()
			if answer := f(); !regexp.MustCompile(`"limit": ?"`+name+`"`).MatchString(answer) || !strings.Contains(answer, `"max":`) {
				t.Errorf("got %.600s, want an answer with the limit %s and its maximum", answer, name)
			}
			expect.True(t, "the counter is higher after the limit is reached", count() > before)
		})
	}
	t.Run("OPS-15 the page of limits has their names", func(t *testing.T) {
		page := expect.Value(os.ReadFile("../../../docs/reference/limits.md"))(t)
		for name := range meet {
			expect.Contains(t, "the page, with "+name, string(page), "`"+name+"`")
		}
		for _, m := range regexp.MustCompile(`(?m)\| `+"`(\\w+)`"+` \|$`).FindAllStringSubmatch(string(page), -1) {
			// Other packages' tests reach these limits.
			other := slices.Contains([]string{"conversationRate", "calls", "failedVerificationsPerHost", "backendSubscriptions", "backendSessions", "backendProcesses", "backendEvents", "backendArguments", "answerBytes", "batchBytes"}, m[1]) || strings.HasSuffix(m[1], "erifications")
			if meet[m[1]] == nil && !other {
				t.Errorf("no test reaches the limit %s", m[1])
			}
		}
	})
	t.Run("OPS-15 the overview tells quotas, and what is used", func(t *testing.T) {
		for who, want := range map[string]string{
			"subscriptions": `{"name":"subscriptions","max":1,"used":1},{"name":"streams","max":100},{"name":"calls","max":100},{"name":"sessions","max":1000},{"name":"publishRate","max":1000},`,
			"streams":       `{"name":"subscriptions","max":7,"used":0},{"name":"streams","max":1},`,
			"publishRate":   `{"name":"subscriptions","max":7,"used":0},{"name":"streams","max":100},{"name":"calls","max":100},{"name":"sessions","max":1000},{"name":"publishRate","max":1},`,
		} {
			expect.Contains(t, who, send("op", "GET", "/admin/v1/overview?principal="+who, ""), `"principal":"`+who+`","quotas":[`+want)
		}
		for who, want := range map[string]string{"neighbour": `{"name":"workspaceSubscriptions","max":2,"used":2}]`, "op": `{"name":"workspaceSubscriptions","used":2}]`} {
			expect.Contains(t, "the overview of "+who, send(who, "GET", "/admin/v1/overview", ""), want)
		}
	})
}

// superseded opens two streams of a caller that may have only one, and blocks until the first one has ended.
func superseded(t *testing.T, s *Server) {
	t.Helper()
	open := func() *bufio.Reader {
		resp := call(t, s, "streams", spec.MethodListen, map[string]any{"notifications": map[string]any{}})
		t.Cleanup(func() { _ = resp.Body.Close() })
		r := bufio.NewReader(resp.Body)
		expect.OK(t, expect.ErrOf(r.ReadString('\n')))
		return r
	}
	first := open()
	open()
	expect.OK(t, expect.ErrOf(io.Copy(io.Discard, first)))
}

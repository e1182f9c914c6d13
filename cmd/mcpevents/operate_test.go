package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// operated is a stand-alone server with one webhook subscription, for tests of the operator's commands.
type operated struct {
	*testing.T
	*standalone.Server
	url          string
	endpoint     string // the URL of the endpoint
	subscription string
	status       atomic.Int64 // the status that the endpoint answers with
	arrived      atomic.Int64
}

const buildFinished = "event://ci/build-finished"

func startOperated(t *testing.T) *operated {
	o := &operated{T: t}
	o.status.Store(200)
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if servertest.Echo(w, r) {
			return
		}
		o.arrived.Add(1)
		w.WriteHeader(int(o.status.Load()))
	}))
	t.Cleanup(endpoint.Close)
	callers := map[string]servertest.Caller{}
	for who, scopes := range map[string]string{"op": "events:operate", "alice": "events:read, events:subscribe", "reader": "events:read"} {
		callers[who] = servertest.Caller{Workspace: "default", Scopes: scopes}
	}
	options := servertest.Options(t, callers)
	options.Config = servertest.Config(t, callers, "backends:\n  - {name: tools, url: \"https://tools.example/mcp\", prefix: t_, tools: {deny: [x]}}\n")
	o.Server = servertest.Start(t, options)
	o.url = o.URL
	t.Setenv("MCPEVENTS_SERVER", o.url)
	t.Setenv("MCPEVENTS_KEY", "op")
	o.endpoint = endpoint.URL
	o.subscription = o.subscribe(endpoint.URL + "/a")
	return o
}

// subscribe registers a webhook for alice, and returns the id of the subscription.
func (o *operated) subscribe(target string) string {
	o.Helper()
	return servertest.Subscribe(o.T, o.url, "alice", target, buildFinished)
}

func (o *operated) publish(id string) {
	o.Helper()
	expect.OK(o, expect.ErrOf(o.Publish(o.Context(), "default", standalone.Event{URI: buildFinished, ID: id, Data: json.RawMessage(`{"build":1,"status":"passed"}`)})))
}

// says runs a command that must succeed and returns its output.
func (o *operated) says(args ...string) string {
	o.Helper()
	code, out, errs := command(o.T, "", args...)
	if code != exitDone {
		o.Fatalf("%s: exit code %d: %s", strings.Join(args, " "), code, errs)
	}
	return out
}

// items returns the items of a list that was printed as JSON.
func (o *operated) items(args ...string) []map[string]any {
	o.Helper()
	var l struct{ Items []map[string]any }
	out := o.says(append(args, "--json")...)
	if err := json.Unmarshal([]byte(out), &l); err != nil || l.Items == nil {
		o.Fatalf("%v prints %s: %v", args, out, err)
	}
	return l.Items
}

func TestOperatorsCommands(t *testing.T) {
	o := startOperated(t)
	id := o.subscription
	o.status.Store(413)
	o.publish("evt_dead")
	expect.Eventually(o, "the dead letter", func() bool { return len(o.items("deadletters", "list")) == 1 })
	o.status.Store(200)
	o.publish("evt_fine")
	expect.Eventually(o, "both attempts", func() bool { return len(o.items("deliveries", "list")) == 2 })
	letter := fmt.Sprint(o.items("deadletters")[0]["id"])

	t.Run("OPS-10 lists are tables, aligned, with times in local form", func(t *testing.T) {
		for list, want := range map[string]string{
			"subscriptions list --principal alice":                    `(?m)^ID +PRINCIPAL +STATE +EVENTS +TARGET +LAST +LAST ERROR\n` + id + `  alice  +active +ci\.build_finished +http://127.0.0.1:\d+/a +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d *$`,
			"subscriptions":                                           id,
			"deliveries list --event evt_dead":                        `(?m)^20\d\d-.{14} +dead +evt_dead +ci\.build_finished +` + id + ` +1 +413 +http_4xx +\d+ *$`,
			"deliveries list --outcome delivered --since 1h":          `delivered +evt_fine`,
			"deadletters replay --dry-run --until 2020-01-01":         `^count: 0\n$`,
			"deliveries list --until 1h":                              `^AT +OUTCOME .*\n$`,
			"deadletters list --event ci.build_finished":              letter + ` +20`,
			"events list --uri " + buildFinished:                      `(?s)evt_fine .*evt_dead `,
			"events list --name ci.build_finished":                    `evt_fine +ci\.build_finished +event://ci/build-finished`,
			"events types":                                            `ci\.build_finished +event://ci/build-finished +push, `,
			"subscriptions --uri " + buildFinished:                    id,
			"backends":                                                `tools +[a-z]+ +https://tools.example/mcp +t_ +\{"tools":\{"deny":\["x"\]\}\}`, // GWN-25
			"switches list":                                           `^NAME +STATE +BY +AT +REASON +WAITING +OLDEST\n$`,
			"subscriptions -o name":                                   `^` + id + `\n$`,
			"subscriptions -o yaml":                                   `(?m)^items:\n  - id: ` + id + `\n(.*\n)*.* "?20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d`,
			"subscriptions -o json --state paused":                    `^\{"items":\[\]\}\n$`,
			"subscriptions show " + id + " --output name":             `^` + id + `\n$`,
			"events list -o name --name ci.build_finished":            `^evt_fine\nevt_dead\n$`,
			"subscriptions show " + id:                                `(?m)^principal: alice\n(.*\n)*delivery:\n  last: 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d$`,
			"deadletters show " + letter:                              `(?m)^attempts:\n  - attempt: 1$`,
			"events show evt_fine":                                    `(?m)^data:\n  build: 1\n  status: passed$`,
			"events show evt_fine --uri " + buildFinished:             `^id: evt_fine\n`,
			"events show evt_fine --json":                             `^\{"id":"evt_fine",.*"data":\{"build":1,"status":"passed"\},"outcomes":\[\{"subscription":"` + id + `",.*"outcome":"delivered",.*\}\]\}\n$`,
			"overview":                                                `(?m)^subscriptions:\n  active: 1$`,
			"overview --principal alice":                              `(?m)^principal: alice\nquotas:\n  - name: subscriptions\n    max: 1000\n    used: 1$`,
			"deadletters replay --dry-run --subscription " + id:       `^count: 1\n$`,
			"events replay --dry-run --since 1h --subscription " + id: `^count: 2\n$`,
		} {
			if out := o.says(strings.Fields(list)...); !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("%s prints\n%s", list, out)
			}
		}
	})
	t.Run("OPS-10 a list follows all pages, up to --limit", func(t *testing.T) {
		for i := range 120 {
			o.subscribe(fmt.Sprintf("http://127.0.0.1:9/%d", i))
		}
		expect.Equal(t, "all subscriptions", len(o.items("subscriptions", "list", "--limit", "0")), 121)
		expect.Equal(t, "the subscriptions up to the limit", len(o.items("subscriptions", "list", "--limit", "110")), 110)
		_, out, errs := command(t, "", "subscriptions", "list", "--limit", "2")
		cursor := regexp.MustCompile(`There are more than 2 .* --cursor (\S+)\n`).FindStringSubmatch(errs)
		if strings.Count(out, "\n") != 3 || cursor == nil {
			t.Fatalf("prints %s%s", out, errs)
		}
		expect.Equal(t, "the items after the cursor", len(o.items("subscriptions", "list", "--limit", "0", "--cursor", cursor[1])), 119)
	})
	t.Run("OPS-10 a subscription is paused, resumed, tested and ended", func(t *testing.T) {
		expect.Contains(t, "the answer", o.says("subscriptions", "pause", id, "--reason", "moving house"), "state: paused")
		if out := o.says("switches", "list"); !regexp.MustCompile(`subscription/` + id + ` +paused +op +20.* +moving house`).MatchString(out) {
			t.Error(out)
		}
		expect.Contains(t, "the answer", o.says("subscriptions", "resume", id), "state: active")
		before := o.arrived.Load()
		if out := o.says("subscriptions", "test", id, "--json"); !strings.HasPrefix(out, `{"event":"test_`) {
			t.Error(out)
		}
		expect.Eventually(o, "the test event", func() bool { return o.arrived.Load() > before })
		gone := o.subscribe("http://127.0.0.1:9/gone")
		if code, _, errs := command(t, "yes\n", "subscriptions", "end", gone); code != exitRefused || !strings.Contains(errs, "not a terminal on which to ask: add --yes") {
			t.Errorf("without --yes: exit code %d: %s", code, errs)
		}
		expect.Equal(t, "the output", o.says("subscriptions", "end", gone, "--yes"), "Done.\n")
		fails(t, "subscriptions show "+gone, exitRefused, "there is no such subscription")
	})
	t.Run("OPS-06 OPS-10 switches of every kind are set and cleared", func(t *testing.T) {
		for _, name := range []string{"all", "event/ci.build_finished", "origin/https://a.example:8443"} {
			expect.Contains(t, "the answer", o.says("switches", "set", name, "--reason", "a reason"), "name: "+name)
			if l := o.items("switches", "list"); len(l) != 1 || l[0]["name"] != name {
				t.Errorf("%s: %v", name, l)
			}
			expect.Equal(t, "the answer to clear "+name, o.says("switches", "clear", name, "--json"), "{}\n")
		}
	})
	t.Run("OPS-11 OPS-10 a note about an origin is written, listed and removed", func(t *testing.T) {
		const origin = "https://a.example:8443"
		expect.Contains(t, "the answer", o.says("notes", "set", origin, "--text", "their team knows"), "text: their team knows\n")
		if out := o.says("notes"); !regexp.MustCompile(`(?m)^ORIGIN +TEXT +BY +AT\n` + origin + ` +their team knows +op +20\d\d-`).MatchString(out) {
			t.Error(out)
		}
		expect.Equal(t, "the output", o.says("notes", "clear", origin), "Done.\n")
		expect.Equal(t, "the number of notes", len(o.items("notes")), 0)
	})
	t.Run("OPS-04 WHK-13 OPS-10 dead letters are replayed and retried", func(t *testing.T) {
		before := o.arrived.Load()
		var r map[string]any
		if err := json.Unmarshal([]byte(o.says("deadletters", "replay", "--rate", "1000", "--json")), &r); err != nil || r["state"] != "done" || r["replayed"] != 1.0 {
			t.Fatalf("got %v, %v", r, err)
		}
		expect.Eventually(o, "the replay", func() bool { return o.arrived.Load() > before })
		expect.Contains(t, "the replay", o.says("replays", "show", fmt.Sprint(r["id"])), "state: done\n")
		o.status.Store(413)
		o.publish("evt_more")
		expect.Eventually(o, "its dead letter", func() bool { return len(o.items("deadletters")) == 1 })
		o.status.Store(200)
		expect.Contains(t, "the answer", o.says("deadletters", "retry", fmt.Sprint(o.items("deadletters")[0]["id"])), "event: evt_more")
	})
	t.Run("OPS-05 OPS-10 an event is delivered again", func(t *testing.T) {
		before := o.arrived.Load()
		expect.Contains(t, "the answer", o.says("events", "deliver", "evt_fine", "--subscription", id), "subscription: "+id)
		expect.Eventually(o, "the event", func() bool { return o.arrived.Load() > before })
	})
	t.Run("OPS-08 OPS-10 the audit trail has the actions of the commands", func(t *testing.T) {
		out := o.says("audit", "list", "--since", "1h")
		for _, action := range []string{"subscription.pause", "subscription.end", "switch.pause", "note.write", "replay.start", "dead-letter.retry", "event.deliver"} {
			if !regexp.MustCompile(`(?m)^20.* op +\S+ +` + regexp.QuoteMeta(action) + ` `).MatchString(out) {
				t.Errorf("got\n%s\nwant it to contain %s", out, action)
			}
		}
	})
	t.Run("OPS-10 refusals say what to do, with the exit codes of the other commands", func(t *testing.T) {
		for _, x := range []struct {
			args string
			code int
			want string
		}{
			{"subscriptions list --key wrong", exitDenied, "MCPEVENTS_KEY"},
			{"audit list --key reader", exitDenied, "events:operate"},
			{"subscriptions show sub_none", exitRefused, "\"sub_none\" is not found (mcpevents subscriptions list prints the ids): the server refused (404): there is no such subscription"},
			{"deadletters retry none", exitRefused, "there is no such dead letter"},
			{"events show evt_none", exitRefused, "the log has no such event"},
			{"events deliver evt_fine --subscription sub_none", exitRefused, "\"sub_none\" is not found (mcpevents subscriptions list prints the ids)"},
			{"events deliver evt_none --subscription " + id, exitRefused, "\"evt_none\" is not found (mcpevents events list prints the ids)"},
			{"replays watch rpl_none", exitRefused, "there is no such replay"},
			{"subscriptions list --state asleep", exitRefused, "allowed: active, paused"},
			{"deliveries list --since yesterday", exitRefused, `--since: "yesterday" is not a time (e.g. 2026-`},
			{"deliveries list --since=-2h", exitRefused, `--since: "-2h" is not a time (e.g. 2026-`}, // it would be in the future
			{"events list", exitUsage, "--uri or --name is needed"},
			{"deadletters replay --rate 5000", exitRefused, "allowed: 1 to 1000"},
			{"deliveries -o name", exitRefused, "prints no ids or names"},
			{"subscriptions --json -o yaml", exitUsage, "--json and --output yaml cannot be combined"},
			{"deadletters list --limit=-1", exitUsage, "--limit -1 is not allowed (at least 1, or 0 for all items) (see mcpevents deadletters list --help)"},
			{"listen --name ci.build_finished --key wrong", exitDenied, "is not valid: set --key or MCPEVENTS_KEY\n"},
			{"serve --data :memory: --catalog ../../catalog.yaml --addr " + strings.TrimPrefix(o.URL, "http://"), exitUnavailable, "in use: stop the program that uses it, or choose another address\n"},
			{"serve --data :memory: --catalog ../../catalog.yaml --addr 127.0.0.1:80800", exitRefused, "80800: invalid port"},
			{"check " + o.URL + "/nothing", exitRefused, "does not offer MCP Events"},
			{"overview --server http://127.0.0.1:1", exitUnavailable, "is it running, and is its URL right"},
			{"overview --server " + o.URL + "/mcp", exitRefused, o.URL + "/admin/v1"},
			{"nonsense", exitUsage, "mcpevents: nonsense is not a command (see mcpevents --help)\n"},
			{"serv", exitUsage, "mcpevents: serv is not a command, did you mean \"serve\"? (see mcpevents --help)\n"},
			{"serve --publish-rate x", exitUsage, "--publish-rate: \"x\" is not a number (see mcpevents serve --help)"},
			{"subscriptions show a b", exitUsage, "unexpected argument b (see mcpevents subscriptions show --help)"},
			{"demo --timeout 5", exitUsage, "--timeout: \"5\" is not a duration (such as 90s, 15m or 1h30m) (see mcpevents demo --help)"},
			{"bench --streams=-5", exitUsage, "--streams must not be negative (see mcpevents bench --help)"},
			{"bench --gateway --sessions=-1", exitUsage, "--sessions must not be negative"},
			{"bench --wait=-1s", exitUsage, "--wait must not be negative"},
			{"serve --data :memory: --catalog ../../catalog.yaml --admin-addr 127.0.0.1:80800", exitRefused, "80800: invalid port"},
			{"principals", exitUsage, "mcpevents: give a command: \"erase\" (see mcpevents principals --help)\n"},
			{"subscriptions show", exitUsage, "missing argument: <id> (see mcpevents subscriptions show --help)"},
		} {
			expect.Equal(t, "the output of "+x.args, fails(t, x.args, x.code, x.want), "")
		}
	})
}

// RCH-06: a check of a server that breaks a rule with MUST exits with 1, and the report for a CI has a failure.
func TestACheckOfAServerThatBreaksARule(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage
			Method string
		}
		_ = json.NewDecoder(r.Body).Decode(&m)
		result := map[string]string{
			"server/discover": `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"io.modelcontextprotocol/events":{}}}}`,
			"events/list":     `{"resultType":"complete","events":[{"name":"a","description":"b","delivery":["poll"]}]}`,
		}[m.Method]
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID, cmp.Or(result, `{"resultType":"complete"}`))
	}))
	defer s.Close()
	junit := filepath.Join(t.TempDir(), "report.xml")
	out := fails(t, "check "+s.URL+" --junit "+junit, exitFailure, "rules with MUST failed")
	expect.Contains(t, "the table", out, "failed        MUST    error-unknown-event")
	expect.Contains(t, "the report for a CI", string(expect.Value(os.ReadFile(junit))(t)), `name="error-unknown-event: `, "<failure")
}

// startAPI starts a server that answers requests from a table of methods and paths.
func startAPI(t *testing.T, answers map[string]string) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.Method+" "+r.URL.RequestURI()]
		if !ok {
			t.Errorf("unexpected request %s %s", r.Method, r.URL.RequestURI())
		}
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	t.Setenv("MCPEVENTS_SERVER", s.URL)
}

// OPS-10: with --admin-addr, the server has no admin API at its other address.
func TestNoAdminAPIAtThisAddress(t *testing.T) {
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	for _, args := range []string{"overview", "subscriptions list", "subscriptions show sub_1", "events deliver evt_1 --subscription sub_1"} {
		code, _, errs := command(t, "", append(strings.Fields(args), "--server", s.URL)...)
		expect.Equal(t, "the exit code of "+args, code, exitRefused)
		expect.Contains(t, "the error of "+args, errs, "answered 404 Not Found; is the server's URL right? With --admin-addr, a server has the admin API only at that address\n")
		expect.Lacks(t, "the error of "+args, errs, "is not found", "which no server of mcp-events does")
	}
}

func TestAnErasureContinuesUntilItIsComplete(t *testing.T) {
	answers := []string{`{"principal":"bob","dryRun":false,"counts":{"subscriptions":3,"sessions":1},"complete":false}`, `{"principal":"bob","dryRun":false,"counts":{"subscriptions":2},"complete":true}`}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, answers[0])
		answers = answers[1:]
	}))
	t.Cleanup(s.Close)
	code, out, errs := command(t, "", "principals", "erase", "bob", "--yes", "--json", "--server", s.URL)
	if want := `{"principal":"bob","dryRun":false,"counts":{"sessions":1,"subscriptions":5},"complete":true}` + "\n"; code != exitDone || out != want {
		t.Errorf("OPS-07 OPS-10: exit code %d, %s%s", code, out, errs)
	}
}

// TestWhyNotOnTheCommandLine: OPS-17. Given subscriptions that did not receive an event for different reasons, events show and events
// outcomes print the reason of each.
func TestWhyNotOnTheCommandLine(t *testing.T) {
	o := startOperated(t)
	paused := o.subscribe(o.endpoint + "/paused")
	filtered := servertest.SubscribeEvents(t, o.url, "alice", o.endpoint+"/filtered", "ci.build_finished", map[string]any{"status": "failed"})
	o.says("subscriptions", "pause", paused, "--reason", "moving")
	o.status.Store(503)
	o.publish("evt_1")
	expect.Eventually(o, "the attempt", func() bool { return len(o.items("deliveries", "--event", "evt_1")) == 1 })
	late := o.subscribe(o.endpoint + "/late")
	for _, args := range []string{"events show evt_1", "events outcomes evt_1"} {
		out := o.says(strings.Fields(args)...)
		for _, want := range []string{
			`OUTCOME +WHY +AT +NEXT ATTEMPT +ATTEMPTS +TARGET +SUBSCRIPTION`,
			`waiting +the endpoint answered 503; attempt 2 follows .* 1 +http://127.0.0.1:\d+/a +` + o.subscription,
			`paused +the subscription is paused by op: moving .*` + paused,
			`filtered +the subscription asks for status "failed", and the event has "passed" .*` + filtered,
			`subscribedLater +it subscribed after the event was published .*` + late,
		} {
			if !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("OPS-17 %s prints\n%s, want a line like %s", args, out, want)
			}
		}
	}
	expect.Equal(t, "OPS-17 the lines of the output", strings.Count(o.says("events", "outcomes", "evt_1", "--subscription", late), "\n"), 2)
}

func TestHostileTextCannotControlTheTerminal(t *testing.T) {
	startAPI(t, map[string]string{
		"GET /admin/v1/switches?limit=100":          `{"items":[{"name":"all\u001b[2J","reason":"a\tb\nc","at":null}]}`,
		"GET /admin/v1/events/e/outcomes?limit=100": `{"items":[{"outcome":"filtered","why":"it has \u001b[2J"}]}`,
		"GET /admin/v1/events/e":                    `{"id":"\u001b]0;x\u0007","data":{"\ud83d\ude00":"1\n2","n":9007199254740993}}`,
	})
	_, out, _ := command(t, "", "switches", "list")
	if want := "NAME        STATE  BY  AT  REASON   WAITING  OLDEST\n" + `all\x1b[2J                 a\tb\nc           ` + "\n"; out != want {
		t.Errorf("OPS-10: prints %q, want %q", out, want)
	}
	_, out, _ = command(t, "", "events", "show", "e")
	if strings.ContainsAny(out, "\x1b\x07") || !strings.Contains(out, "n: 9007199254740993") || !strings.Contains(out, "\U0001f600") && !strings.Contains(out, `"\U0001F600"`) {
		t.Errorf("OPS-10: prints %q", out)
	}
}

// CNV-06: callers list, give and revoke consent on the command line, for themselves or for another principal.
func TestConsentCommands(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Authorization"))
		view := `{"name":"memory","title":"Memory","description":"Remembers.","receives":["userMessage"],"consented":true,"consent":{"given":true,"at":"2026-11-22T01:02:03Z","by":"ann"}}`
		switch {
		case strings.HasSuffix(r.URL.Path, "/none"):
			w.WriteHeader(http.StatusNotFound)
			_, _ = w.Write([]byte(`{"error":{"kind":"not found","message":"unknown provider"}}`))
		case r.Method == http.MethodGet:
			_, _ = w.Write([]byte(`{"providers":[` + view + `,{"name":"events","receives":["userMessage"],"consent":null}]}`))
		default:
			_, _ = w.Write([]byte(view))
		}
	}))
	defer s.Close()
	for _, tc := range []struct {
		args, request, out string
		code               int
	}{
		{"list --server " + s.URL, "GET /consent Bearer k", "memory  userMessage  consent, 2026-11-22T01:02:03Z by ann  Memory: Remembers.\nevents  userMessage  no consent", 0},
		{"give memory --server " + s.URL + "/mcp", "PUT /consent/memory Bearer k", "memory  userMessage  consent", 0},
		{"revoke memory --principal bob --server " + s.URL + "/base/mcp", "DELETE /base/consent/memory?principal=bob Bearer k", "memory", 0},
		{"revoke ../admin/v1/principals/ann --server " + s.URL, "DELETE /consent/..%2Fadmin%2Fv1%2Fprincipals%2Fann Bearer k", "", 0},
		{"give none --server " + s.URL, "PUT /consent/none Bearer k", "unknown provider", 3},
	} {
		asked = nil
		var out bytes.Buffer
		code := run(append([]string{"consent"}, append(strings.Fields(tc.args), "--key", "k")...), nil, &out, &out)
		if code != tc.code || len(asked) != 1 || asked[0] != tc.request || !strings.Contains(out.String(), tc.out) {
			t.Errorf("%s: exit code %d, asked %q, printed %q", tc.args, code, asked, out.String())
		}
	}
	asked = nil
	fails(t, "consent revoke .. --key k --server "+s.URL, exitRefused, "not the name of a provider")
	expect.Len(t, "requests", asked, 0)
}

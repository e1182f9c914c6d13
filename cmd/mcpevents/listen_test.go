package main

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

// serve starts a server without authentication, and stops it at the end of the test.
func serve(t *testing.T, change func(*standalone.Options)) *standalone.Server {
	t.Helper()
	o := servertest.Options(t, nil)
	if change != nil {
		change(&o)
	}
	return servertest.Start(t, o)
}

// background is a command that runs concurrently with the test.
type background struct {
	t     *testing.T
	out   expect.Buffer
	err   expect.Buffer
	code  int
	ended chan struct{}
}

func start(t *testing.T, args ...string) *background {
	t.Helper()
	b := &background{t: t, ended: make(chan struct{})}
	go func() {
		defer close(b.ended)
		b.code = run(args, strings.NewReader(""), &b.out, &b.err)
	}()
	t.Cleanup(func() { b.wait() })
	return b
}

// wait waits for the command's end and returns its exit code.
func (b *background) wait() int {
	b.t.Helper()
	expect.Receive(b.t, "the end of the command", b.ended)
	return b.code
}

// lines decodes the printed lines.
func (b *background) lines() []client.Event {
	b.t.Helper()
	var all []client.Event
	for line := range strings.Lines(b.out.String()) {
		var r client.Event
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			b.t.Fatalf("printed a line that is not JSON: %v: %s", err, line)
		}
		all = append(all, r)
	}
	return all
}

func publishOne(t *testing.T, server, uri, id, data string) {
	t.Helper()
	if code, _, errs := command(t, "", "publish", "--server", server, "--uri", uri, "--id", id, "--data", data, "-q"); code != exitDone {
		t.Fatalf("publish: exit code %d: %s", code, errs)
	}
}

const (
	buildURI = "event://ci/build-finished"
	build    = `{"build":7,"status":"passed"}`
	pull     = `{"action":"opened","number":1,"pull_request":{"title":"t","author":"ada"}}`
	closed   = `{"action":"closed","number":1,"pull_request":{"title":"t","author":"ada"}}`
)

// subscriptions lists the subscription:// resources of the server.
func subscriptions(t *testing.T, server string) (uris []string) {
	t.Helper()
	caller := expect.Value(client.Connect(t.Context(), server, client.Options{Revision: string(spec.V20260728)}))(t)
	var result struct {
		Resources []struct{ URI string }
	}
	expect.OK(t, caller.Call(t.Context(), "resources/list", nil, &result))
	for _, r := range result.Resources {
		if strings.HasPrefix(r.URI, "subscription://") {
			uris = append(uris, r.URI)
		}
	}
	return uris
}

func TestListenReceivesWebhooks(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		for _, tt := range []struct {
			name string
			args []string
			via  string
		}{
			{"a_webhook_of_SEP-1803", []string{"--uri", buildURI, "--uri", "event://github/acme"}, "webhook"},
			{"a_webhook_of_MCP_Events", []string{
				"--via", "events", "--name", "github.pull_request", "--arg", "owner=acme", "--arg", `action=["opened","merged"]`,
			}, "events"},
		} {
			t.Run(tt.name+"_"+revision, func(t *testing.T) {
				e := serve(t, nil)
				l := start(t, append([]string{
					"listen", "--server", e.URL, "--revision", revision, "--count", "1", "--for", "20s", "--log-format", "text",
				}, tt.args...)...)
				l.err.Await(t, "receiving webhooks", 1)
				expect.Len(t, "the subscriptions while listening", subscriptions(t, e.URL), 1)
				publishOne(t, e.URL, "event://github/other/site/pull_request", "not-asked-for", pull)
				if tt.via == "events" {
					publishOne(t, e.URL, "event://github/acme/site/pull_request", "filtered", closed)
				}
				publishOne(t, e.URL, "event://github/acme/site/pull_request", "wanted", pull)
				expect.MustEqual(t, "the exit code with the output "+l.err.String(), l.wait(), exitDone)
				got := l.lines()
				if len(got) != 1 {
					t.Fatalf("printed %s, want one line", &l.out)
				}
				r := got[0]
				if r.Via != tt.via || r.ID != "wanted" || r.Name != "github.pull_request" || r.Verified == nil || !*r.Verified ||
					r.Subscription == "" || r.Time == "" || string(r.Data) != pull {
					t.Errorf("printed %s, want the verified event wanted by %s", &l.out, tt.via)
				}
				expect.Len(t, "the subscriptions afterwards", subscriptions(t, e.URL), 0)
				expect.Lacks(t, "the output", l.out.String()+l.err.String(), "whsec_")
			})
		}
	}
}

func TestListenAcceptsEachKindOfSecret(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ secret, flag, says string }{
		{"standard", "--show-secret", "secret: whsec_"}, {"raw", "--show-secret=false", "receiving webhooks"}, {"none", "--show-secret=false", "receiving webhooks"},
	} {
		t.Run(tt.secret, func(t *testing.T) {
			e := serve(t, func(s *standalone.Options) { s.Limits.WebhookSecret = tt.secret })
			l := start(t, "listen", "--server", e.URL, "--uri", buildURI, "--count", "1", "--for", "20s", "--log-format", "text", tt.flag)
			l.err.Await(t, tt.says, 1)
			publishOne(t, e.URL, buildURI, "b", build)
			expect.MustEqual(t, "the exit code with the output "+l.err.String(), l.wait(), exitDone)
			if r := l.lines()[0]; r.ID != "b" || *r.Verified != (tt.secret != "none") {
				t.Errorf("printed %s, want the event b, verified if the webhook is signed", &l.out)
			}
		})
	}
}

// EVX-05, EVX-06: a user follows an event type without a webhook, and continues from a cursor.
func TestListenFollows(t *testing.T) {
	t.Parallel()
	const uri = "event://github/acme/site/pull_request"
	for _, mode := range []string{"poll", "push"} {
		t.Run(mode, func(t *testing.T) {
			e := serve(t, func(s *standalone.Options) {
				s.Limits.PollMin, s.Limits.PollMax = 100*time.Millisecond, 100*time.Millisecond
			})
			args := []string{
				"listen", "--server", e.URL, "--mode", mode, "--name", "github.pull_request",
				"--arg", "owner=acme", "--arg", "action=opened", "--for", "25s", "--log-format", "text", "--count", "1",
			}
			l := start(t, args...)
			l.err.Await(t, "following", 1)
			publishOne(t, e.URL, "event://github/other/site/pull_request", "not-asked-for", pull)
			publishOne(t, e.URL, uri, "filtered", closed)
			publishOne(t, e.URL, uri, "one", pull)
			expect.MustEqual(t, "the exit code with the output "+l.err.String(), l.wait(), exitDone)
			got := l.lines()
			if len(got) != 1 || got[0].ID != "one" || got[0].Via != mode || got[0].Name != "github.pull_request" || got[0].Cursor == "" || string(got[0].Data) != pull {
				t.Fatalf("printed %s, want only the event one, by %s", &l.out, mode)
			}
			publishOne(t, e.URL, uri, "two", pull)
			l = start(t, append(args, "--cursor", got[0].Cursor)...)
			if code := l.wait(); code != exitDone || l.lines()[0].ID != "two" {
				t.Errorf("from the cursor: got exit code %d, %s%s, want the event two", code, &l.out, &l.err)
			}
		})
	}
}

// RCH-03: the flags of --exec apply to its commands.
func TestListenRunsCommands(t *testing.T) {
	t.Parallel()
	e := serve(t, nil)
	dir := t.TempDir()
	for name, args := range map[string][]string{
		// Each command waits for the other one.
		"concurrency": {"--exec", "touch " + dir + "/$EVENT_ID; until [ -e " + dir + "/concurrency1 -a -e " + dir + "/concurrency2 ]; do sleep 0.02; done", "--concurrency", "2"},
		"timeout":     {"--exec", "exec sleep 60", "--timeout", "100ms", "--tries", "1", "--failed-file", dir + "/failed"},
	} {
		l := start(t, append([]string{"listen", "--server", e.URL, "--name", "ci.build_finished", "--count", "2", "--for", "60s", "--log-format", "text"}, args...)...)
		l.err.Await(t, "following", 1)
		publishOne(t, e.URL, buildURI, name+"1", build)
		publishOne(t, e.URL, buildURI, name+"2", build)
		expect.MustEqual(t, "RCH-03 the exit code with --"+name+" and the output "+l.err.String(), l.wait(), exitDone)
	}
	failed := string(expect.Value(os.ReadFile(dir + "/failed"))(t))
	expect.Equal(t, "RCH-03 the failures in "+failed, strings.Count(failed, "the command took longer than 100ms"), 2)
}

// A reader continues at its cursor after the server was restarted with the same data.
func TestListenReadsStreams(t *testing.T) {
	t.Parallel()
	for _, revision := range []string{"2026-07-28", "2025-11-25"} {
		t.Run(revision, func(t *testing.T) {
			addr, data := freeAddr(t), t.TempDir()
			again := func(s *standalone.Options) { s.Addr, s.Data = addr, data }
			e := serve(t, again)
			l := start(t, "listen", "--server", e.URL, "--stream", "--revision", revision,
				"--uri", "event://github/acme", "--uri", buildURI, "--count", "3", "--for", "25s", "--log-format", "text")
			l.err.Await(t, "stream open", 1)
			publishOne(t, e.URL, buildURI, "before", build)
			l.out.Await(t, "before", 1)
			servertest.End(t, e)
			e = serve(t, again)
			publishOne(t, e.URL, "event://github/acme/site/pull_request", "between", pull)
			l.out.Await(t, "between", 1)
			publishOne(t, e.URL, buildURI, "after", build)
			expect.MustEqual(t, "the exit code with the output "+l.err.String(), l.wait(), exitDone)
			var ids []string
			for _, r := range l.lines() {
				ids = append(ids, r.ID)
				if r.Via != "stream" || r.Cursor == "" || r.Time == "" || r.URI == "" || len(r.Data) == 0 {
					t.Errorf("printed %+v, want a time, a URI, data and a cursor, by stream", r)
				}
			}
			expect.List(t, "the events", ids, []string{"before", "between", "after"})
		})
	}
}

// TestListenNeedsNoPublicURL tests that listen works with a server that refuses webhooks to this machine.
func TestListenNeedsNoPublicURL(t *testing.T) {
	t.Parallel()
	strict := serve(t, func(s *standalone.Options) { s.Limits.AllowInsecureTargets = false })
	for _, tt := range []struct {
		name string
		args []string
		via  string
	}{
		{"a_uri", []string{"--uri", buildURI}, "stream"},
		{"a_uri_in_a_session", []string{"--uri", buildURI, "--revision", "2025-11-25"}, "stream"},
		{"a_name", []string{"--name", "ci.build_finished"}, "push"},
		{"a_name_without_streams", []string{"--name", "ci.build_finished", "--revision", "2025-11-25"}, "poll"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := start(t, append([]string{"listen", "--server", strict.URL, "--count", "1"}, tt.args...)...)
			l.follows(strict.URL, tt.via, "the server refused a webhook to this machine: ")
		})
	}
}

// TestListenFollowsAServerElsewhere tests that listen does not ask for webhooks to 127.0.0.1 if the server is not on this machine.
func TestListenFollowsAServerElsewhere(t *testing.T) {
	e := serve(t, func(s *standalone.Options) { s.Limits.AllowedHosts = []string{"events.example.com"} })
	old := http.DefaultTransport
	defer func() { http.DefaultTransport = old }()
	moved := old.(*http.Transport).Clone() // has the name of the server resolved to its address
	moved.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, strings.TrimPrefix(e.URL, "http://"))
	}
	defer moved.CloseIdleConnections()
	http.DefaultTransport = moved
	l := start(t, "listen", "--server", "http://events.example.com", "--count", "1", "--name", "ci.build_finished")
	l.follows(e.URL, "push", "the server runs on another machine and cannot reach this one (to receive webhooks, give the URL of a tunnel as --target)")
	expect.Len(t, "the registered webhooks", subscriptions(t, e.URL), 0)
}

// follows publishes an event when the command follows without webhooks, and checks how the event arrives.
func (b *background) follows(server, via, reason string) {
	b.t.Helper()
	b.err.Await(b.t, "following without webhooks", 1)
	publishOne(b.t, server, buildURI, "", build)
	if code := b.wait(); code != exitDone {
		b.t.Fatalf("exit code %d: %s", code, &b.err)
	}
	if got := b.lines(); len(got) != 1 || got[0].Via != via {
		b.t.Errorf("got %+v, want an event via %s", got, via)
	}
	expect.Contains(b.t, "the log", b.err.String(), reason)
}

func freeAddr(t *testing.T) string {
	t.Helper()
	l := expect.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestListenExplainsErrors(t *testing.T) {
	t.Parallel()
	e := serve(t, nil)
	strict := serve(t, func(s *standalone.Options) { s.Limits.AllowInsecureTargets = false })
	const noServer = "http://127.0.0.1:9" // discard
	tests := []struct {
		name    string
		args    []string
		code    int
		message string
	}{
		{"an_unknown_uri", []string{"--server", e.URL, "--uri", "event://no/such"}, exitRefused, "event://no/such"},
		{"an_unknown_uri_of_a_stream", []string{"--server", e.URL, "--stream", "--uri", "event://no/such"}, exitRefused, "does not know event://no/such"},
		{"an_unknown_event_type", []string{"--server", e.URL, "--via", "events", "--name", "no.such"}, exitRefused, "no.such"},
		{"a_private_target", []string{"--server", strict.URL, "--via", "register", "--uri", buildURI}, exitRefused, "https"},
		{"an_endpoint_that_fails_the_challenge", []string{
			"--server", e.URL, "--via", "events", "--name", "ci.build_finished", "--target", noServer,
		}, exitRefused, "CallbackEndpointError"},
		{"an_anonymous_subscriber", []string{"--server", strict.URL, "--via", "events", "--name", "ci.build_finished"}, exitDenied, "authenticated"},
		{"a_missing_server", []string{"--server", noServer, "--uri", buildURI, "--for", "200ms"}, exitUnavailable, "call the server"},
		{"a_server_that_has_not_started_yet", []string{"--server", noServer, "--uri", buildURI, "--for", "200ms", "--log-format", "text"}, exitUnavailable, `msg="request failed, retrying" try=2 of=5`},
		{"too_few_events", []string{"--server", e.URL, "--uri", buildURI, "--count", "1", "--for", "300ms"}, exitUnavailable, "1 of 1 events did not arrive"},
		{"a_bad_cursor", []string{"--server", e.URL, "--stream", "--uri", buildURI, "--cursor", "nonsense"}, exitRefused, "cursor"},
		{"nothing_to_listen_to", nil, exitUsage, "--name or --uri is missing"},
		{"a_target_that_is_not_https", []string{"--server", strict.URL, "--listen", "localhost:0", "--uri", buildURI}, exitRefused, "--allow-insecure-targets"},
		{"a_name_and_a_uri", []string{"--name", "x", "--uri", buildURI}, exitUsage, "--uri and --name cannot be combined"},
		{"a_command_for_a_uri", []string{"--uri", buildURI, "--exec", "true"}, exitUsage, "--exec and --cursor-file need --name"},
		{"a_failed_file_without_a_command", []string{"--name", "x", "--failed-file", "f"}, exitUsage, "--failed-file needs --exec"},
		{"no_concurrency", []string{"--name", "x", "--exec", "true", "--concurrency", "0"}, exitUsage, "--concurrency, --tries and --timeout must be positive"},
		{"a_stream_of_a_name", []string{"--stream", "--name", "x"}, exitUsage, "--mode push --name x"},
		{"the_URL_of_events", []string{"--server", e.URL + "/events", "--uri", buildURI}, exitRefused, "this command needs the URL of /mcp: " + e.URL + "/mcp"},
		{"events_without_a_name", []string{"--via", "events"}, exitUsage, "--name"},
		{"a_stream_with_a_target", []string{"--stream", "--uri", buildURI, "--target", "https://x"}, exitUsage, "--target"},
		{"events_with_a_uri", []string{"--via", "events", "--name", "x", "--uri", buildURI}, exitUsage, "cannot be combined with --uri"},
		{"an_argument_that_is_no_JSON", []string{"--via", "events", "--name", "x", "--arg", "a=[1"}, exitRefused, "--arg a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := start(t, append([]string{"listen"}, tt.args...)...)
			if code := l.wait(); code != tt.code || !strings.Contains(l.err.String(), tt.message) {
				t.Errorf("got exit code %d and\n%s\nwant %d and a message with %q", code, &l.err, tt.code, tt.message)
			}
			expect.Equal(t, "the output", l.out.String(), "")
		})
	}
}

func TestCatalogCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := func(name, text string) string { return writeFile(t, filepath.Join(dir, name), text) }
	one := file("one.yaml", "events:\n  - {name: a.b, uri: event://a/b}\n")
	two := file("two.yaml", "events:\n  - {name: a.c, uri: event://a/c}\n")
	none := file("none-order.yaml", "events:\n  - {name: a.b, uri: event://a/b, order: none}\n")
	old := file("old.yaml", `events:
  - {name: a.gone, uri: event://a/gone}
  - {name: a.strict, uri: event://a/strict, payloadSchema: {type: object, properties: {x: {}}}}
  - {name: a.streams, uri: event://a/streams}
  - {name: a.locked, uri: event://a/locked}
  - {name: a.same, uri: event://a/same}
  - {name: a.push, uri: event://a/push, delivery: [push]}
`)
	next := file("next.yaml", `events:
  - {name: a.strict, uri: event://a/strict, payloadSchema: {type: object, required: [x], properties: {x: {}}}}
  - {name: a.streams, uri: event://a/streams, delivery: [push, poll]}
  - {name: a.locked, uri: event://a/locked, access: {scopes: [keys]}}
  - {name: a.same, uri: event://a/same, title: The same}
`)
	bad := file("bad.yaml", "events:\n  - {name: a.b, uri: event://a/b, nonsense: 1}\n  - {name: a.b, uri: event://a/d}\n")
	tests := []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"the_sample", []string{"../../catalog.yaml"}, exitDone, []string{"github.pull_request", "event://github/{owner}/{repo}/pull_request", "8 event types"}},
		{"EVX-17_a_change", []string{two, "--against", one}, exitDone, []string{"a.c: is new", "! a.b: is removed"}},
		{"order_given_up", []string{none}, exitDone, []string{"a.b is unordered: events of one URI may overtake each other"}},
		{"order_given_up_since", []string{none, "--against", one}, exitDone, []string{"! a.b: its order changes from uri to none"}},
		{"subscriptions_that_end", []string{next, "--against", old}, exitDone, []string{
			"Webhook subscriptions to a.gone would end: it is removed.\n",
			"Webhook subscriptions to a.strict would end: its payloadSchema changes incompatibly.\n",
			"Webhook subscriptions to a.streams would end: it is not delivered by webhook any more.\n",
			"Webhook subscriptions to a.locked would end: its access needs more, which not every subscriber may have.\n",
		}},
		{"no_change", []string{one, "--against", one}, exitDone, []string{"No relevant changes"}},
		{"faults_with_their_lines", []string{bad}, exitRefused, []string{"bad.yaml:2:", "nonsense", "bad.yaml:3:"}},
		{"a_missing_file", []string{dir + "/none.yaml"}, exitRefused, []string{"none.yaml: give its path"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, out, errs := command(t, "", append([]string{"catalog", "check"}, tt.args...)...)
			expect.Equal(t, "the exit code with the output "+errs, code, tt.code)
			if n := strings.Count(out, "Webhook subscriptions to"); tt.name == "subscriptions_that_end" && n != len(tt.says) {
				t.Errorf("the subscriptions to %d event types would end, want %d", n, len(tt.says))
			}
			expect.Contains(t, "the output", out+errs, tt.says...)
		})
	}
}

package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestCatalogCheckFindsMisspelledMembersOfThePayload(t *testing.T) {
	check := func(name, text string) string {
		return succeeds(t, "catalog check "+writeFile(t, filepath.Join(t.TempDir(), name), text), "is valid")
	}
	const declared = "events:\n  - name: a.b\n    uri: event://a/b\n    payloadSchema: {type: object, properties: {text: {type: string}, to: {type: object, properties: {city: {type: string}}}}%s}\n" +
		"    filters: {town: %s}\n    redact: [%s]\n"
	out := check("wrong.yaml", fmt.Sprintf(declared, "", "/to/town", "/txt"))
	expect.Contains(t, "the output", out, "a.b: payloadSchema does not declare /to/town, ", "a.b: payloadSchema does not declare /txt, ")
	const lists = "events:\n  - name: a.b\n    uri: event://a/b\n    payloadSchema: {type: object, properties: {users: {type: [array, 'null'], items: {type: object, properties: {mail: {type: string}}}}, text: {type: string}}}\n" +
		"    filters: {mail: %s}\n    redact: [%s]\n"
	out = check("lists.yaml", fmt.Sprintf(lists, "/users/mail", "/users/*/mail, /text/size, /users/0/name"))
	expect.Contains(t, "the output for lists", out, "declare /users/mail, ", "declare /users/*/mail, ", "declare /text/size, ", "declare /users/0/name, ")
	for name, text := range map[string]string{
		"right.yaml": fmt.Sprintf(declared, "", "/to/city", "/text"),
		"items.yaml": fmt.Sprintf(lists, "/users/0/mail", "/users, /users/0"),
		"open.yaml":  fmt.Sprintf(declared, ", allOf: [{properties: {txt: {type: string}}}]", "/text/0", "/txt"),
		"none.yaml":  "events:\n  - name: a.b\n    uri: event://a/b\n    redact: [/text]\n",
	} {
		expect.Lacks(t, "the output for "+name, check(name, text), "does not declare")
	}
	expect.Lacks(t, "the output for the sample catalog", succeeds(t, "catalog check ../../catalog.yaml"), "does not declare")
}

func TestCatalogInit(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "catalog.yaml")
	t.Run("SRC-06 it writes a valid catalog", func(t *testing.T) {
		succeeds(t, "catalog init --from github,stripe --dir "+dir, "mcpevents serve --catalog "+file)
		succeeds(t, "catalog check "+file, "is valid and has 8 event types")
	})
	t.Run("SRC-06 it writes a configuration that turns GitHub's webhooks into events", func(t *testing.T) {
		body := expect.Value(os.ReadFile("../../shared/events/source/ready/testdata/github/pull_request.opened.json"))(t)
		request := "X-GitHub-Event: pull_request\nX-GitHub-Delivery: d-1\n\n" + string(body)
		code, out, errs := command(t, request, "source", "check", "--config", filepath.Join(dir, "config.yaml"), "--catalog", file, "--source", "github", "--request", "-")
		if code != exitDone || !strings.Contains(out, `"uri":"event://github/Codertocat/Hello-World/pull_request","id":"d-1"`) {
			t.Errorf("exit code %d: %.300s%s", code, out, errs)
		}
	})
	t.Run("SRC-06 it overwrites files only with --force", func(t *testing.T) {
		fails(t, "catalog init --from slack --dir "+dir, exitRefused, file, "--force")
		succeeds(t, "catalog init --from slack --force --dir "+dir)
		expect.Lacks(t, "the catalog", succeeds(t, "catalog check "+file, "slack.message"), "github.")
	})
	t.Run("SRC-06 it lists the known providers", func(t *testing.T) {
		succeeds(t, "catalog init --list", "pagerduty", "github.pull_request, github.issues")
	})
	t.Run("SRC-06 it refuses an unknown or missing provider", func(t *testing.T) {
		fails(t, "catalog init --from gitea --dir "+t.TempDir(), exitRefused, `"gitea"`)
		fails(t, "catalog init", exitUsage, "--from")
	})
}

func TestCatalogCheckWithConfig(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string { return writeFile(t, filepath.Join(dir, name), text) }
	catalog := file("catalog.yaml", "events:\n  - {name: a.b, uri: event://a/b}\n")
	for name, tt := range map[string]struct{ config, want string }{
		"it is good":                     {"sources: [{name: x, from: sns, events: [{name: a.b}]}]", ""},
		"of another workspace":           {"sources: [{name: x, from: sns, workspace: other, events: [{name: a.c}]}]", ""},
		"a mistake in it":                {"sources:\n- {name: x, from: sns, events: [{name: a.b, data: $.Message}]}", "config.yaml:2: source x: events: data: "},
		"CNV-07 events of conversations": {"conversation: {userMessages: true, events: {userMessage: true}}", "declares no event type with the URI event://conversation/user-message"},
		"CNV-07 conversations elsewhere": {"conversation: {userMessages: true, events: {userMessage: true, workspace: other}}", ""},
		"an event type that is missing":  {"sources:\n- name: x\n  from: sns\n  events: [{name: a.c}]", "config.yaml: line 4: source x: a.c is not an event type"},
	} {
		t.Run("SRC-01 "+name, func(t *testing.T) {
			code, out, errs := command(t, "", "catalog", "check", catalog, "--config", file("config.yaml", tt.config))
			if (code == exitDone) != (tt.want == "") || strings.Contains(out, "config.yaml is valid and fits the catalog.") != (tt.want == "") || !strings.Contains(errs, tt.want) {
				t.Errorf("exit code %d: %s", code, errs)
			}
		})
	}
}

// SSE-06: --workspace-catalog is read strictly, like --catalog.
func TestWorkspaceCatalogs(t *testing.T) {
	dir := t.TempDir()
	good := writeFile(t, filepath.Join(dir, "good.yaml"), "events:\n  - {name: a.b, uri: event://a/b}\n")
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
	}{
		"a good one":       {map[string]string{"blue": good}, ""},
		"an invalid name":  {map[string]string{"b/lue": good}, "b/lue"},
		"a missing file":   {map[string]string{"blue": filepath.Join(dir, "none.yaml")}, "none.yaml"},
		"a faulty catalog": {map[string]string{"blue": writeFile(t, filepath.Join(dir, "bad.yaml"), "events:\n  - {name: a.b}\n")}, "bad.yaml:2"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readCatalogs(tc.files)
			if tc.want == "" {
				if err != nil || got["blue"].ByName("a.b") == nil {
					t.Errorf("got %v, %v", got, err)
				}
				return
			}
			expect.Fault(t, "the catalogs", err, fault.Invalid, tc.want)
		})
	}
}

// One more required member ends the webhook subscriptions to an event type. A reload and a start refuse the change until
// --allow-breaking confirms it.
func TestACatalogThatEndsSubscriptionsIsRefused(t *testing.T) {
	var settings standalone.Options
	log := new(expect.Buffer)
	e := serve(t, func(s *standalone.Options) {
		s.Log = (&Globals{LogLevel: "info", LogFormat: "json"}).logger(log)
		settings = *s
	})
	before := settings.Catalog
	with := func(old, next string) []byte {
		t.Helper()
		changed := bytes.Replace(before, []byte(old), []byte(next), 1)
		if bytes.Equal(changed, before) {
			t.Fatalf("the catalog has no %q", old)
		}
		return changed
	}
	breaking := with("required: [build, status]", "required: [build, status, branch]")
	use := func(src []byte) error {
		settings.Catalog = src
		return e.Reload(t.Context(), settings)
	}
	expect.OK(t, use(breaking), "without subscriptions")
	expect.OK(t, use(before))
	registerHook(t, e)
	const want = "1 live webhook subscriptions: 1 in workspace default because ci.build_finished changed incompatibly (the payload schema changes at /required (branch)); to allow this, pass --allow-breaking"
	expect.Fault(t, "the reload", use(breaking), fault.Invalid, want)
	expect.OK(t, use(with("description: A build", "description: Any build")), "a change that ends no subscription")
	log.Await(t, `"msg":"catalog reloaded","workspace":"*"`, 1)
	expect.Equal(t, "the logged reloads in "+log.String(), strings.Count(log.String(), `"msg":"files reloaded","catalog_changed":true`), 3)
	servertest.End(t, e)
	settings.Catalog = breaking
	refused, err := standalone.New(t.Context(), settings)
	if err == nil {
		servertest.End(t, refused)
		t.Fatal("the server started, want an error")
	}
	expect.Contains(t, "the error", err.Error(), want)
	settings.Catalog = before
	again := expect.Value(standalone.New(t.Context(), settings))(t)
	defer servertest.End(t, again)
	settings.Catalog, settings.AllowBreaking = breaking, true
	expect.OK(t, again.Reload(t.Context(), settings))
	log.Await(t, "ci.build_finished changed incompatibly", 1)
}

// registerHook registers a webhook of SEP-1803 at a server.
func registerHook(t *testing.T, e *standalone.Server) {
	t.Helper()
	c, err := client.Connect(t.Context(), e.URL, client.Options{Revision: string(spec.V20260728)})
	if err == nil {
		err = c.Call(t.Context(), spec.MethodRegister, map[string]any{
			"uris": []string{"event://ci/build-finished"}, "targetUri": "http://127.0.0.1:9/hook",
		}, nil)
	}
	expect.OK(t, err)
}

package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
	sender "github.com/mcp-events/mcpevents/test/provider"
)

const (
	sourceKey  = "the-secret-path-of-the-builds-0123456789"
	sourceFile = `sources:
  - name: builds
    verify: {scheme: none, secrets: ["env:MCPEVENTS_TEST_BUILDS"]}
    events: [{match: {body: {kind: [build]}}, name: ci.build_finished, id: /body/id, data: {build: /body/n, status: /body/state}}]
`
)

// OPS-10, SRC-04: operators list the outcomes of requests, and try a saved request.
func TestSourceCommands(t *testing.T) {
	t.Setenv("MCPEVENTS_TEST_BUILDS", sourceKey)
	callers := map[string]servertest.Caller{"op": {Workspace: "default", Scopes: "events:operate"}}
	options := servertest.Options(t, callers)
	options.Config = servertest.Config(t, callers, sourceFile)
	o := &operated{T: t, Server: servertest.Start(t, options)}
	t.Setenv("MCPEVENTS_SERVER", o.URL)
	t.Setenv("MCPEVENTS_KEY", "op")
	const good = `{"kind":"build","id":"b-1","n":1,"state":"passed"}`
	for _, body := range []string{good, `{"kind":"build","id":"b-2","n":"two","state":"passed"}`, `{"kind":"other"}`} {
		resp := expect.Value(http.Post(o.URL+"/sources/builds/"+sourceKey, "application/json", strings.NewReader(body)))(t)
		_ = resp.Body.Close()
	}
	expect.Eventually(o, "the outcomes", func() bool { return len(o.items("sources", "outcomes", "builds")) == 3 })
	saved := writeFile(t, filepath.Join(t.TempDir(), "saved.txt"), "POST /sources/builds/another HTTP/1.1\nContent-Type: application/json\n\n"+good)
	for line, want := range map[string]string{
		"sources":             `(?m)^NAME +FROM +PATH +VERIFY +EVENTS +RECENT +LAST +OUTCOME +REASON\nbuilds +http +/sources/builds/\{key\} +none +ci\.build_finished +\{"accepted":1,"unfit":1,"unmatched":1\} +20.* unmatched *$`,
		"sources show builds": `(?m)^ +id: /body/id$`,
		"sources outcomes builds --kind accepted":      `(?m)^TIME +KIND +NAME +ID +OMITTED +REASON +URI\n20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +accepted +ci\.build_finished +b-1 +event://ci/build-finished *$`,
		"sources outcomes builds --kind refused":       `unfit +ci\.build_finished +b-2 `,
		"sources outcomes builds --until 1h":           `^TIME [A-Z ]+\n$`,
		"sources try builds --request " + saved:        `(?m)^  - kind: unverified\n    signature: 'not verified: .*\n    mapping: 1$`,
		"sources try builds --json --request " + saved: `"uri":"event://ci/build-finished"`,
	} {
		t.Run("OPS-10 "+strings.ReplaceAll(line, saved, "FILE"), func(t *testing.T) {
			if out := o.says(strings.Fields(line)...); !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("%s: got\n%s\nwant %s", line, out, want)
			}
		})
	}
	t.Run("OPS-10 refusals", func(t *testing.T) {
		for line, want := range map[string]string{
			"sources show nothing":                            "no such source",
			"sources outcomes builds --kind fine":             "allowed: accepted, duplicate",
			"sources try builds --request " + saved + ".none": "no such file",
		} {
			fails(t, line, exitRefused, want)
		}
	})
	var list struct{ Kept string }
	if out := o.says("sources", "outcomes", "builds", "--json"); json.Unmarshal([]byte(out), &list) != nil || list.Kept != "all" {
		t.Errorf("OPS-10 prints %s", out)
	}
}

const checkedSources = `sources:
  - name: github
    verify: {scheme: github, secrets: ["env:E2E_GITHUB"]}
    events:
      - match: {headers: {x-github-event: [pull_request]}, body: {action: [opened, closed, reopened]}}
        name: github.pull_request
        variables: {owner: /body/repository/owner/login, repo: /body/repository/name}
        id: /headers/x-github-delivery
        data: {action: /body/action, number: /body/number, pull_request: {title: /body/pull_request/title, author: /body/pull_request/user/login}}
  - name: uploads
    from: s3
    events: [{match: {eventName: [{prefix: "ObjectCreated:"}]}, name: storage.object_created, variables: {bucket: /s3/bucket/name}, data: {key: /s3/object/key, size: /s3/object/size}}]
`

// TestSourceCheck checks saved requests.
func TestSourceCheck(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string) string { return writeFile(t, filepath.Join(dir, name), text) }
	config, scheme := file("config.yaml", checkedSources), sender.Schemes()[0]
	t.Setenv(scheme.Env, scheme.Secret)
	saved := func(action, line, end string) string {
		body := `{"action":"` + action + `","number":7,"pull_request":{"title":"Change <it>","user":{"login":"octocat"}},"repository":{"name":"site","owner":{"login":"acme"}}}`
		for name, values := range scheme.Headers("d-1", []byte(body), time.Now()) {
			line += name + ": " + values[0] + end
		}
		return line + end + body
	}
	type trial struct {
		Kind, Signature, Name, URI, ID string
		Mapping                        int
		Data, Document                 json.RawMessage
	}
	check := func(t *testing.T, source, request string) (code int, trials []trial, errs string) {
		t.Helper()
		code, out, errs := command(t, "", "source", "check", "--config", config, "--catalog", "../../catalog.yaml", "--source", source, "--request", file("request", request))
		for line := range strings.Lines(out) {
			var x trial
			expect.OK(t, json.Unmarshal([]byte(line), &x))
			trials = append(trials, x)
		}
		return code, trials, errs
	}
	for name, request := range map[string]string{
		"with a request line": saved("opened", "POST /sources/github HTTP/1.1\r\n", "\r\n"), "without one": saved("opened", "", "\n"),
	} {
		t.Run("SRC-01 a saved request "+name, func(t *testing.T) {
			code, got, errs := check(t, "github", request)
			if code != exitDone || len(got) != 1 || errs != "" {
				t.Fatalf("exit code %d, %+v, %s", code, got, errs)
			}
			document := string(got[0].Document)
			got[0].Document = nil
			want := trial{
				Kind: "accepted", Signature: "verified", Mapping: 1, Name: "github.pull_request", ID: "d-1", URI: "event://github/acme/site/pull_request",
				Data: json.RawMessage(`{"action":"opened","number":7,"pull_request":{"author":"octocat","title":"Change <it>"}}`),
			}
			expect.Equal(t, "the outcome", fmt.Sprintf("%+v", got[0]), fmt.Sprintf("%+v", want))
			expect.Contains(t, "the document", document, `"x-github-event":"pull_request"`)
			expect.Lacks(t, "the headers without the signature", strings.ToLower(document), "x-hub-signature")
		})
	}
	record := `{"eventSource":"aws:s3","eventName":"ObjectCreated:Put","s3":{"bucket":{"name":"b"},"object":{"key":"k","size":1}}}`
	for name, tt := range map[string]struct {
		source, request string
		code            int
		kinds, says     string
	}{
		"SRC-03 an unmatched request":                        {"github", saved("labeled", "", "\n"), exitRefused, "unmatched", "no event would be published"},
		"SRC-02 an unsigned request":                         {"github", strings.Replace(saved("opened", "", "\n"), "sha256=", "sha256=0", 1), exitRefused, "unverified", "not verified"},
		"SRC-01 input that is not a request":                 {"github", "nothing", exitRefused, "", "not an HTTP request"},
		"SRC-01 an unknown source":                           {"hub", "", exitRefused, "", `there is no source "hub" (there are: github, uploads)`},
		"SRC-01 a bus message prints a line for each record": {"uploads", "\n{\"Records\":[" + record + "," + strings.Replace(record, "Created", "Removed", 1) + "]}\n", exitDone, "accepted unmatched", ""},
	} {
		t.Run(name, func(t *testing.T) {
			code, got, errs := check(t, tt.source, tt.request)
			var kinds []string
			for _, x := range got {
				kinds = append(kinds, x.Kind)
			}
			if code != tt.code || strings.Join(kinds, " ") != tt.kinds || !strings.Contains(errs, tt.says) {
				t.Errorf("exit code %d, %+v, %s, want %d, %q and %q", code, got, errs, tt.code, tt.kinds, tt.says)
			}
		})
	}
	t.Run("SRC-01 a fault of the configuration names the file", func(t *testing.T) {
		other := file("catalog.yaml", "events:\n  - {name: ci, uri: \"event://ci\"}\n")
		fails(t, "source check --config "+config+" --catalog "+other+" --source github --request "+config, exitRefused, config+": line 5: source github")
	})
	t.Run("SRC-01 missing flags are refused", func(t *testing.T) {
		fails(t, "source check", exitUsage)
	})
}

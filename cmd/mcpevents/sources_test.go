package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
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
		resp, err := http.Post(o.URL+"/sources/builds/"+sourceKey, "application/json", strings.NewReader(body))
		expect.OK(t, err)
		_ = resp.Body.Close()
	}
	o.eventually("the outcomes", func() bool { return len(o.items("sources", "outcomes", "builds")) == 3 })
	saved := filepath.Join(t.TempDir(), "saved.txt")
	expect.OK(t, os.WriteFile(saved, []byte("Content-Type: application/json\n\n"+good), 0o600))
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
			if code, out, errs := command(t, "", strings.Fields(line)...); code == exitDone || !strings.Contains(errs, want) {
				t.Errorf("%s: exit code %d, %s%s", line, code, out, errs)
			}
		}
	})
	var list struct{ Kept string }
	if out := o.says("sources", "outcomes", "builds", "--json"); json.Unmarshal([]byte(out), &list) != nil || list.Kept != "all" {
		t.Errorf("OPS-10 prints %s", out)
	}
}

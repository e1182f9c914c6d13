package admin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

const (
	buildKey = "a-secret-path-of-the-builds-0123456789"
	sourced  = `sources:
  - name: builds
    verify: {scheme: none, secrets: ["env:MCPEVENTS_TEST_BUILDS"]}
    events:
      - match: {body: {kind: [build]}}
        name: ci.build_finished
        id: /body/id
        data: {build: /body/n, status: /body/state}
  - {name: alarms, from: eventbridge, events: [{match: {detail-type: [Build]}, name: ci.build_finished, data: /detail}]}
  - {name: theirs, workspace: other, from: sns, events: [{name: ci.build_finished}]}
`
)

// startSources starts a server with sources, and returns a function that sends requests to the source builds.
func startSources(t *testing.T, keep string) (f *fixture, send func(body string) int) {
	t.Setenv("MCPEVENTS_TEST_BUILDS", buildKey)
	f = start(t, func(o *standalone.Options) {
		o.Config, o.Limits.DeliveryLog = servertest.Config(t, callers, sourced), keep
	})
	return f, func(body string) int {
		t.Helper()
		resp := expect.Value(http.Post(f.s.URL+"/sources/builds/"+buildKey, "application/json", strings.NewReader(body)))(t)
		_ = resp.Body.Close()
		return resp.StatusCode
	}
}

const goodBuild = `{"kind":"build","id":"b-1","n":1,"state":"passed"}`

func TestSources(t *testing.T) {
	f, send := startSources(t, "all")
	for body, status := range map[string]int{
		goodBuild: 202, `{"kind":"other"}`: 202, `{"kind":"build","id":"b-2","n":"many","state":"passed"}`: 422, `{"kind":`: 400,
	} {
		expect.Equal(t, body, send(body), status)
	}
	expect.Equal(t, "the status of a second request", send(goodBuild), 202)
	resp := expect.Value(http.Post(f.s.URL+"/sources/builds/a-wrong-key", "application/json", strings.NewReader(goodBuild)))(t)
	expect.MustEqual(t, "the status code", resp.StatusCode, 401)
	_ = resp.Body.Close()
	const outcomes = "sources/builds/outcomes"
	expect.Eventually(f, "all outcomes are there", func() bool { return len(f.list("op", outcomes).Items) == 6 })

	t.Run("SRC-01 the sources of the workspace, each with what it is for and what became of the newest requests", func(t *testing.T) {
		all := f.list("op", "sources")
		expect.MustEqual(t, "the names", ids(all, "name"), "alarms builds")
		builds := all.Items[1]
		recent := builds["recent"].(object)["outcomes"]
		expect.Equal(t, "the counts", fmt.Sprint(recent), "map[accepted:1 duplicate:1 invalid:1 unfit:1 unmatched:1 unverified:1]")
		if builds["from"] != "http" || builds["verify"] != "none" || builds["path"] != "/sources/builds/{key}" || builds["last"].(object)["kind"] != "unverified" {
			t.Errorf("got %v, want an unverified last outcome at /sources/builds/{key}", builds)
		}
		mapping, _ := json.Marshal(builds["events"])
		expect.Equal(t, "the mapping", string(mapping), `[{"data":{"build":"/body/n","status":"/body/state"},"id":"/body/id","match":{"body":{"kind":["build"]}},"name":"ci.build_finished"}]`)
		if alarms := all.Items[0]; alarms["from"] != "eventbridge" || alarms["path"] != nil || alarms["verify"] != nil || alarms["last"] != nil {
			t.Errorf("got %v, want a source of eventbridge without outcomes", alarms)
		}
		var one object
		f.call("op", "GET", "sources/builds", "", 200, &one)
		expect.Equal(t, "the events", fmt.Sprint(one["events"]), fmt.Sprint(builds["events"]))
		if raw := f.call("op", "GET", "sources", "", 200, nil); strings.Contains(string(raw), "MCPEVENTS_TEST") || strings.Contains(string(raw), buildKey) {
			t.Errorf("got %s, want no key and no name of a variable", raw)
		}
	})
	t.Run("SRC-04 OPS-04 each outcome has its reason and no payload", func(t *testing.T) {
		for kind, want := range map[string]object{
			"accepted":   {"id": "b-1", "uri": built, "name": "ci.build_finished"},
			"duplicate":  {"id": "b-1"},
			"unmatched":  {},
			"unverified": {"reason": ""},
			"invalid":    {"reason": ""},
			"unfit":      {"id": "b-2", "uri": built, "reason": ""},
		} {
			l := f.list("op", outcomes+"?kind="+kind)
			if len(l.Items) != 1 || l.Items[0]["kind"] != kind || l.Kept != "all" {
				t.Errorf("%s: got %+v", kind, l)
				continue
			}
			for name, value := range want {
				if got := l.Items[0][name]; got != value && (value != "" || got == nil) {
					t.Errorf("%s: %s is %v, want %v", kind, name, got, value)
				}
			}
			if text := fmt.Sprint(l.Items[0]); strings.Contains(text, "passed") || strings.Contains(text, "many") || strings.Contains(text, buildKey) {
				t.Errorf("%s: got %s", kind, text)
			}
		}
		if got := ids(f.list("op", outcomes+"?kind=refused"), "kind"); len(strings.Fields(got)) != 3 || strings.Contains(got, "unmatched") {
			t.Errorf("refused: got %s", got)
		}
		f.sees("op", outcomes+"?until=2020-01-01T00:00:00Z", 0)
		f.sees("op", outcomes+"?since="+time.Now().Add(-time.Minute).UTC().Format(time.RFC3339), 6)
	})
	t.Run("OPS-01 both lists are paged", func(t *testing.T) {
		expect.Len(t, "the sources", f.pages("op", "sources", 1).Items, 2)
		expect.Len(t, "the outcomes", f.pages("op", outcomes, 2).Items, 6)
		expect.Len(t, "the refusals", f.pages("op", outcomes+"?kind=refused", 2).Items, 3)
	})
	t.Run("OPS-01 OPS-09 what is refused", func(t *testing.T) {
		for _, x := range []struct {
			who, method, path, body string
			status                  int
		}{
			{"alice", "GET", "sources", "", 403},
			{"alice", "GET", outcomes, "", 403},
			{"alice", "POST", "sources/builds/try", `{"request":"\n\n{}"}`, 403},
			{"reader", "GET", "sources/builds", "", 403},
			{"op", "GET", "sources/theirs/outcomes", "", 404},
			{"op", "GET", "sources/theirs", "", 404},
			{"foreign", "GET", outcomes, "", 404},
			{"foreign", "POST", "sources/builds/try", `{"request":"\n\n{}"}`, 404},
			{"op", "GET", outcomes + "?kind=fine", "", 400},
			{"op", "GET", "sources?name=builds", "", 400},
			{"op", "POST", "sources/builds/try", `{}`, 400},
			{"op", "POST", "sources/builds/try", `{"request":"no headers"}`, 400},
			{"op", "POST", "sources/alarms/try", `{"request":"{}"}`, 400},
			{"op", "POST", "sources/builds/try", `{"request":"` + strings.Repeat("x", 1<<20+1) + `"}`, 413},
			{"op", "POST", "sources/builds/try", `{"request":"` + strings.Repeat("x", 3<<20) + `"}`, 413},
		} {
			f.call(x.who, x.method, x.path, x.body, x.status, nil)
		}
		expect.Equal(t, "the sources", ids(f.list("foreign", "sources"), "name"), "theirs")
	})
	t.Run("OPS-04 what did not fit is a dead letter of the inbox", func(t *testing.T) {
		expect.Eventually(f, "it is in the list", func() bool { return len(f.list("op", "dead-letters?queue=inbox").Items) == 1 })
	})
}

// TestSourcesOfQuietLogs: SRC-04. What the delivery log does not keep is said.
func TestSourcesOfQuietLogs(t *testing.T) {
	for keep, kinds := range map[string]string{"failures": "unfit accepted", "none": ""} {
		t.Run("SRC-04 --delivery-log "+keep, func(t *testing.T) {
			f, send := startSources(t, keep)
			for i := range 3 {
				send(strings.Replace(goodBuild, "b-1", fmt.Sprint("b-", i), 1))
			}
			send(`{"kind":"build","id":"b-9"}`)
			if keep != "none" {
				expect.Eventually(f, "the last one is there", func() bool { return len(f.list("op", "sources/builds/outcomes?kind=unfit").Items) == 1 })
			}
			if l := f.list("op", "sources/builds/outcomes"); ids(l, "kind") != kinds || l.Kept != keep {
				t.Errorf("got %+v, want the kinds %q, and %s kept", l, kinds, keep)
			}
		})
	}
}

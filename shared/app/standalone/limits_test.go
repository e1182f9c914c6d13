package standalone

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
		c := expect.Value(config.ParseFile("config.yaml", []byte(text)))(t)
		o.Config, o.Auth = c, auth.ModeKeys
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
			if after := count(); after <= before {
				t.Errorf("the counter is %g after reaching the limit, want more than %g", after, before)
			}
		})
	}
	t.Run("OPS-15 the page of limits has their names", func(t *testing.T) {
		page := expect.Value(os.ReadFile("../../../docs/reference/limits.md"))(t)
		for name := range meet {
			if !strings.Contains(string(page), "`"+name+"`") {
				t.Errorf("the page does not mention %s", name)
			}
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
			if got := send("op", "GET", "/admin/v1/overview?principal="+who, ""); !strings.Contains(got, `"principal":"`+who+`","quotas":[`+want) {
				t.Errorf("%s: %s", who, got)
			}
		}
		for who, want := range map[string]string{"neighbour": `{"name":"workspaceSubscriptions","max":2,"used":2}]`, "op": `{"name":"workspaceSubscriptions","used":2}]`} {
			if got := send(who, "GET", "/admin/v1/overview", ""); !strings.Contains(got, want) {
				t.Errorf("%s: %s", who, got)
			}
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

func TestTheHeapMayGrowByTheReserveOrAQuarter(t *testing.T) {
	for live, want := range map[uint64]int{
		0: maxPercent, 1 << 20: maxPercent, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 128 << 20: 50, 4 << 30: 25,
	} {
		expect.Equal(t, fmt.Sprintf("the percent with %d MiB live", live>>20), gcPercent(live, 64<<20), want)
	}
	for _, tt := range []struct {
		allocated uint64
		since     time.Duration
		want      float64
	}{
		{1 << 20, time.Minute, minReserve},
		{40 << 20, 2 * time.Second, 40 << 20},
		{4 << 20, 250 * time.Millisecond, 32 << 20},
		{64 << 20, 100 * time.Millisecond, maxReserve},
		{1 << 20, 0, maxReserve},
	} {
		expect.Equal(t, fmt.Sprintf("the reserve after %d MiB in %v", tt.allocated>>20, tt.since), reserveFor(tt.allocated, tt.since), tt.want)
	}
}

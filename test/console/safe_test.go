package console_test

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/identity"
)

// TestKeyboard: OPS-11. Everything can be reached without a mouse, and the focus can be seen.
func TestKeyboard(t *testing.T) {
	w := start(t, nil)
	sub := w.subscribe("alice", "/ok", built)
	b := open(t, w.console())
	b.visit(w.console())
	b.until(`document.activeElement?.name === "key"`)
	b.press("op" + kb.Enter)
	b.until(`document.querySelector(".menu")`)
	b.settled()
	b.press(kb.Tab)
	b.until(`document.activeElement.className === "skip" && document.activeElement.getBoundingClientRect().top >= 0`)
	b.press(kb.Enter)
	b.until(`document.activeElement.id === "main"`)
	b.slash()
	b.until(`document.activeElement.id === "search"`)
	b.press(sub + kb.Enter)
	b.shows("Send a test event")
	names := ""
	for range 40 { // from the start to the first button of the page
		b.press(kb.Tab)
		b.until(`document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== "none"`)
		name := eval[string](b, `document.activeElement.innerText ?? ""`)
		if names += name + "\n"; name == "Pause" {
			break
		}
	}
	b.press(kb.Enter)
	b.until(`document.querySelector("dialog[open]") && document.activeElement.name === "reason"`)
	b.press(kb.Escape)
	b.until(`!document.querySelector("dialog[open]") && document.activeElement.innerText === "Pause"`)
	b.to("#/now")
	b.js(`document.querySelector("#search").focus()`)
	names = ""
	for range 12 {
		b.press(kb.Tab)
		names += eval[string](b, `document.activeElement.innerText`) + "\n"
	}
	for _, page := range []string{"Now", "Live tail", "Failing", "Event types", "Sources", "Subscriptions", "Deliveries", "Dead letters", "Switches", "Backends", "Audit"} {
		before, after, found := strings.Cut(names, page+"\n")
		if !found {
			t.Errorf("OPS-11 Tab does not come to %s in its order: %q %q", page, before, after)
		}
		names = after
	}
}

// TestExpiredKey: OPS-11. A key that is taken away leads to the sign-in, and from there to the same page.
func TestExpiredKey(t *testing.T) {
	var o standalone.Options
	w := start(t, func(given *standalone.Options) { o = *given })
	b := w.signIn(t, "#/subscriptions?state=active")
	o.Config = servertest.Config(t, callers("op2"), "")
	expect.OK(t, w.s.Reload(t.Context(), o))
	b.to("#/subscriptions?state=paused")
	b.shows("You were signed out")
	expect.Equal(t, "OPS-11 the stored values after the end of the session", eval[int](b, `sessionStorage.length + localStorage.length`), 0)
	b.signInFails("nobody", "The server does not know this key.")
	b.js(`document.querySelector("input[name=key]").value = ""`)
	b.signIn("op2")
	b.until(`location.hash === "#/subscriptions?state=paused" && document.querySelector("select").value === "paused"`)
	b.click("header button", "Sign out")
	b.until(`document.querySelector("input[name=key]") && sessionStorage.length === 0 && document.cookie === ""`)
}

// TestKeyThatABrowserCannotSend: OPS-11. A key with characters that no header can have is unknown, and not a sign of an outage.
func TestKeyThatABrowserCannotSend(t *testing.T) {
	w := start(t, nil)
	b := open(t, w.console())
	b.visit(w.console())
	b.js(`document.querySelector("input[name=key]").value = "0198…2c47"`)
	b.signInFails("", "The server does not know this key.")
}

// TestOwners: OPS-20. With events:subscribe, a person sees their own subscriptions, deliveries and dead letters, controls them, and sees
// nothing else. A key without either scope is refused.
func TestOwners(t *testing.T) {
	w := start(t, func(o *standalone.Options) {
		all := callers("op", "alice", "bob")
		all["reader"] = servertest.Caller{Workspace: "default", Scopes: "events:read"}
		o.Config = servertest.Config(t, all, "")
	})
	own, gone := w.subscribe("alice", "/ok", built), w.subscribe("alice", "/gone", incident)
	other := w.subscribe("bob", "/gone", built, incident)
	w.publish(built, "evt_1")
	w.publish(incident, "evt_2")
	w.listed("dead-letters", 3)
	b := open(t, w.console())
	b.visit(w.console() + "#/audit")
	b.until(`document.querySelector("input[name=key]")`)
	b.signInFails("reader", "This key needs the scope events:operate")
	b.js(`document.querySelector("input[name=key]").value = ""`)
	b.signIn("alice")
	b.shows(own)
	if text := b.text("body"); strings.Contains(text, other) || strings.Contains(text, "bob") {
		t.Errorf("OPS-20 alice sees bob's subscription: %s", text)
	}
	expect.Equal(t, "OPS-20 the menu", strings.Join(strings.Fields(b.text(".menu")), " "), "Subscriptions Deliveries Dead letters")
	b.shoot("owner-light")
	b.to("#/deliveries")
	b.shows("evt_1")
	b.to("#/deliveries/" + gone + "/evt_2")
	b.shows("Given up after 1 attempt: the endpoint answered 4xx.") // without the status, see SRF-05
	b.to("#/dead-letters")
	b.until(`document.querySelectorAll("tbody tr").length === 1`)
	w.mended.Store(true)
	b.js(`document.querySelector("tbody input").click()`)
	b.click("button", "Retry selected (1)")
	b.shows("No dead letters.")
	b.to("#/subscriptions/" + own)
	b.click("main button", "Pause")
	b.click("dialog[open] button", "Pause")
	b.until(`document.querySelector("h1 .badge").innerText === "paused"`)
	b.to("#/subscriptions/" + other)
	b.shows("there is no such subscription")
	for _, page := range []string{"#/audit", "#/switches", "#/events/evt_1", "#/now"} {
		b.to(page)
		b.until(`document.querySelector("h1").innerText.startsWith("Subscriptions")`)
	}
	signOut := func() {
		b.click("header button", "Sign out")
		b.until(`document.querySelector("input[name=key]") && sessionStorage.length === 0`)
	}
	signOut()
	b.signIn("op")
	b.to("#/deliveries")
	b.until(`document.querySelector("#types option")`) // all event types, which owners do not see
	signOut()
	b.signIn("alice")
	b.to("#/deliveries")
	b.shows("evt_1")
	if n := eval[int](b, `document.querySelectorAll("#types option").length`); n > 0 {
		t.Errorf("OPS-20 alice sees %d event types that the operator before her had read", n)
	}
}

func (b *browser) signInFails(key, why string) {
	b.Helper()
	b.focus("input[name=key]")
	b.press(key + kb.Enter)
	b.shows(why)
}

// TestHostileContents: OPS-11. Content from outside is shown as text: its scripts do not run, and it cannot break a page.
func TestHostileContents(t *testing.T) {
	w := start(t, withSources(t))
	evil := `"><img src=x onerror=alert(1)><script>alert(2)</script></td></table><style>*{display:none}</style>{{alert(3)}}${alert(4)}` +
		"\u202e" + strings.Repeat("w", 3000) + `<a href="javascript:alert(5)">`
	w.subscribe("alice", "/gone/"+strings.Repeat("x", 900)+"/%3Cscript%3Ealert(1)%3C/script%3E", incident)
	w.publishData(incident, "evt_evil", map[string]any{"title": evil[:900], "<img src=x onerror=alert(6)>": evil})
	w.listed("dead-letters", 1)
	sent, _ := json.Marshal(map[string]string{"kind": "build", "id": evil, "n": evil, "state": evil})
	w.send("builds", sourceKey, string(sent))
	w.listed("sources/builds/outcomes", 1)
	reason, _ := json.Marshal(map[string]string{"reason": evil[:500]})
	w.api("PUT", "switches/event/"+"ci.build_finished", string(reason), nil)
	b := open(t, w.console())
	b.do(chromedp.EmulateViewport(360, 740))
	b.visit(w.console())
	b.signIn("op")
	for _, at := range []string{
		"now", "subscriptions", "deliveries", "dead-letters", "switches", "audit", "events?name=incident.created", "events/evt_evil", "live",
		"events/%3Cimg%20src=x%20onerror=alert(7)%3E", "subscriptions?principal=%22%3E%3Cscript%3Ealert(8)%3C/script%3E", "deliveries/%3Cb%3E/evt_evil", "audit?cursor=%22%3E%3Cimg%3E",
		"sources", "sources/builds?kind=%22%3E%3Cimg%20src=x%3E", "sources/%3Cimg%20src=x%20onerror=alert(9)%3E", "dead-letters?queue=inbox", "sources/builds",
	} {
		b.to("#/" + at)
		b.fits(at)
		if n := eval[int](b, `document.querySelectorAll("main img, main script, main style, main [onerror]").length`); n != 0 {
			t.Errorf("OPS-11 %s: %d elements come from outside", at, n)
		}
	}
	for page, at := range map[string]string{"hostile-phone": "#/events/evt_evil", "source-hostile-phone": "#/sources/builds"} {
		b.to(at)
		b.shows("onerror=alert(1)")
		b.shoot(page)
	}
}

// TestManySubscriptions: OPS-11. The list of 100,000 subscriptions is paged, and as fast as a short one.
func TestManySubscriptions(t *testing.T) {
	const many = 100_000
	var o standalone.Options
	w := start(t, func(given *standalone.Options) { o = *given })
	sub := w.subscribe("alice", "/ok", built)
	expect.OK(t, w.s.Shutdown(t.Context()))
	multiply(t, filepath.Join(o.Data, "mcpevents.db"), sub, w.receiver.URL, many)
	w.s = servertest.Start(t, o)
	b := w.signIn(t, "")
	b.shows("1,000+")
	pages := func() time.Duration {
		begun := time.Now()
		b.to("#/subscriptions")
		b.until(`document.querySelectorAll("tbody tr").length === 50`)
		first := eval[string](b, `document.querySelector("tbody a").innerText`)
		b.click(".pager a", "Next page")
		b.until(fmt.Sprintf(`document.querySelectorAll("tbody tr").length === 50 && document.querySelector("tbody a").innerText > %q`, first))
		b.click(".pager button", "Back")
		b.until(fmt.Sprintf(`document.querySelector("tbody a").innerText === %q`, first))
		b.to("#/subscriptions?principal=alice&event=ci.build_finished&state=active")
		b.until(`document.querySelectorAll("tbody tr").length === 50`)
		return time.Since(begun)
	}
	took := pages()
	for range 2 { // one that a busy machine does not interrupt is enough
		if took > 5*time.Second {
			took = pages()
		}
	}
	expect.AtMost(t, "OPS-11 the time of four pages", took, 5*time.Second)
	t.Logf("four pages took %v", took)
}

// multiply writes copies of a subscription's items to a database that no server uses, under other ids.
func multiply(t *testing.T, path, sub, origin string, n int) {
	t.Helper()
	db, err := sqlite.Open(path, sqlite.Options{})
	expect.OK(t, err)
	var items []store.Item
	for _, partition := range []string{"o#default#alice", "i#default", "k#default#ci.build_finished", "t#default#" + origin} {
		page := expect.Value(db.Query(t.Context(), store.Query{Table: store.Subscriptions, Partition: partition}))(t)
		for _, it := range page.Items {
			if it.Sort == sub {
				items = append(items, it)
			}
		}
	}
	if len(items) < 3 {
		t.Fatalf("the subscription lies under %d keys", len(items))
	}
	for i := 0; i < n; {
		var ops []store.Op
		for range 1000 {
			other := fmt.Sprintf("sub_%032x", i)
			i++
			for _, it := range items {
				it.Sort, it.Value = other, []byte(strings.ReplaceAll(string(it.Value), sub, other))
				ops = append(ops, store.Put(it))
			}
		}
		expect.OK(t, db.WriteAll(t.Context(), ops...))
	}
	expect.OK(t, db.Close())
}

// TestAuthorizationServer: OPS-11. With --auth jwt people sign in at the authorization server, by a code and PKCE.
func TestAuthorizationServer(t *testing.T) {
	const audience = "https://events.example.com/mcp"
	provider := identity.Start(t, audience)
	w := start(t, func(o *standalone.Options) {
		o.Auth, o.Config = auth.ModeJWT, nil
		o.Limits.JWTIssuers, o.Limits.JWTAudience, o.Limits.ConsoleClientID = []string{provider.Issuer}, []string{audience}, "console"
	})
	b := open(t, w.console(), provider.Issuer)
	b.visit(w.console() + "#/switches")
	b.shows(provider.Issuer)
	b.click("button", "Sign in")
	b.shows("Nothing is paused.")
	if at := eval[string](b, `location.pathname + location.search + location.hash`); at != "/console/#/switches" {
		t.Errorf("OPS-11 the page after the sign-in is %s", at)
	}
	if left := eval[string](b, `Object.keys(sessionStorage).sort().join() + Object.keys(localStorage).join() + document.cookie`); left != "role,token" {
		t.Errorf("OPS-11 kept: %s", left)
	}
	asked := strings.Join(b.asks, "\n")
	expect.Contains(t, "OPS-11 the question", asked, "code_challenge_method=S256", "scope=events%3Aoperate")
	t.Run("OPS-11 an answer that this tab did not ask for is refused", func(t *testing.T) {
		b := open(t, w.console(), provider.Issuer)
		b.visit(w.console() + "?code=stolen&state=other")
		b.shows("did not start in this tab")
		expect.Equal(t, "OPS-11 the stored values", eval[int](b, `sessionStorage.length`), 0)
	})
}

// TestOwnerSignsInDuringAnOutage: OPS-20. If the server fails while a person signs in, the console does not know whether they are an
// operator, so it shows no menu until the server answers.
func TestOwnerSignsInDuringAnOutage(t *testing.T) {
	const audience = "https://events.example.com/mcp"
	provider := identity.Start(t, audience)
	w := start(t, func(o *standalone.Options) {
		o.Auth, o.Config = auth.ModeJWT, nil
		o.Limits.JWTIssuers, o.Limits.JWTAudience, o.Limits.ConsoleClientID = []string{provider.Issuer}, []string{audience}, "console"
		o.Limits.ConsoleScopes = []string{"events:subscribe"}
	})
	var down atomic.Bool
	down.Store(true)
	front := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if down.Load() && strings.HasPrefix(r.URL.Path, "/admin/") {
			rw.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.named(nil).ServeHTTP(rw, r)
	}))
	t.Cleanup(front.Close)
	b := open(t, front.URL, provider.Issuer)
	b.visit(front.URL + "/console/")
	b.shows(provider.Issuer)
	b.click("button", "Sign in")
	b.shows("The server answered 503.")
	expect.Equal(t, "OPS-20 the menu during the outage", strings.TrimSpace(b.text(".menu")), "")
	down.Store(false)
	b.click("button", "Try again")
	b.until(`document.querySelector("h1").innerText.startsWith("Subscriptions")`)
	expect.Equal(t, "OPS-20 the owner's menu", strings.Join(strings.Fields(b.text(".menu")), " "), "Subscriptions Deliveries Dead letters")
}

// TestHeaders: OPS-11. The policy forbids inline scripts and other hosts, and the served files are the embedded ones.
func TestHeaders(t *testing.T) {
	w := start(t, nil)
	for path, kind := range map[string]string{"": "text/html", "app.js": "text/javascript", "console.css": "text/css", "lib/lit-html.js": "text/javascript", "config.json": "application/json", "icon.svg": "image/svg"} {
		resp := expect.Value(http.Get(w.console() + path))(t)
		_ = resp.Body.Close()
		policy := resp.Header.Get("Content-Security-Policy")
		for _, part := range []string{"default-src 'none'", "script-src 'self';", "style-src 'self';", "connect-src 'self';", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"} {
			expect.Contains(t, "OPS-11 the policy of "+path, policy, part)
		}
		if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), kind) || resp.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("OPS-11 %s: %d %v", path, resp.StatusCode, resp.Header)
		}
	}
	for path, status := range map[string]int{"none.js": 404, "../server.go": 404, "static/app.js": 404} {
		resp := expect.Value(http.Get(w.console() + path))(t)
		_ = resp.Body.Close()
		expect.Equal(t, "OPS-11 "+path, resp.StatusCode, status)
	}
}

// TestOtherAddress: OPS-11. With --admin-addr the console is there, also for a person who opens only the address, and at the server's
// address it is not.
func TestOtherAddress(t *testing.T) {
	w := start(t, func(o *standalone.Options) { o.AdminAddr = "127.0.0.1:0" })
	for at, status := range map[string]int{
		w.s.AdminURL + "/console": 200, w.s.AdminURL + "/": 200, w.s.AdminURL + "/mcp": 404, w.s.URL + "/console/": 404, w.s.URL + "/": 404,
	} {
		resp := expect.Value(http.Get(at))(t)
		_ = resp.Body.Close()
		expect.Equal(t, "OPS-11 "+at, resp.StatusCode, status)
	}
}

// libraries are the files in static/lib, by npm package and version.
var libraries = map[string]map[string]string{
	"lit-html@3.3.3": {"lit-html.js": "lit-html.js", "LICENSE": "lit-html.LICENSE"},
	"uplot@1.6.32":   {"dist/uPlot.iife.min.js": "uPlot.iife.min.js", "dist/uPlot.min.css": "uPlot.min.css", "LICENSE": "uPlot.LICENSE"},
}

// TestLibraries: OPS-11. The libraries equal the published npm packages byte for byte.
func TestLibraries(t *testing.T) {
	dir, ours := t.TempDir(), filepath.Join("..", "..", "shared", "operate", "console", "static", "lib")
	known := 0
	for name, files := range libraries {
		cmd := exec.CommandContext(t.Context(), "npm", "pack", "--silent", name)
		cmd.Dir = dir
		out, err := cmd.Output()
		expect.OK(t, err, "npm pack", name)
		to := filepath.Join(dir, strings.ReplaceAll(name, "@", "-"))
		expect.OK(t, os.Mkdir(to, 0o755))
		if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, strings.TrimSpace(string(out))), "-C", to).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		for theirs, own := range files {
			known++
			want := expect.Value(os.ReadFile(filepath.Join(to, "package", theirs)))(t)
			if got, err := os.ReadFile(filepath.Join(ours, own)); err != nil || string(got) != string(want) {
				t.Errorf("OPS-11 %s is not %s of %s: %v", own, theirs, name, err)
			}
		}
	}
	there := 0
	if err := filepath.WalkDir(ours, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			there++
		}
		return err
	}); err != nil || there != known {
		t.Errorf("OPS-11 there are %d files, of which %d are known: %v", there, known, err)
	}
}

package console_test

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

const patience = harness.Patience

// chromium is one process for all tests of this package.
var chromium = sync.OnceValues(func() (context.Context, context.CancelFunc) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.CombinedOutput(io.Discard))
	allocator, _ := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(allocator)
	return ctx, cancel
})

var program string

func TestMain(m *testing.M) {
	code := m.Run()
	if program != "" {
		_, cancel := chromium()
		cancel() // waits for the browser's end
	}
	os.Exit(code)
}

// browser is a tab with a session of its own. It collects the errors of its pages.
type browser struct {
	*testing.T
	ctx     context.Context
	allowed []string // hosts

	mu   sync.Mutex
	bad  []string // errors
	asks []string // requested URLs
}

// open opens a tab. At the end of the test it fails if the page has reported an error or has contacted a host other than
// the hosts of the allowed URLs.
func open(t *testing.T, allowed ...string) *browser {
	t.Helper()
	program = harness.Chromium(t)
	parent, _ := chromium()
	expect.OK(t, chromedp.Do(parent, chromedp.Navigate("about:blank")))
	b := &browser{T: t}
	for _, a := range allowed {
		u := expect.Value(url.Parse(a))(t)
		b.allowed = append(b.allowed, u.Host)
	}
	ctx, cancel := chromedp.NewContext(parent, chromedp.WithNewBrowserContext(), chromedp.WithListener(b.observe))
	b.ctx = ctx
	b.start()
	t.Cleanup(func() {
		cancel()
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, bad := range b.bad {
			t.Errorf("OPS-11 the browser reports: %s", bad)
		}
		for _, asked := range b.asks {
			if u, err := url.Parse(asked); err != nil || u.Scheme != "data" && !slices.Contains(b.allowed, u.Host) {
				t.Errorf("OPS-11 a request to another host: %s", asked)
			}
		}
	})
	return b
}

func (b *browser) observe(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		b.asks = append(b.asks, e.Request.URL)
	case *runtime.EventExceptionThrown:
		b.bad = append(b.bad, fmt.Sprintf("%+v", e.ExceptionDetails))
	case *page.EventJavascriptDialogOpening:
		b.bad = append(b.bad, "a script runs: "+e.Message)
	case *cdplog.EventEntryAdded:
		// A refusal by the admin API is no fault of the page; a violation of the policy comes from "security".
		if e.Entry.Level == cdplog.EntryLevelError && e.Entry.Source != cdplog.EntrySourceNetwork {
			b.bad = append(b.bad, string(e.Entry.Source)+": "+e.Entry.Text)
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError {
			b.bad = append(b.bad, fmt.Sprint("console.error: ", string(e.Args[0].Value)))
		}
	}
}

func (b *browser) do(steps ...chromedp.Action[chromedp.Void]) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	expect.OK(b, chromedp.Do(ctx, steps...))
}

// start has the tab report what observe looks at. Its context must not end before the test.
func (b *browser) start() {
	b.Helper()
	_, err := chromedp.Call(b.ctx, network.Enable, network.EnableParams{})
	if err == nil {
		_, err = chromedp.Call(b.ctx, cdplog.Enable, cdp.Empty{})
	}
	if err == nil {
		_, err = chromedp.Call(b.ctx, runtime.Enable, cdp.Empty{})
	}
	if err == nil {
		_, err = chromedp.Call(b.ctx, page.Enable, page.EnableParams{})
	}
	expect.OK(b, err)
	b.do(chromedp.EmulateViewport(1280, 800))
}

// js runs an expression, and eval has its value.
func (b *browser) js(expression string) {
	b.Helper()
	b.do(chromedp.Evaluate[chromedp.Void](expression))
}

func eval[T any](b *browser, expression string) T {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	if err != nil {
		b.Fatalf("%v: %s", err, expression)
	}
	return v
}

func (b *browser) text(selector string) string {
	b.Helper()
	return eval[string](b, fmt.Sprintf(`(document.querySelector(%q)?.innerText ?? "")`, selector))
}

// until waits for an expression to be true.
func (b *browser) until(js string) {
	b.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(b.ctx, patience)
		holds, err := chromedp.Run(ctx, chromedp.Evaluate[bool]("!!("+js+")"))
		cancel()
		if holds && err == nil {
			return
		}
		if err != nil && ctx.Err() != nil && b.ctx.Err() != nil {
			b.Fatal(err)
		}
		if time.Now().After(end) {
			b.Fatalf("not within %v: %s (%v)\n%s\n%s", patience, js, err, b.text("body"), strings.Join(b.bad, "\n"))
		}
	}
}

// shows waits until the page has a text.
func (b *browser) shows(text string) {
	b.Helper()
	b.until(fmt.Sprintf(`document.body.innerText.includes(%q)`, text))
}

// visit opens a URL, and waits until its page is there.
func (b *browser) visit(at string) {
	b.Helper()
	b.do(chromedp.Navigate(at))
	b.settled()
}

// to goes to a page by its address.
func (b *browser) to(hash string) {
	b.Helper()
	b.js(fmt.Sprintf(`location.hash = %q`, hash))
	b.settled()
}

func (b *browser) settled() {
	b.Helper()
	b.until(`document.querySelector("main h1") && document.querySelector("main").getAttribute("aria-busy") !== "true"`)
}

// click clicks the first element of a kind that has a text.
func (b *browser) click(selector, text string) {
	b.Helper()
	found := fmt.Sprintf(`[...document.querySelectorAll(%q)].find(e => e.innerText.includes(%q) && !e.disabled)`, selector, text)
	b.until(found)
	b.js(found + `.click()`)
}

func (b *browser) focus(selector string) {
	b.Helper()
	b.js(fmt.Sprintf(`document.querySelector(%q).focus()`, selector))
}

// press presses keys, one after the other.
func (b *browser) press(keys ...string) {
	b.Helper()
	for _, k := range keys {
		b.do(chromedp.KeyEvent(k))
	}
}

// slash presses it as a keyboard does: what the page prevents is not typed.
func (b *browser) slash() {
	b.Helper()
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		_, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: "/", Code: "Slash", Text: "/"})
		expect.OK(b, err)
	}
}

// signIn opens a page of the console, whose part of the URL begins with "#", and signs in as the operator.
func (w *world) signIn(t *testing.T, page string) *browser {
	t.Helper()
	b := open(t, w.console())
	b.visit(w.console() + page)
	b.signIn("op")
	return b
}

// signIn signs in with a key.
func (b *browser) signIn(key string) {
	b.Helper()
	b.until(`document.querySelector("input[name=key]")`)
	b.focus("input[name=key]")
	b.press(key + kb.Enter)
	b.until(`document.querySelector(".menu")`)
	b.settled()
}

// shoot writes a screenshot to build/console.
func (b *browser) shoot(name string) {
	b.Helper()
	dir := filepath.Join(harness.Root(b), "build", "console")
	expect.OK(b, os.MkdirAll(dir, 0o755))
	ctx, cancel := context.WithTimeout(b.ctx, patience)
	defer cancel()
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	expect.OK(b, err)
	expect.OK(b, os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644))
}

// fits fails if the page is wider than the screen.
func (b *browser) fits(what string) {
	b.Helper()
	wide := eval[string](b, `(() => { const most = innerWidth; for (const root of [document.documentElement, document.querySelector("main")]) if (root && root.scrollWidth > root.clientWidth) {
		const e = [...root.querySelectorAll("*")].find(e => e.getBoundingClientRect().right > most + 1); return root.tagName + " " + root.scrollWidth + " > " + root.clientWidth + " " + (e?.outerHTML ?? "").slice(0, 300) } return "" })()`)
	if wide != "" {
		b.Errorf("OPS-11 %s is wider than the screen: %s", what, wide)
	}
}

// hasNoEmptyRows fails if a card of the phone's layout has a label without a value.
func (b *browser) hasNoEmptyRows(what string) {
	b.Helper()
	empty := eval[string](b, `[...document.querySelectorAll("td > div")].filter(e => e.offsetParent && !e.innerText.trim() && !e.querySelector("input, button")).map(e => e.parentElement.dataset.name).join()`)
	if empty != "" {
		b.Errorf("OPS-11 %s has rows without a value: %s", what, empty)
	}
}

// scheme sets the preferred color scheme.
func (b *browser) scheme(name string) {
	b.Helper()
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
	expect.OK(b, err)
}

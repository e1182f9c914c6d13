package admin_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/operate/admin/admintest"
	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

const patience = servertest.Patience

// callers are who the tests are: a key is the name.
var callers = map[string]servertest.Caller{
	"op":      {Workspace: "default", Scopes: "events:operate"},
	"op2":     {Workspace: "default", Scopes: "events:operate"},
	"alice":   {Workspace: "default", Scopes: "events:read, events:subscribe"},
	"bob":     {Workspace: "default", Scopes: "events:read, events:subscribe"},
	"reader":  {Workspace: "default", Scopes: "events:read, events:publish"},
	"foreign": {Workspace: "other", Scopes: "events:operate, events:subscribe"},
}

// fixture is a stand-alone server with functions to call its admin API.
type fixture struct {
	*testing.T
	s        *standalone.Server
	contract *admintest.Contract

	mu    sync.Mutex
	hooks []hook
	fail  int // status to answer with; 0 is 200
	hold  *httptest.Server
}

type hook struct {
	id, path string
	body     []byte
}

func start(t *testing.T, change func(*standalone.Options)) *fixture {
	t.Helper()
	f := &fixture{T: t}
	f.hold = httptest.NewServer(http.HandlerFunc(f.receive))
	t.Cleanup(f.hold.Close)
	o := servertest.Options(t, callers)
	if change != nil {
		change(&o)
	}
	f.s = servertest.Start(t, o)
	resp := expect.Value(f.send("GET", "openapi.json", "op", ""))(t)
	defer resp.Body.Close()
	src, _ := io.ReadAll(resp.Body)
	f.contract = expect.Value(admintest.Parse(src))(t)
	return f
}

func (f *fixture) receive(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hooks = append(f.hooks, hook{r.Header.Get("Webhook-Id"), r.URL.Path, body})
	if f.fail != 0 {
		w.WriteHeader(f.fail)
	}
}

// answerWith sets the status of all webhooks from now on.
func (f *fixture) answerWith(status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail = status
}

// arrived counts the webhooks with an id; all of them with "".
func (f *fixture) arrived(id string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, h := range f.hooks {
		if id == "" || h.id == id {
			n++
		}
	}
	return n
}

func (f *fixture) send(method, path, who, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(f.Context(), method, f.s.AdminURL+"/admin/v1/"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if who != "" {
		req.Header.Set("Authorization", "Bearer "+who)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	return http.DefaultClient.Do(req)
}

// call makes a request and validates the answer; the result is decoded into out unless that is nil.
func (f *fixture) call(who, method, path, body string, status int, out any) []byte {
	f.Helper()
	resp := expect.Value(f.send(method, path, who, body))(f)
	defer resp.Body.Close()
	raw := expect.Value(io.ReadAll(resp.Body))(f)
	if resp.StatusCode != status {
		f.Errorf("%s %s as %q: got %d %s, want %d", method, path, who, resp.StatusCode, raw, status)
	}
	if resp.StatusCode >= 400 && resp.Header.Get("Content-Type") != "application/problem+json" {
		f.Errorf("OPS-01 %s %s: an error as %s", method, path, resp.Header.Get("Content-Type"))
	}
	f.validate(resp, raw)
	if out != nil && resp.StatusCode < 300 {
		if err := json.Unmarshal(raw, out); err != nil {
			f.Fatalf("%v: %s", err, raw)
		}
	}
	return raw
}

// validate holds an answer to the document that the server serves.
func (f *fixture) validate(resp *http.Response, raw []byte) {
	f.Helper()
	path := strings.TrimPrefix(resp.Request.URL.Path, "/admin/v1")
	if resp.StatusCode == http.StatusNotFound && !f.described(path) || resp.StatusCode == http.StatusMethodNotAllowed {
		return // nothing describes what is not there
	}
	if err := f.contract.Check(resp.Request.Method, path, resp, raw); err != nil {
		f.Errorf("OPS-01 %s %s: the answer %s is not as the document says: %v", resp.Request.Method, path, raw, err)
	}
}

func (f *fixture) described(path string) bool { return !strings.Contains(path, "/nothing") }

// subscribe registers a webhook, at a path of its own of the receiver, and returns its id.
func (f *fixture) subscribe(who, path string, uris ...string) string {
	f.Helper()
	return servertest.Subscribe(f.T, f.s.URL, who, f.hold.URL+path, uris...)
}

const built = "event://ci/build-finished"

// publish publishes an event with an id.
func (f *fixture) publish(uri, id string) {
	f.Helper()
	data := `{"build":1,"status":"passed"}`
	if uri != built {
		data = `{"id":"1","title":"down","severity":"error"}`
	}
	expect.OK(f, expect.ErrOf(f.s.Publish(f.Context(), "default", standalone.Event{URI: uri, ID: id, Data: json.RawMessage(data)})))
}

type object = map[string]any

type listed struct {
	Items []object
	Next  string
	Kept  string
}

func (f *fixture) list(who, path string) listed {
	f.Helper()
	var l listed
	f.call(who, "GET", path, "", 200, &l)
	return l
}

// pages returns all items of a list, in pages of at most limit items.
func (f *fixture) pages(who, path string, limit int) (all listed) {
	f.Helper()
	name, query, _ := strings.Cut(path, "?")
	for range 100 {
		l := f.list(who, fmt.Sprintf("%s?limit=%d&cursor=%s&%s", name, limit, all.Next, query))
		expect.AtMost(f, "the items of a page of "+path, len(l.Items), limit)
		if all.Items, all.Next = append(all.Items, l.Items...), l.Next; all.Next == "" {
			return all
		}
	}
	f.Fatalf("%s does not end", path)
	return all
}

// inStore shuts the server down, calls do with its store, and starts it again.
func (f *fixture) inStore(o standalone.Options, do func(db store.DB)) {
	f.Helper()
	expect.OK(f, f.s.Shutdown(f.Context()))
	file := expect.Value(sqlite.Open(filepath.Join(o.Data, "mcpevents.db"), sqlite.Options{}))(f)
	do(file)
	expect.OK(f, file.Close())
	f.s = servertest.Start(f.T, o)
}

// sees checks how many items a caller gets from a list.
func (f *fixture) sees(who, path string, want int) {
	f.Helper()
	expect.Equal(f, fmt.Sprintf("the items of %s for %s", path, who), len(f.list(who, path).Items), want)
}

func ids(l listed, member string) string {
	var out []string
	for _, it := range l.Items {
		out = append(out, fmt.Sprint(it[member]))
	}
	return strings.Join(out, " ")
}

package console_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

const built, incident = "event://ci/build-finished", "event://incidents/api/created"

// world is a stand-alone server with endpoints: /ok accepts everything, /down answers 503, /gone 413, /left 410.
type world struct {
	*testing.T
	s        *standalone.Server
	receiver *httptest.Server
	mended   atomic.Bool // whether all endpoints take everything
}

func start(t *testing.T, change func(*standalone.Options)) *world {
	t.Helper()
	w := &world{T: t}
	w.receiver = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if servertest.Echo(rw, r) {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case w.mended.Load():
		case strings.HasPrefix(r.URL.Path, "/down"):
			rw.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasPrefix(r.URL.Path, "/gone"):
			rw.WriteHeader(http.StatusRequestEntityTooLarge)
		case strings.HasPrefix(r.URL.Path, "/left"):
			rw.WriteHeader(http.StatusGone)
		}
	}))
	t.Cleanup(w.receiver.Close)
	o := servertest.Options(t, callers("op", "op2", "alice", "bob"))
	if change != nil {
		change(&o)
	}
	w.s = servertest.Start(t, o)
	return w
}

// callers returns callers with the given names. Callers whose names begin with "op" are operators.
func callers(names ...string) map[string]servertest.Caller {
	all := map[string]servertest.Caller{}
	for _, name := range names {
		all[name] = servertest.Caller{Workspace: "default", Scopes: "events:read, events:subscribe"}
		if strings.HasPrefix(name, "op") {
			all[name] = servertest.Caller{Workspace: "default", Scopes: "events:operate"}
		}
	}
	return all
}

func (w *world) console() string { return w.s.AdminURL + "/console/" }

// subscribe registers a webhook at a path of the receiver.
func (w *world) subscribe(who, path string, uris ...string) string {
	w.Helper()
	return servertest.Subscribe(w.T, w.s.URL, who, w.receiver.URL+path, uris...)
}

func (w *world) publish(uri, id string) { w.publishData(uri, id, map[string]any{}) }

// publishData publishes an event with members in its payload.
func (w *world) publishData(uri, id string, more map[string]any) {
	w.Helper()
	data := map[string]any{"build": 1, "status": "passed"}
	if uri == incident {
		data = map[string]any{"id": "1", "title": "Queue is full", "severity": "error"}
	}
	for k, v := range more {
		data[k] = v
	}
	raw, err := json.Marshal(data)
	expect.OK(w, err)
	expect.OK(w, expect.ErrOf(w.s.Publish(w.Context(), "default", standalone.Event{URI: uri, ID: id, Data: raw})))
}

// api calls the admin API as an operator.
func (w *world) api(method, path, body string, out any) {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, w.s.AdminURL+"/admin/v1/"+path, strings.NewReader(body))
	expect.OK(w, err)
	req.Header.Set("Authorization", "Bearer op")
	resp, err := http.DefaultClient.Do(req)
	expect.OK(w, err)
	defer resp.Body.Close()
	if raw, _ := io.ReadAll(resp.Body); resp.StatusCode > 299 {
		w.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, raw)
	} else if out != nil {
		expect.OK(w, json.Unmarshal(raw, out))
	}
}

// listed waits until a list of the admin API has so many items.
func (w *world) listed(path string, n int) {
	w.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		var list struct{ Items []json.RawMessage }
		w.api("GET", path, "", &list)
		if len(list.Items) >= n {
			return
		}
		if time.Now().After(end) {
			w.Fatalf("%s has %d items, want %d", path, len(list.Items), n)
		}
	}
}

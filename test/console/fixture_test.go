package console_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/mcpspec"
)

const built, incident = "event://ci/build-finished", "event://incidents/api/created"

// world is an embedded server with endpoints: /ok takes everything, /down answers 503, /gone 413.
type world struct {
	*testing.T
	s        *server.Server
	receiver *httptest.Server
	mended   atomic.Bool // whether all endpoints take everything
}

func start(t *testing.T, change func(*server.Options)) *world {
	t.Helper()
	w := &world{T: t}
	w.receiver = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch {
		case w.mended.Load():
		case strings.HasPrefix(r.URL.Path, "/down"):
			rw.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasPrefix(r.URL.Path, "/gone"):
			rw.WriteHeader(http.StatusRequestEntityTooLarge)
		}
	}))
	t.Cleanup(w.receiver.Close)
	catalog, err := os.ReadFile("../../catalog.yaml")
	if err != nil {
		t.Fatal(err)
	}
	o := server.Options{
		Addr: "127.0.0.1:0", Data: t.TempDir(), Catalog: catalog, CatalogName: "catalog.yaml", Auth: auth.ModeKeys,
		Config: keys(t, "op", "op2", "alice", "bob"), Limits: server.DefaultLimits(), Log: slog.New(slog.DiscardHandler),
	}
	o.Limits.AllowInsecureTargets, o.Limits.DeliveryLog = true, "all"
	if change != nil {
		change(&o)
	}
	w.s = run(t, o)
	return w
}

func run(t *testing.T, o server.Options) *server.Server {
	t.Helper()
	s, err := server.New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, s) })
	return s
}

func stop(t *testing.T, s *server.Server) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Error(err)
	}
}

// keys is a configuration in which the key of each is the name; those that begin with "op" operate.
func keys(t *testing.T, names ...string) *config.Config {
	t.Helper()
	src := "keys:\n"
	for _, name := range names {
		scopes := "events:read, events:subscribe"
		if strings.HasPrefix(name, "op") {
			scopes = "events:operate"
		}
		sum := sha256.Sum256([]byte(name))
		src += fmt.Sprintf("  - {principal: %s, workspace: default, scopes: [%s], sha256: %s}\n", name, scopes, hex.EncodeToString(sum[:]))
	}
	c, err := config.ParseFile("config.yaml", []byte(src))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (w *world) console() string { return w.s.AdminURL + "/console/" }

// subscribe registers a webhook at a path of the receiver.
func (w *world) subscribe(who, path string, uris ...string) string {
	w.Helper()
	c, err := client.New(client.Server{URL: w.s.URL, Key: who, Agent: "test/1"}, mcpspec.V20260728)
	if err != nil {
		w.Fatal(err)
	}
	var got struct{ Subscription struct{ URI string } }
	if err := c.Call(w.Context(), "resources/subscriptions/register", map[string]any{"uris": uris, "targetUri": w.receiver.URL + path}, &got); err != nil {
		w.Fatal(err)
	}
	return strings.TrimPrefix(got.Subscription.URI, "subscription://")
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
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.s.Publish(w.Context(), "default", server.Event{URI: uri, ID: id, Data: raw}); err != nil {
		w.Fatal(err)
	}
}

// api calls the admin API as an operator.
func (w *world) api(method, path, body string, out any) {
	w.Helper()
	req, err := http.NewRequestWithContext(w.Context(), method, w.s.AdminURL+"/admin/v1/"+path, strings.NewReader(body))
	if err != nil {
		w.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer op")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.Fatal(err)
	}
	defer resp.Body.Close()
	if raw, _ := io.ReadAll(resp.Body); resp.StatusCode > 299 {
		w.Fatalf("%s %s: %d %s", method, path, resp.StatusCode, raw)
	} else if out != nil {
		if err := json.Unmarshal(raw, out); err != nil {
			w.Fatal(err)
		}
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

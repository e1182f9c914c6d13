package standalone

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/operate/admin"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/pipes"
)

// GWN-20: a backend that responds slowly is ready, because clients can use it. For example, a proxy may need three seconds to connect to the
// server behind it. A backend that does not respond is unreachable.
func TestStatesOfSlowBackends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := expect.Value(sqlite.Open(":memory:", sqlite.Options{}))(t)
		t.Cleanup(func() { _ = db.Close() })
		var all []api.Backend
		for name, delay := range map[string]time.Duration{"slow": 9 * time.Second, "hanging": time.Hour} {
			at := pipes.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				var m struct{ ID json.RawMessage }
				_ = json.NewDecoder(r.Body).Decode(&m)
				select {
				case <-time.After(delay):
				case <-r.Context().Done():
				}
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}`, m.ID)
			}))
			all = append(all, api.Backend{Name: name, URL: at.URL, Workspace: auth.DefaultWorkspace, ProtocolVersion: api.AutoVersion})
		}
		s := &Server{
			core:     &app.Core{Config: config.NewStored(db, nil, quiet())},
			backends: expect.Value(gateway.New(gateway.Options{DB: db, Backends: all, Server: json.RawMessage(`{}`), Log: quiet()}))(t),
		}
		list := []admin.Backend{{Name: "slow"}, {Name: "hanging"}}
		s.addStates(t.Context(), auth.DefaultWorkspace, list)
		expect.Equal(t, "the slow backend", list[0].State, "ready")
		expect.Equal(t, "the hanging backend", list[1].State, "unreachable")
	})
}

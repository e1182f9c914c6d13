package standalone

import (
	"encoding/json"
	"net/http"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/auth/httpjson"
	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// newRoutes returns the handler for all paths except the paths of the admin API and the console.
func (s *Server) newRoutes(publishing app.Publishing, identity *webhook.Identity) *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("/mcp", s.endpoint)
	mux.Handle("/mcp/{"+mcp.PathWorkspace+"}", s.endpoint)
	mux.Handle("/events", publishing.Handler)
	publishing.Sources.Mount(mux)
	consent := app.NewConsent(s.core, s.conversation)
	mux.Handle("/consent", consent)
	mux.Handle("/consent/{"+conversation.PathProvider+"}", consent)
	if s.tokens != nil {
		s.tokens.Mount(mux)
	}
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.HandleFunc("GET /metrics", s.serveMetrics)
	mux.HandleFunc("GET /.well-known/mcp-webhook-jwks.json", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/jwk-set+json")
		w.Header().Set("Cache-Control", "public, max-age=300")
		_, _ = w.Write(identity.JWKS())
	})
	return mux
}

// healthz handles GET /healthz. It responds with 503 if the server cannot write to its store.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if err := s.db.Engine().Health(); err != nil {
		w.WriteHeader(http.StatusServiceUnavailable)
		_ = json.NewEncoder(w).Encode(map[string]string{"status": "unavailable", "reason": fault.Public(err)})
		return
	}
	_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
}

// readyz handles GET /readyz. It responds with 200 if the server can write to the store and read the queues. It does not check the keys,
// because the server does not start without them.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	responder := httpjson.Responder{Log: s.core.Log}
	responder.Serve(w, r, http.StatusOK, func() (any, error) {
		if err := s.db.Engine().Health(); err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "write the store")
		}
		if _, err := s.queues.Depth(r.Context(), queue.Events); err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read the queues")
		}
		ready := map[string]string{"status": "ready"}
		if s.refused.Load() { // ready nevertheless, because the previous settings are in use
			ready["settings"] = "refused"
		}
		return ready, nil
	})
}

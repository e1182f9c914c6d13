package mcp

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/mcp/session"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

func TestInitialize(t *testing.T) {
	f := newFixture(t, nil)
	for asked, want := range map[string]string{
		"2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"2024-11-05": "2025-11-25", "2026-07-28": "2025-11-25", "2099-01-01": "2025-11-25", "x": "2025-11-25",
	} {
		t.Run("SES-01_negotiates_"+asked, func(t *testing.T) {
			r := f.initialize(alice, spec.Version(asked), `{}`)
			var d described
			r.result(t, &d)
			id := r.Header.Get(spec.HeaderSession)
			if d.ProtocolVersion != want || len(id) < 43 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
				t.Errorf("got %s, session %q", d.ProtocolVersion, id)
			}
		})
	}
	t.Run("SES-01_without_a_version", func(t *testing.T) {
		if r := f.do("POST", alice, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}`); r.code(t) != -32602 || r.Header.Get(spec.HeaderSession) != "" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("SES-01_sessions_differ_and_cannot_be_guessed", func(t *testing.T) {
		one, two := f.session(alice, spec.V20251125), f.session(alice, spec.V20251125)
		if one == two || len(one) < 26 { // 128 random bits, at least
			t.Errorf("%s, then %s", one, two)
		}
	})
}

func TestSessions(t *testing.T) {
	f := newFixture(t, nil)
	s := f.session(alice, spec.V20251125)
	const ping = `{"jsonrpc":"2.0","id":7,"method":"ping"}`
	in := "Mcp-Session-Id: " + s
	for _, tc := range []struct {
		name, method, key, body string
		headers                 []string
		status                  int
	}{
		{"SES-01_ping", "POST", alice, ping, []string{in}, 200},
		{"SES-01_ping_with_its_version", "POST", alice, ping, []string{in, "Mcp-Protocol-Version: 2025-11-25"}, 200},
		{"SES-01_no_session", "POST", alice, ping, nil, 400},
		{"SES-01_no_session_for_a_notification", "POST", alice, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, nil, 400},
		{"SES-01_unknown_session", "POST", alice, ping, []string{"Mcp-Session-Id: x"}, 404},
		{"SES-04_session_of_another_principal", "POST", bob, ping, []string{in}, 404},
		{"SES-04_session_of_another_workspace", "POST", foreign, ping, []string{in}, 404},
		{"SES-01_unknown_version", "POST", alice, ping, []string{in, "Mcp-Protocol-Version: 2024-11-05"}, 400},
		{"SES-01_malformed_version", "POST", alice, ping, []string{in, "Mcp-Protocol-Version: banana"}, 400},
		{"SES-01_initialized", "POST", alice, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, []string{in}, 202},
		{"SES-05_cancelled", "POST", alice, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`, []string{in}, 202},
		{"SES-01_a_response", "POST", alice, `{"jsonrpc":"2.0","id":1,"result":{}}`, []string{in}, 202},
		{"SES-01_no_stream_without_session", "GET", alice, "", nil, 400},
		{"SES-01_no_stream_of_an_unknown_session", "GET", alice, "", []string{"Mcp-Session-Id: x"}, 404},
		{"SES-04_no_stream_for_another_principal", "GET", bob, "", []string{in}, 404},
		{"SES-04_stream_with_a_wrong_Accept", "GET", alice, "", []string{in, "Accept:", "Accept: application/json"}, 406},
		{"SES-01_no_end_without_session", "DELETE", alice, "", nil, 400},
		{"SES-04_no_end_by_another_principal", "DELETE", bob, "", []string{in}, 404},
		{"SES-01_end", "DELETE", alice, "", []string{in}, 204},
		{"SES-01_ended", "POST", alice, ping, []string{in}, 404},
		{"SES-01_ended_already", "DELETE", alice, "", []string{in}, 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := f.do(tc.method, tc.key, tc.body, tc.headers...)
			if r.Status != tc.status || tc.status == 202 && r.Body != "" {
				t.Errorf("%d %s", r.Status, r.Body)
			}
			if tc.status == 400 && tc.method == "POST" && r.code(t) != -32600 && r.code(t) != -32602 {
				t.Error(r.Body)
			}
		})
	}
	t.Run("SES-01_a_session_is_stored_under_a_hash", func(t *testing.T) {
		s := f.session(alice, spec.V20251125)
		if strings.Contains(session.Key(s), s) {
			t.Error("the id is in the key")
		}
	})
	t.Run("SES-01_another_instance_serves_it", func(t *testing.T) {
		s := f.session(alice, spec.V20251125)
		other, err := New(f.endpoint.options)
		must(t, err)
		f.server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { other.ServeHTTP(w, r) })
		defer func() { f.server.Config.Handler = f.endpoint }()
		if r := f.sessionBased(alice, s, spec.MethodPing, ""); r.Status != 200 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("SES-05_methods_that_are_not_there", func(t *testing.T) {
		s := f.session(alice, spec.V20251125)
		for _, m := range []string{"tools/list", "tools/call", "prompts/get", "prompts/list", spec.MethodListen, spec.MethodDiscover, "x"} {
			if r := f.sessionBased(alice, s, m, ""); r.Status != 200 || r.code(t) != -32601 {
				t.Errorf("%s: %d %s", m, r.Status, r.Body)
			}
		}
	})
}

func TestSessionExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newEndpointOn(t, newMemory(), nil)
		defer f.close()
		p := auth.Principal{ID: "alice", Workspace: "default"}
		ctx := t.Context()
		made, err := f.endpoint.sessions.Create(ctx, session.Session{Workspace: p.Workspace, Principal: p.ID, Version: spec.V20251125})
		must(t, err)
		load := func() (*session.Session, error) { return f.endpoint.sessions.Load(ctx, made.ID, p, false) }
		s, err := load()
		must(t, err)
		must(t, f.endpoint.sessions.Subscribe(ctx, s, session.URI{URI: "event://ci"}))
		for range 5 { // used every 16 hours, it lives on, and so do its subscriptions
			time.Sleep(16 * time.Hour)
			if s, err = load(); err != nil {
				t.Fatal("SES-01: a session in use expired")
			}
		}
		if uris, err := f.endpoint.sessions.Subscriptions(ctx, s.Key); err != nil || len(uris) != 1 {
			t.Errorf("subscriptions %v, %v", uris, err)
		}
		time.Sleep(session.TTL + time.Second)
		if _, err := load(); err != session.ErrNone {
			t.Errorf("SES-01: an unused session: %v", err)
		}
	})
}

func TestBatches(t *testing.T) {
	f := newFixture(t, nil)
	const two = `[{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","method":"notifications/initialized"},{"jsonrpc":"2.0","id":"b","method":"x"},7,{"jsonrpc":"2.0","id":2,"method":"initialize"}]`
	t.Run("SES-04_accepted_in_2025-03-26", func(t *testing.T) {
		r := f.do("POST", alice, two, "Mcp-Session-Id: "+f.session(alice, spec.V20250326))
		if r.Status != 200 {
			t.Fatalf("%+v", r)
		}
		sameJSON(t, json.RawMessage(r.Body), `[{"jsonrpc":"2.0","id":1,"result":{}},
			{"jsonrpc":"2.0","id":"b","error":{"code":-32601,"message":"unknown method x"}},
			{"jsonrpc":"2.0","error":{"code":-32600,"message":"a message must be an object"}},
			{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"unknown method initialize"}}]`)
	})
	t.Run("SES-04_only_notifications", func(t *testing.T) {
		r := f.do("POST", alice, `[{"jsonrpc":"2.0","method":"notifications/initialized"}]`, "Mcp-Session-Id: "+f.session(alice, spec.V20250326))
		if r.Status != 202 || r.Body != "" {
			t.Errorf("%+v", r)
		}
	})
	for _, v := range []spec.Version{spec.V20250618, spec.V20251125} {
		t.Run("SES-04_refused_in_"+string(v), func(t *testing.T) {
			if r := f.do("POST", alice, two, "Mcp-Session-Id: "+f.session(alice, v)); r.Status != 400 || r.code(t) != jsonrpc.InvalidRequest {
				t.Errorf("%+v", r)
			}
		})
	}
	t.Run("SES-04_bounded", func(t *testing.T) {
		body := "[" + strings.Repeat(`{"jsonrpc":"2.0","id":1,"method":"ping"},`, maxBatch) + `{"jsonrpc":"2.0","id":1,"method":"ping"}]`
		if r := f.do("POST", alice, body, "Mcp-Session-Id: "+f.session(alice, spec.V20250326)); r.Status != 400 {
			t.Errorf("%+v", r)
		}
	})
}

// Who sends neither header gets the error about the version first: a client of the stateless revision has no session to send.
func TestAMissingVersionIsNotAMissingSession(t *testing.T) {
	f := newFixture(t, nil)
	const list = `{"jsonrpc":"2.0","id":1,"method":"resources/list"}`
	if r := f.do("POST", alice, list); r.Status != 400 || !strings.Contains(r.Body, "the header MCP-Protocol-Version is missing: send 2026-07-28") || strings.Contains(r.Body, "Mcp-Session-Id") {
		t.Errorf("without any header: %d %s", r.Status, r.Body)
	}
	if r := f.do("POST", alice, list, "Mcp-Protocol-Version: 2025-11-25"); r.Status != 400 || !strings.Contains(r.Body, "the header Mcp-Session-Id is missing") {
		t.Errorf("without a session: %d %s", r.Status, r.Body)
	}
}

package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// ask gets a path of the console.
func ask(h http.Handler, method, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestSignIn: OPS-11. The page learns where to sign in, and may call that host and no other.
func TestSignIn(t *testing.T) {
	var failed error
	asked := 0
	h := New(Options{Auth: "jwt", Client: &Client{
		Issuer: "https://id.example.com/", ID: "console", Scopes: []string{"events:operate"}, Resource: "https://events.example.com/mcp",
		Endpoints: func(context.Context) (string, string, error) {
			asked++
			return "https://id.example.com/authorize", "https://tokens.example.com/token?x=1", failed
		},
	}}, slog.New(slog.DiscardHandler))
	t.Run("OPS-11 a server that does not answer leaves the page as it is, and later the policy names the host of the token endpoint", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			failed = errors.New("down")
			w := ask(h, "GET", "/console/config.json")
			expect.Equal(t, "the configuration", strings.TrimSpace(w.Body.String()), `{"auth":"jwt","client":true}`)
			failed = nil
			time.Sleep(retry)
			for range 3 {
				w := ask(h, "GET", "/console/")
				expect.Contains(t, "the policy", w.Header().Get("Content-Security-Policy"), "connect-src 'self' https://tokens.example.com;")
			}
			expect.Equal(t, "how often the authorization server was asked", asked, 2)
			want := `{"auth":"jwt","client":true,"signIn":{"issuer":"https://id.example.com/","clientId":"console","scopes":["events:operate"],` +
				`"resource":"https://events.example.com/mcp","authorizationEndpoint":"https://id.example.com/authorize","tokenEndpoint":"https://tokens.example.com/token?x=1"}}`
			expect.Equal(t, "the configuration", strings.TrimSpace(ask(h, "GET", "/console/config.json").Body.String()), want)
		})
	})
}

// TestSignInSurvivesCallers: a caller who leaves, or a server that fails later, does not take the sign-in from other people.
func TestSignInSurvivesCallers(t *testing.T) {
	const offered = `"signIn":{`
	setUp := func() (h *Handler, answers chan error) {
		answers = make(chan error)
		h = New(Options{Auth: "jwt", Client: &Client{Issuer: "https://id.example.com/", ID: "console", Endpoints: func(ctx context.Context) (string, string, error) {
			select {
			case err := <-answers:
				return "https://id.example.com/authorize", "https://id.example.com/token", err
			case <-ctx.Done():
				return "", "", ctx.Err()
			}
		}}}, slog.New(slog.DiscardHandler))
		return h, answers
	}
	config := func(ctx context.Context, h *Handler) string {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/console/config.json", nil))
		return w.Body.String()
	}
	t.Run("OPS-11 given a request that was aborted during the first question, the next one gets the sign-in", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h, answers := setUp()
			aborted, abort := context.WithCancel(t.Context())
			abort()
			_ = config(aborted, h)
			go func() { answers <- nil }()
			expect.Contains(t, "the configuration", config(t.Context(), h), offered)
		})
	})
	t.Run("OPS-11 given a server that no longer answers, the last known endpoints stay and requests do not wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			h, answers := setUp()
			go func() { answers <- nil }()
			_ = config(t.Context(), h)
			time.Sleep(fresh)
			began := time.Now()
			for range 3 {
				if got, took := config(t.Context(), h), time.Since(began); !strings.Contains(got, offered) || took > 0 {
					t.Errorf("after %s: got %s, want the sign-in immediately", took, got)
				}
			}
			answers <- errors.New("down")
			synctest.Wait()
			expect.Contains(t, "the configuration after a failure", config(t.Context(), h), offered)
			time.Sleep(time.Minute) // the question that is open ends
		})
	})
}

// TestFiles: OPS-11. Files are known again by their tag, and read only.
func TestFiles(t *testing.T) {
	h := New(Options{Auth: "keys"}, slog.New(slog.DiscardHandler))
	first := ask(h, "GET", "/console/app.js")
	if again := ask(h, "GET", "/console/app.js", "If-None-Match", first.Header().Get("ETag")); first.Code != 200 || again.Code != 304 || again.Body.Len() != 0 {
		t.Errorf("OPS-11 got %d, then %d", first.Code, again.Code)
	}
	if w := ask(h, "POST", "/console/"); w.Code != 405 || w.Header().Get("Allow") == "" {
		t.Errorf("OPS-11 POST: got %d", w.Code)
	}
	for name, f := range h.files {
		if strings.HasSuffix(name, ".html") && (strings.Contains(string(f.content), "style=") || strings.Contains(string(f.content), "<script>") || strings.Contains(string(f.content), "//")) {
			t.Errorf("OPS-11 %s has something inline, or of another host", name)
		}
	}
}

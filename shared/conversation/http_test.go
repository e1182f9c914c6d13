package conversation

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/test/expect"
)

// CNV-03: a provider at a URL receives the params unchanged, the operator's headers, and its own name for the caller.
// The client does not follow redirects or use a proxy.
func TestProvidersAtURLs(t *testing.T) {
	var redirected atomic.Int32
	var got *http.Request
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { redirected.Add(1) }))
	defer elsewhere.Close()
	t.Setenv("HTTP_PROXY", elsewhere.URL)
	t.Setenv("http_proxy", elsewhere.URL)
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/redirects" {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
			return
		}
		got = r.Clone(context.Background())
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"context":"x"}`))
	}))
	defer provider.Close()
	src := `
conversation:
  userMessages: true
  budget: 5s
  providers:
    - {name: one, url: "` + provider.URL + `/one?k=v", headers: {Authorization: "env:PROVIDER_SECRET", X-Team: blue}}
    - {name: two, url: "` + provider.URL + `/redirects"}
    - {name: three, url: "` + provider.URL + `/three", principal: true}
`
	r := newRig(t, src, func(o *Options) {
		o.HTTP = nil
		o.Secrets = func(_ context.Context, v secret.Value) (string, error) {
			return v.Resolve(func(name string) (string, bool) { return "Bearer s3", name == "PROVIDER_SECRET" })
		}
	})
	r.consent("one")
	if c := r.say(); c.Text != "Context from one:\n> x" {
		t.Fatalf("got %+v, %v: %s", c, r.Counts(), r.log)
	}
	h := got.Header
	if got.Method != "POST" || got.URL.String() != "/one?k=v" || h.Get("Authorization") != "Bearer s3" || h.Get("X-Team") != "blue" ||
		h.Get("Mcp-Method") != "conversation/userMessage" || h.Get("Content-Type") != "application/json" || len(h.Get(rules.PrincipalHeader)) != 43 {
		t.Errorf("got %s %s %v, want a POST with the operator's headers and a name of 43 characters", got.Method, got.URL, h)
	}
	r.Consent(t.Context(), ann, "one", "ann", false)
	r.consent("two", "three")
	if c := r.say(); c.Text != "Context from three:\n> x" || r.Counts()["default/two"]["refused"] != 1 || redirected.Load() != 0 {
		t.Errorf("got %+v, counted %v, followed %d times, want the context of three and no redirect", c, r.Counts(), redirected.Load())
	}
	expect.Equal(t, "the principal", got.Header.Get(rules.PrincipalHeader), "ann")
}

// CNV-03: a provider that responds slowly, byte by byte, times out too, and its connection is closed.
func TestASlowBody(t *testing.T) {
	gone := make(chan struct{})
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"context":"`))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		close(gone)
	}))
	defer provider.Close()
	r := newRig(t, "conversation: {userMessages: true, budget: 50ms, providers: [{name: one, url: '"+provider.URL+"'}]}\n",
		func(o *Options) { o.HTTP = nil })
	r.consent("one")
	r.say()
	r.counted("one", "timeout:1")
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("the connection stays open")
	}
}

// CNV-08: only its owner can read a context in the log.
func TestSealing(t *testing.T) {
	r := newRig(t, three)
	sealed := r.Seal(ann, []byte(marker))
	if text, err := r.Open(ann, sealed); string(text) != marker || err != nil || strings.Contains(string(sealed), marker) {
		t.Errorf("got %q, %v", text, err)
	}
	bob := ann
	bob.ID = "bob"
	if _, err := r.Open(bob, sealed); err == nil {
		t.Error("another principal can open it")
	}
}

package backends

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTemplatesMatchTheirExpansions(t *testing.T) {
	for template, uris := range map[string]struct{ expanded, other []string }{
		"x://{a}/{b}":     {[]string{"x://1/2", "x://a%20b/c", "x:///"}, []string{"x://1", "x://1/2/3", "y://1/2", "x://1/2 "}},
		"x://{a}.json":    {[]string{"x://1.json", "x://a.json.json"}, []string{"x://1.jso", "x://1/2.json"}},
		"x://{+path}":     {[]string{"x://a/b?c#d"}, []string{"y://a"}},
		"x://a{/b,c}":     {[]string{"x://a", "x://a/1", "x://a/1/2"}, []string{"x://a1", "x://a?1"}},
		"x://a{?q,limit}": {[]string{"x://a", "x://a?q=1", "x://a?q=1&limit=2"}, []string{"x://a&q=1", "x://a/b"}},
		"x://a?b=1{&c}":   {[]string{"x://a?b=1", "x://a?b=1&c=2"}, []string{"x://a?b=1?c=2"}},
		"x://a{;b}{#c}":   {[]string{"x://a", "x://a;b=1", "x://a#x/y", "x://a;b=1#x"}, []string{"x://a,b"}},
		"x://{list*}/end": {[]string{"x://a,b/end", "x://k=v,l=w/end"}, []string{"x://a,b"}},
		"x://fixed":       {[]string{"x://fixed"}, []string{"x://fixed/1", "x://fixe"}},
	} {
		m := matcher(template)
		for _, uri := range uris.expanded {
			if !m(uri) {
				t.Errorf("GWN-01 %s does not match %s", template, uri)
			}
		}
		for _, uri := range uris.other {
			if m(uri) {
				t.Errorf("GWN-01 %s matches %s", template, uri)
			}
		}
	}
}

// GWN-01: a backend's template or a client's URI cannot keep the gateway busy, for example a URI that can be divided between the
// template's expressions in many ways.
func TestCostlyTemplatesAndURIsAreCheap(t *testing.T) {
	if matcher("x://"+strings.Repeat("{a*}", 200)+"z") != nil {
		t.Error("matcher accepts a template with 200 expressions, want nil")
	}
	m := matcher("x://" + strings.Repeat("{a*}", maxVariables) + "z")
	began := time.Now()
	uris := []string{"x://" + strings.Repeat("a,", 1000) + "!", "x://" + strings.Repeat("a,", 1<<18) + "!"}
	for range 20 {
		for _, uri := range uris {
			if m(uri) {
				t.Fatalf("the template matches a URI of %d bytes that does not end in z", len(uri))
			}
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("40 matches took %s, want at most 10s", took)
	}
}

// steersText reports whether a character controls terminals or the direction of text, according to the code charts of Unicode.
func steersText(r rune) bool {
	switch {
	case r < 0x20, 0x7f <= r && r < 0xa0: // C0, DEL, C1
		return true
	case r == 0x061c, r == 0x200e, r == 0x200f, 0x202a <= r && r <= 0x202e, 0x2066 <= r && r <= 0x2069:
		return true // UAX #9, Explicit Formatting Characters
	}
	return r == 0xfffd
}

// FuzzEntry checks that the names and titles in a list for clients contain no characters that control terminals or the direction of
// text, whatever the backend sends.
func FuzzEntry(f *testing.F) {
	for _, seed := range []string{
		`{"name":"t","title":"T","annotations":{"title":"x"}}`, `{"uri":"x:\u001b","name":"n"}`, `{"uriTemplate":"x:{a}","NAME":"\u202e"}`,
		`{"name":"a","name":"\u0000"}`, `{"\u006eame":"\u009b"}`, `{"name":"\ud800"}`, `{"annotations":{"title":"\u2066"},"name":"b"}`, "{\"name\":\"\x7f\"}",
	} {
		for kind := range api.Kinds {
			f.Add(uint8(kind), []byte(seed), "p_")
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, text []byte, prefix string) {
		parts, batch, bad := jsonrpc.Split(text)
		if bad != nil || batch || int(kind) >= len(api.Kinds) || strings.ContainsFunc(prefix, steersText) {
			return
		}
		v := &View{backend: &Backend{}}
		v.backend.Prefix = prefix
		e, why := v.parseEntry(api.Kind(kind), parts[0])
		if why != "" {
			return
		}
		var shown struct {
			Name, Title, URI, URITemplate any
			Annotations                   struct{ Title any }
		}
		if err := json.Unmarshal(e.JSON, &shown); err != nil && !json.Valid(e.JSON) {
			t.Fatalf("%s became %s, which is no JSON", text, e.JSON)
		}
		for _, v := range []any{e.Name, e.Own, shown.Name, shown.Title, shown.URI, shown.URITemplate, shown.Annotations.Title} {
			if s, ok := v.(string); ok && strings.ContainsFunc(s, steersText) {
				t.Fatalf("%s became %s with %q", text, e.JSON, s)
			}
		}
	})
}

// GWN-19: while a token endpoint hangs, all callers share one request for the token, and each waits no longer than its own context.
func TestCallersShareARequestToAHangingTokenEndpoint(t *testing.T) {
	var asked atomic.Int64
	arrived, gate := make(chan struct{}, 10), make(chan struct{})
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		arrived <- struct{}{}
		<-gate
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"access_token":"granted","token_type":"bearer","expires_in":3600}`))
	}))
	defer tokens.Close()
	b := newBackend(&Options{
		Secrets: func(context.Context, secret.Value) (string, error) { return "s3cret", nil }, HTTP: upstream.NewHTTP(), AskTimeout: time.Minute,
	}, api.Backend{Name: "b", OAuth: &api.OAuth{TokenURL: tokens.URL, ClientID: "me"}})
	impatient, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := b.getOAuthToken(impatient)
		gone <- err
	}()
	<-arrived
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if got, err := b.getOAuthToken(t.Context()); got != "Bearer granted" || err != nil {
				t.Errorf("got %q, %v, want Bearer granted", got, err)
			}
		})
	}
	cancel()
	select {
	case err := <-gone:
		expect.Fault(t, "the caller that gave up", err, fault.Unavailable)
	case <-time.After(20 * time.Second):
		t.Error("a caller waits longer than its context")
	}
	close(gate)
	wg.Wait()
	expect.Equal(t, "requests at the endpoint", asked.Load(), 1)
}

package cloudfront_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/internal/cloudfront"
	"github.com/mcp-events/mcpevents/test/expect"
)

const managed = `"AllowedMethods":["GET","POST"],"CachePolicyId":"4135ea2d-6df8-44a3-9df3-4b5a84be39ad","OriginRequestPolicyId":"b689b0a8-53d0-40ab-baf2-68738e2966ac"`

// config returns a distribution with the origins main and other.
func config(t *testing.T, main, other, behaviors string) (c cloudfront.Config) {
	t.Helper()
	text := fmt.Sprintf(`{"Aliases":["events.example.com"],"Origins":[
		{"Id":"main","DomainName":%q,"OriginCustomHeaders":[{"HeaderName":"X-Key","HeaderValue":"right"}]},
		{"Id":"other","DomainName":%q}],
		"DefaultCacheBehavior":{"TargetOriginId":"main",`+managed+`,"ResponseHeadersPolicyId":"p"},
		"CacheBehaviors":[%s]}`, main, other, behaviors)
	expect.OK(t, json.Unmarshal([]byte(text), &c))
	return c
}

// policy overrides one header and sets another one where it is missing.
func policy(id string) (p cloudfront.ResponseHeaders) {
	if id == "p" {
		_ = json.Unmarshal([]byte(`{"CustomHeadersConfig":{"Items":[
			{"Header":"WWW-Authenticate","Value":"Bearer","Override":true},{"Header":"Server","Value":"front","Override":false}]}}`), &p)
	}
	return p
}

func TestDistribution(t *testing.T) {
	got := make(chan *http.Request, 1)
	origin := func(name string) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			got <- r
			w.Header().Set("Server", name)
			w.Header().Set("WWW-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, name)
		}))
		t.Cleanup(srv.Close)
		return strings.TrimPrefix(srv.URL, "http://")
	}
	main := origin("main")
	c := config(t, main, origin("other"), `{"PathPattern":"/a","TargetOriginId":"other",`+managed+`},{"PathPattern":"b/*","TargetOriginId":"other",`+managed+`},{"PathPattern":"/c?*","TargetOriginId":"other",`+managed+`}`)
	front := httptest.NewUnstartedServer(nil)
	defer front.Close()
	d := expect.Value(cloudfront.New(front.Listener.Addr().String(), c, policy))(t)
	front.Config.Handler = d
	front.Start()
	ask := func(method, path, host string) (*http.Response, string) {
		t.Helper()
		req := expect.Value(http.NewRequestWithContext(t.Context(), method, front.URL+path, nil))(t)
		req.Host = host
		for name, v := range map[string]string{"X-Key": "forged", "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "ftp", "Authorization": "Bearer x", "Mcp-Method": "m"} {
			req.Header.Set(name, v)
		}
		resp := expect.Value(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return resp, string(b)
	}
	for path, want := range map[string]string{"/": "main", "/a": "other", "/a/": "main", "/A": "main", "/b": "main", "/b/": "other", "/b/c/d?e": "other", "/c": "main", "/cx/y": "other"} {
		if _, body := ask("POST", path, "events.example.com"); body != want {
			t.Errorf("%s is served by %s, want %s", path, body, want)
		}
		<-got
	}
	t.Run("the origin gets all headers except the host, and the distribution's own", func(t *testing.T) {
		resp, _ := ask("GET", "/x?y=z", "events.example.com:443")
		r := <-got
		if r.Host != main || r.Header.Get("X-Key") != "right" || r.Header.Get("Authorization") != "Bearer x" || r.Header.Get("Mcp-Method") != "m" || r.URL.RawQuery != "y=z" {
			t.Errorf("got %s %s %v", r.Host, r.URL, r.Header)
		}
		if r.Header.Get("X-Forwarded-For") != "192.0.2.1, 127.0.0.1" || r.Header.Get("X-Forwarded-Proto") != "" || r.Header.Get("X-Amz-Cf-Id") == "" {
			t.Errorf("got %v", r.Header)
		}
		if h := resp.Header; h.Get("WWW-Authenticate") != "Bearer" || h.Get("Server") != "main" || resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("the response has status %d and %v", resp.StatusCode, h)
		}
	})
	t.Run("other methods and names are refused, and the domain is not", func(t *testing.T) {
		for _, want := range []struct {
			method, host string
			status       int
		}{{"DELETE", "events.example.com", 403}, {"GET", "example.com", 403}, {"GET", front.Listener.Addr().String(), 401}} {
			if resp, body := ask(want.method, "/", want.host); resp.StatusCode != want.status {
				t.Errorf("%s to %s: got %d %s", want.method, want.host, resp.StatusCode, body)
			}
		}
	})
	t.Run("an origin that is away is 502", func(t *testing.T) {
		away := httptest.NewServer(nil)
		away.Close()
		d := expect.Value(cloudfront.New("x", config(t, strings.TrimPrefix(away.URL, "http://"), "", ""), policy))(t)
		w := httptest.NewRecorder()
		d.ServeHTTP(w, httptest.NewRequest("GET", "http://x/", nil))
		expect.Equal(t, "the status", w.Code, http.StatusBadGateway)
	})
	for name, behavior := range map[string]string{
		"no origin":   `{"PathPattern":"/a","TargetOriginId":"none",` + managed + `}`,
		"compression": `{"PathPattern":"/a","TargetOriginId":"main","Compress":true,` + managed + `}`,
		"a cache":     `{"PathPattern":"/a","TargetOriginId":"main"}`,
	} {
		expect.Error(t, name, expect.ErrOf(cloudfront.New("x", config(t, main, "", behavior), policy)), "behavior /a:")
	}
}

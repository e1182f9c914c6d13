package mcp

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

func TestCallers(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.ResourceMetadata = "https://mcp.example/.well-known/oauth-protected-resource" })
	t.Run("AUT-01_401_names_the_metadata_and_the_scope", func(t *testing.T) {
		for _, method := range []string{"POST", "GET", "DELETE"} {
			r := f.do(method, "", `{}`)
			got := r.Header.Get("WWW-Authenticate")
			if r.Status != 401 || !strings.HasPrefix(got, "Bearer ") || !strings.Contains(got, "resource_metadata=") || !strings.Contains(got, `scope="events:read"`) {
				t.Errorf("%s: %d, %q", method, r.Status, got)
			}
		}
	})
	t.Run("AUT-01_403_names_the_missing_scopes", func(t *testing.T) {
		r := f.stateless(reader, spec.MethodRegister, `"uris":["event://ci/deploy"],"targetUri":"https://a.example/"`)
		if got := r.Header.Get("WWW-Authenticate"); r.Status != 403 || !strings.Contains(got, `error="insufficient_scope"`) || !strings.Contains(got, `scope="events:subscribe"`) {
			t.Errorf("%d, %q", r.Status, got)
		}
		if r.code(t) != method.CodeForbidden {
			t.Error(r.Body)
		}
		r = f.stateless(alice, spec.MethodRead, `"uri":"event://billing/invoice"`)
		if got := r.Header.Get("WWW-Authenticate"); r.Status != 403 || !strings.Contains(got, `scope="billing"`) {
			t.Errorf("%d, %q", r.Status, got)
		}
	})
}

// Which origins and hosts there may be is shown with [auth.Guard].
func TestOrigins(t *testing.T) {
	f := newFixture(t, func(o *Options) { o.Guard = auth.Guard{Origins: []string{"https://app.example"}} })
	discover := statelessBody("1", spec.MethodDiscover, "")
	t.Run("AUT-06_the_answer_names_the_origin_that_asked", func(t *testing.T) {
		for origin, status := range map[string]int{"": 200, "https://app.example": 200, "https://evil.example": 403} {
			r := f.do("POST", alice, discover, append(statelessHeaders(spec.MethodDiscover, ""), "Origin: "+origin)...)
			if got := r.Header.Get("Access-Control-Allow-Origin"); r.Status != status || status == 200 && got != origin {
				t.Errorf("%s: status %d, allowed origin %q", origin, r.Status, got)
			}
		}
	})
	t.Run("AUT-06_another_host", func(t *testing.T) {
		req := f.statelessRequest(alice, spec.MethodDiscover, "")
		req.Host = "evil.example"
		if r := f.answer(req); r.Status != 403 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("AUT-06_preflight", func(t *testing.T) {
		r := f.do("OPTIONS", "", "", "Origin: https://app.example")
		if r.Status != 204 || !strings.Contains(r.Header.Get("Access-Control-Allow-Headers"), "Mcp-Session-Id") {
			t.Errorf("%+v", r)
		}
		if r := f.do("OPTIONS", "", "", "Origin: https://evil.example"); r.Status != 403 {
			t.Errorf("%+v", r)
		}
		r = f.do("OPTIONS", "", "", "Origin: https://app.example", "Access-Control-Request-Headers: content-type,mcp-param-region,x-other")
		allowed := strings.Join(r.Header.Values("Access-Control-Allow-Headers"), ", ")
		if !strings.Contains(allowed, "mcp-param-region") || strings.Contains(allowed, "x-other") {
			t.Errorf("a page may send the headers %s, want those of parameters and no others of its choice", allowed)
		}
	})
}

func TestMediaTypes(t *testing.T) {
	f := newFixture(t, nil)
	body, headers := statelessBody("1", spec.MethodDiscover, ""), statelessHeaders(spec.MethodDiscover, "")
	for _, tc := range []struct {
		name   string
		header []string
		status int
	}{
		{"charset", []string{"Content-Type:", "Content-Type: application/json; charset=utf-8"}, 200},
		{"text", []string{"Content-Type:", "Content-Type: text/plain"}, 415},
		{"none", []string{"Content-Type:"}, 415},
		{"accept anything", []string{"Accept:", "Accept: */*"}, 200},
		{"accept nothing said", []string{"Accept:"}, 200},
		{"accept JSON only", []string{"Accept:", "Accept: application/json;q=0.9"}, 200},
		{"accept HTML", []string{"Accept:", "Accept: text/html, image/*"}, 406},
		{"accept streams only", []string{"Accept:", "Accept: text/event-stream"}, 406},
	} {
		t.Run("SES-04_"+tc.name, func(t *testing.T) {
			if r := f.do("POST", alice, body, append(headers, tc.header...)...); r.Status != tc.status {
				t.Errorf("%d %s", r.Status, r.Body)
			}
		})
	}
	t.Run("SES-04_listen needs a stream", func(t *testing.T) {
		r := f.do("POST", alice, statelessBody("1", spec.MethodListen, `"notifications":{}`), append(statelessHeaders(spec.MethodListen, ""), "Accept:", "Accept: application/json")...)
		if r.Status != 406 {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	})
	t.Run("SES-04_other methods", func(t *testing.T) {
		if r := f.do("PUT", alice, body); r.Status != 405 || r.Header.Get("Allow") != "GET, POST, DELETE" {
			t.Errorf("%d %v", r.Status, r.Header)
		}
	})
}

// broken fails in the way that its error says; nil panics.
type broken struct{ err error }

func (b broken) Catalog(context.Context, string) (*catalog.Catalog, error) {
	if b.err == nil {
		panic("secret detail")
	}
	return nil, b.err
}

func (b broken) Authenticate(context.Context, http.Header) (auth.Principal, error) {
	return auth.Principal{}, b.err
}

func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		name         string
		err          error
		status, code int
	}{
		{"a panic", nil, 500, -32603},
		{"a failure of ours", errors.New("secret detail"), 200, method.CodeUnavailable},
		{"an internal fault", fault.New(fault.Internal, "secret detail"), 200, method.CodeUnavailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, func(o *Options) { o.Catalogs = broken{tc.err} })
			r := f.stateless(alice, spec.MethodResources, "")
			if r.Status != tc.status || r.code(t) != tc.code || strings.Contains(r.Body, "secret") {
				t.Errorf("%d %s", r.Status, r.Body)
			}
		})
	}
	t.Run("the caller is not known now", func(t *testing.T) {
		f := newFixture(t, func(o *Options) { o.Auth = broken{fault.New(fault.Unavailable, "secret detail")} })
		if r := f.stateless(alice, spec.MethodPing, ""); r.Status != 503 || r.Header.Get("Retry-After") == "" || strings.Contains(r.Body, "secret") {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	})
	t.Run("an endpoint without callers or catalog is not made", func(t *testing.T) {
		if _, err := New(Options{}); err == nil {
			t.Error("no error")
		}
	})
}

func TestBodyOfUnknownLength(t *testing.T) {
	f := newEndpoint(t, nil)
	defer f.close()
	for body, status := range map[string]int{
		statelessBody("1", spec.MethodDiscover, ""):            200,
		`{"jsonrpc":"2.0",` + strings.Repeat(" ", 1<<20) + `}`: 413,
		"": 400,
	} {
		req := f.request("POST", alice, body, statelessHeaders(spec.MethodDiscover, "")...)
		req.ContentLength = -1
		rec := httptest.NewRecorder()
		f.endpoint.ServeHTTP(rec, req)
		if rec.Code != status {
			t.Errorf("%d bytes: status %d, want %d", len(body), rec.Code, status)
		}
	}
}

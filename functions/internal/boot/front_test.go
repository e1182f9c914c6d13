package boot

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestFront(t *testing.T) {
	for name, tc := range map[string]struct {
		key    string
		header []string
		want   int
	}{
		"AWS-25 with a front, a request that passed it is served":           {"a-key", []string{"a-key"}, http.StatusOK},
		"AWS-25 with a front, a request to the function's URL is refused":   {"a-key", nil, http.StatusForbidden},
		"AWS-25 with a front, a request with another key is refused":        {"a-key", []string{"another"}, http.StatusForbidden},
		"AWS-25 without a front, requests to the function's URL are served": {"", nil, http.StatusOK},
	} {
		t.Run(name, func(t *testing.T) {
			p := expect.Value(started(t, map[string]string{envFrontKey: tc.key}))(t)
			mux := p.Serve(http.NotFoundHandler(), "/nothing")
			r := httptest.NewRequest(http.MethodGet, "/healthz", http.NoBody)
			r.Header[frontHeader] = tc.header
			w := httptest.NewRecorder()
			p.RequireFront(mux).ServeHTTP(w, r)
			expect.Equal(t, "the status", w.Code, tc.want)
		})
	}
}

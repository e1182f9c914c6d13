package backends

import (
	"strings"
	"testing"
	"time"
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

package gateway

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

// TestHostileTemplatesAreCheap matches a template and a URI that can be divided between its expressions in many ways.
func TestHostileTemplatesAreCheap(t *testing.T) {
	m := matcher("x://" + strings.Repeat("{a*}", maxVariables) + "z")
	uri := "x://" + strings.Repeat("a,", 1000) + "!"
	const times = 200
	began := time.Now()
	for range times {
		if m(uri) {
			t.Fatal("it matches")
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("GWN-01 %d matches took %s, want at most 10s", times, took)
	}
}

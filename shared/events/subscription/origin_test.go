package subscription

import (
	"net/url"
	"testing"
)

// FuzzOriginOf compares the fast path of OriginOf with [url.Parse].
func FuzzOriginOf(f *testing.F) {
	for _, target := range []string{
		"https://example.com/hook", "http://127.0.0.1:8080/a/b?c=d#e", "https://example.com", "https://Example.COM:443/", "https://user@example.com/",
		"https://[::1]:80/x", "https://a:b/", "https://a:/", "https:///x", "https://a/%zz", "https://a/b%20c", "https://a b/", "HTTPS://a/", "x", "",
		"https://a:1:2/", "https://\u00e4.example/",
	} {
		f.Add(target)
	}
	f.Fuzz(func(t *testing.T, target string) {
		want := target
		if u, err := url.Parse(target); err == nil {
			want = u.Scheme + "://" + u.Host
		}
		if got := OriginOf(target); got != want {
			t.Errorf("OriginOf(%q): got %q, want %q", target, got, want)
		}
	})
}

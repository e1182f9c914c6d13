package subscription

import "testing"

func TestOriginsInOneSpelling(t *testing.T) {
	for text, want := range map[string]string{
		"https://hooks.example.com":          "https://hooks.example.com",
		"HTTPS://Hooks.Example.COM:443":      "https://hooks.example.com",
		"http://hooks.example.com:80/":       "http://hooks.example.com",
		"http://hooks.example.com:443":       "http://hooks.example.com:443",
		"https://[2001:DB8::1]:8443":         "https://[2001:db8::1]:8443",
		"https://[2001:db8::443]":            "https://[2001:db8::443]",
		"hooks.example.com":                  "hooks.example.com",
		"":                                   "",
		"https://hooks.example.com:4430/a?b": "https://hooks.example.com:4430",
	} {
		if got := SameOrigin(text); got != want {
			t.Errorf("OPS-01 %q: got %q, want %q", text, got, want)
		}
	}
}

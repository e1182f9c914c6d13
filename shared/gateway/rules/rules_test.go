package rules

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-25: deny takes precedence over allow, and an empty allow means everything.
func TestRules(t *testing.T) {
	for _, tc := range []struct {
		what   string
		rules  Rules
		name   string
		ok     bool
		scopes []string
	}{
		{"no rules", Rules{}, "anything", true, nil},
		{"not allowed", Rules{Allow: []string{"get_*"}}, "delete_issue", false, nil},
		{"denied", Rules{Deny: []string{"*delete*"}}, "bulk_delete_issues", false, nil},
		{"deny wins", Rules{Allow: []string{"*"}, Deny: []string{"get_secret"}}, "get_secret", false, nil},
		{"a * matches a slash", Rules{Deny: []string{"admin*"}}, "admin/users/delete", false, nil},
		{"the whole name", Rules{Allow: []string{"get"}}, "get_more", false, nil},
		{"a name that is too long", Rules{Deny: []string{"x"}}, strings.Repeat("a", maxName+1), false, nil},
		{"case", Rules{Allow: []string{"get_*"}}, "GET_issue", false, nil},
		{"no other wildcards", Rules{Allow: []string{"a?[b]"}}, "a?[b]", true, nil},
		{"a scope", Rules{Scopes: map[string][]string{"write_*": {"write"}}}, "write_file", true, []string{"write"}},
		{"all scopes", Rules{Scopes: map[string][]string{"write_*": {"write", "a"}, "*": {"a"}}}, "write_file", true, []string{"a", "write"}},
		{"scopes of a denied name", Rules{Deny: []string{"*"}, Scopes: map[string][]string{"*": {"a"}}}, "x", false, nil},
	} {
		scopes, ok := New(tc.rules).Permits(tc.name)
		if ok != tc.ok || !slices.Equal(scopes, tc.scopes) {
			t.Errorf("%s: %q: got %v, %v, want %v, %v", tc.what, tc.name, scopes, ok, tc.scopes, tc.ok)
		}
	}
}

// GWN-25: another spelling of a URI, which a lenient backend may read as the same one, does not evade the rules.
func TestRulesForURIs(t *testing.T) {
	public := Rules{Allow: []string{"file:///public/*"}}
	private := Rules{Deny: []string{"file:///secret/*"}, Scopes: map[string][]string{"file:///team/*": {"team"}}}
	notes := Rules{Allow: []string{"notes://public/*"}}
	exact := Rules{Deny: []string{"file:///key", "x://list?page=1"}, Scopes: map[string][]string{"file:///team": {"team"}}}
	for _, tc := range []struct {
		rules  Rules
		uri    string
		ok     bool
		scopes []string
	}{
		{public, "file:///public/a.txt", true, nil},
		{public, "file:///public/../secret/a", false, nil},
		{public, "file:///public/%2e%2e/secret/a", false, nil},
		{public, "file:///public/..%2fsecret%2fa", false, nil},
		{public, "file:///public/%252e%252e/secret/a", false, nil},
		{public, `file:///public/..\secret\a`, false, nil},
		{public, "file:///public/" + strings.Repeat("%25", 9) + "2e", true, nil},
		{public, "file:///public/%2525252525252e%2e/x", false, nil},
		{Rules{Allow: []string{"urn:isbn:*"}}, "urn:isbn:0451450523", true, nil},
		{Rules{Deny: []string{"x://Host/*"}}, "X://hOST/a", false, nil},
		{Rules{Deny: []string{"urn:ISBN:*"}}, "URN:ISBN:1", false, nil},
		{private, "file:///a.txt", true, nil},
		{private, "file:///secret/a", false, nil},
		{private, "FILE:///secret/a", false, nil},
		{private, "file:////secret//a", false, nil},
		{private, "file:///x/../secret/a", false, nil},
		{private, "file:///%73ecret/a", false, nil},
		{private, "file:///team/a", true, []string{"team"}},
		{private, "file:///x/../team/a", true, []string{"team"}},
		{public, "file:///public/a?x=1#y", true, nil},
		{public, "file:///public/../secret/a?/../../public/x", false, nil},
		{public, "file:///public/x?/../../secret/a", false, nil},
		{private, "file:///%73ecret/a#/../../public/x", false, nil},
		{notes, "notes://public/a", true, nil},
		{notes, "notes://public/../private/a", false, nil},
		{Rules{Deny: []string{"notes://private/*"}}, "notes:///private/a", false, nil},
		{Rules{Deny: []string{"notes://private/*"}}, "notes://./private/a", false, nil},
		{public, "file:///public/.\t./secret/a", false, nil},
		{private, "file://localhost/secret/a", false, nil},
		{exact, "file:///key ", false, nil},
		{exact, "file:///ke\ty", false, nil},
		{exact, "file:///key", false, nil},
		{exact, "file:///key#x", false, nil},
		{exact, "file:///key/", false, nil},
		{exact, "file:///key2", true, nil},
		{exact, "file:///team?x", true, []string{"team"}},
		{exact, "x://list?page=1", false, nil},
		{exact, "x://list?page=2", true, nil},
		{Rules{Allow: []string{"x://list?page=*"}}, "x://list?page=1", true, nil},
		{Rules{Allow: []string{"*/docs/*"}}, "file://docs/a", true, nil},
	} {
		scopes, ok := NewForURIs(tc.rules).Permits(tc.uri)
		if ok != tc.ok || !slices.Equal(scopes, tc.scopes) {
			t.Errorf("%v: %s: got %v, %v, want %v, %v", tc.rules, tc.uri, scopes, ok, tc.scopes, tc.ok)
		}
	}
}

func TestCheckGlob(t *testing.T) {
	for _, glob := range []string{"*", "get_*", "file:///data/*", "файл*", strings.Repeat("a", maxGlob)} {
		expect.OK(t, CheckGlob(glob), glob)
	}
	for _, glob := range []string{"", strings.Repeat("a", maxGlob+1), "a\nb", "a\xff", "%252525252e", "x://a?/../b"} {
		if CheckGlob(glob) == nil {
			t.Errorf("%q: got no error", glob)
		}
	}
}

// GWN-25: no glob and no name keep the gateway busy, for example a name that almost fits in very many ways.
func TestGlobsAreFast(t *testing.T) {
	glob, name := strings.Repeat("*a", maxGlob/2-1)+"*b", strings.Repeat("a", maxName)
	began := time.Now()
	expect.True(t, "it does not match a text without b", !matchGlob(glob, name))
	expect.AtMost(t, "the time that it took", time.Since(began), time.Second)
}

// GWN-25: the fuzzer compares the globs with a regular expression, and checks that a normal form is stable.
func FuzzRules(f *testing.F) {
	f.Add("file:///public/*", "file:///public/../a")
	f.Add("*delete*", "bulk_delete")
	f.Add("**a*", "ba")
	f.Add("a%2e%2E/*", "a/%252e")
	f.Fuzz(func(t *testing.T, glob, name string) {
		if len(name) > maxName || CheckGlob(glob) != nil {
			return
		}
		// Bytes instead of runes, because names may be invalid Unicode.
		want := regexp.MustCompile(`(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(latin1(glob)), `\*`, `.*`) + `$`).MatchString(latin1(name))
		expect.MustEqual(t, glob+" matches "+name, matchGlob(glob, name), want)
		if plain, ok := unify(name); ok {
			normal, flat := normalize(plain), flatten(plain)
			again, ok := unify(normal)
			if !ok || normalize(again) != normal {
				t.Fatalf("the normal form %q of %q has the normal form %q", normal, name, normalize(again))
			}
			if strings.Contains("/"+flat+"/", "/../") {
				t.Fatalf("the flat form %q of %q goes up", flat, name)
			}
			if at, rest, found := strings.Cut(normal, "://"); found && strings.Contains("/"+rest+"/", "/../") && !strings.HasPrefix(rest, "..") {
				t.Fatalf("the normal form %q of %q goes up below %s", normal, name, at)
			}
		}
		allowed := NewForURIs(Rules{Allow: []string{glob}})
		if _, ok := allowed.Permits(name); ok && !matchGlob(glob, name) {
			t.Fatalf("%q allows %q, which it does not match", glob, name)
		}
		denied := NewForURIs(Rules{Deny: []string{glob}})
		if _, ok := denied.Permits(name); ok && matchGlob(glob, name) {
			t.Fatalf("%q does not deny %q, which it matches", glob, name)
		}
	})
}

// latin1 returns a text with one character per byte.
func latin1(s string) string {
	var out strings.Builder
	for i := range len(s) {
		out.WriteRune(rune(s[i]))
	}
	return out.String()
}

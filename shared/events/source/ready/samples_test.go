package ready_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/match"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/ingest"
	"github.com/mcp-events/mcpevents/shared/events/source/ready"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
	"github.com/mcp-events/mcpevents/test/expect"
)

// sample is a message from a provider's documentation, and the event that it should become.
type sample struct {
	File string
	// From is the page with the message. Note describes how the sample differs from it.
	From, Note string
	Headers    map[string]string
	Want       struct {
		Source, Name, URI, ID string
		// Time is empty if the provider sends none.
		Time string
		Data any
	}
	// Arguments are arguments that an agent might subscribe with and that match the event.
	Arguments map[string]any

	body []byte
}

func samples(t *testing.T, provider string) []sample {
	t.Helper()
	dir := filepath.Join("testdata", provider)
	text := expect.Value(os.ReadFile(filepath.Join(dir, "samples.yaml")))(t)
	var all []sample
	d := yaml.NewDecoder(bytes.NewReader(text))
	d.KnownFields(true)
	expect.OK(t, d.Decode(&all))
	for i := range all {
		all[i].body = expect.Value(os.ReadFile(filepath.Join(dir, all[i].File)))(t)
	}
	return all
}

// read parses the generated files as an operator's server would.
func read(t *testing.T, providers ...ready.Provider) (*catalog.Catalog, *config.Config) {
	t.Helper()
	cat := expect.Value(catalog.Parse(ready.Catalog(providers...)))(t)
	return cat, expect.Value(config.Parse(ready.Config(providers...)))(t)
}

func sourceOf(t *testing.T, c *config.Config, name string) source.Source {
	t.Helper()
	i := slices.IndexFunc(c.Sources, func(s source.Source) bool { return s.Name == name })
	if i < 0 {
		t.Fatalf("there is no source %s", name)
	}
	return c.Sources[i]
}

// sharedSecret is used as the secret of every provider.
const sharedSecret = "a-secret-of-the-tests-0123456789"

func TestMain(m *testing.M) {
	for _, p := range ready.Providers() {
		for _, name := range variables.FindAllStringSubmatch(string(ready.Config(p)), -1) {
			if err := os.Setenv(name[1], sharedSecret); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

func mac(text string) string {
	h := hmac.New(sha256.New, []byte(sharedSecret))
	h.Write([]byte(text))
	return hex.EncodeToString(h.Sum(nil))
}

// sign returns the path and headers with which a provider sends a body, according to its documentation. It does not
// use package verify or the configuration, so that it cannot repeat their mistakes.
func sign(provider string, body []byte, now time.Time) (path string, headers map[string]string) {
	text, at := string(body), now.Unix()
	path = "/sources/" + provider
	switch provider {
	case "github":
		headers = map[string]string{"X-Hub-Signature-256": "sha256=" + mac(text)}
	case "stripe":
		headers = map[string]string{"Stripe-Signature": fmt.Sprintf("t=%d,v1=%s", at, mac(fmt.Sprintf("%d.%s", at, text)))}
	case "slack":
		headers = map[string]string{"X-Slack-Request-Timestamp": fmt.Sprint(at), "X-Slack-Signature": "v0=" + mac(fmt.Sprintf("v0:%d:%s", at, text))}
	case "linear":
		headers = map[string]string{"Linear-Signature": mac(text)}
	case "pagerduty": // there are two while the secret is rotated
		headers = map[string]string{"X-PagerDuty-Signature": "v1=" + strings.Repeat("0f", 32) + ",v1=" + mac(text)}
	case "alertmanager":
		path += "/" + sharedSecret
	}
	return path, headers
}

// request returns the sample as an HTTP request.
func (s sample) request(provider string, now time.Time) []byte {
	path, headers := sign(provider, s.body, now)
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", path, len(s.body))
	for _, h := range []map[string]string{s.Headers, headers} {
		for name, value := range h {
			fmt.Fprintf(&b, "%s: %s\r\n", name, value)
		}
	}
	b.WriteString("\r\n")
	b.Write(s.body)
	return b.Bytes()
}

// TestSamples runs each sample through its source and the catalog's schema, as mcpevents source check does. A subscriber with its
// arguments gets the event, and one with another value of an argument does not.
func TestSamples(t *testing.T) {
	for _, p := range ready.Providers() {
		cat, c := read(t, p)
		used := map[string]bool{} // mappings
		for _, s := range samples(t, p.Name) {
			t.Run("SRC-06 "+p.Name+" "+s.File, func(t *testing.T) {
				expect.Equal(t, "the scheme of the page in from", expect.Value(url.Parse(s.From))(t).Scheme, "https")
				src, now := sourceOf(t, c, s.Want.Source), time.Now()
				got := try(t, cat, src, s, p.Name, now)
				used[fmt.Sprint(s.Want.Source, got.Mapping)] = true
				if again := try(t, cat, src, s, p.Name, now.Add(time.Minute)); got.ID == "" || again.ID != got.ID || again.URI != got.URI {
					t.Errorf("redelivered, it has the id %q and the URI %s; first it had %q and %s", again.ID, again.URI, got.ID, got.URI)
				}
				selects := func(arguments map[string]any) bool {
					text := expect.Value(json.Marshal(arguments))(t)
					chosen := expect.Value(match.Select(cat.ByName(got.Name), text, auth.Principal{}))(t)
					return match.Matches(chosen.Pattern.Key, got.URI) && chosen.Wants(&event.Event{Name: got.Name, URI: got.URI, Data: got.Data})
				}
				expect.True(t, "its arguments select it", selects(s.Arguments))
				for name, value := range s.Arguments {
					changed := maps.Clone(s.Arguments)
					changed[name] = other(value)
					expect.True(t, fmt.Sprintf("it is not selected by another value of %s than %v", name, value), !selects(changed))
				}
			})
		}
		for _, s := range c.Sources {
			for i := range s.Events {
				expect.True(t, fmt.Sprintf("SRC-06 the mapping %d of the source %s has a sample", i+1, s.Name), used[fmt.Sprint(s.Name, i+1)])
			}
		}
	}
}

// try compares the event of a sample with the expected one.
func try(t *testing.T, cat *catalog.Catalog, src source.Source, s sample, provider string, now time.Time) ingest.Trial {
	t.Helper()
	raw := s.body
	if src.From == source.HTTP {
		raw = s.request(provider, now)
	}
	trials := expect.Value(ingest.Try(t.Context(), cat, src, raw, now, secret.FromEnvironment))(t)
	expect.MustEqual(t, "the number of trials", len(trials), 1)
	got := trials[0]
	if got.Kind != ingest.Accepted || src.From == source.HTTP && got.Signature != "verified" {
		t.Fatalf("%s, signature %s: %s %v", got.Kind, got.Signature, got.Reason, got.Faults)
	}
	if got.Name != s.Want.Name || got.URI != s.Want.URI || s.Want.ID != "" && got.ID != s.Want.ID {
		t.Errorf("got %s %s %q, want %s %s %q", got.Name, got.URI, got.ID, s.Want.Name, s.Want.URI, s.Want.ID)
	}
	if want := instant(t, s.Want.Time); !got.Time.Equal(want) {
		t.Errorf("the time is %s, want %s", got.Time, want)
	}
	expect.Deep(t, "the data", decoded(t, got.Data), document(t, s.Want.Data))
	return got
}

// TestNullDraft: a server without draft pull requests sends null for draft.
func TestNullDraft(t *testing.T) {
	cat, c := read(t, expect.Value(ready.Select("github"))(t)...)
	for _, s := range samples(t, "github") {
		if s.File != "pull_request.labeled.json" {
			continue
		}
		s.body = bytes.Replace(s.body, []byte(`"draft": false`), []byte(`"draft": null`), 1)
		s.Want.Data.(map[string]any)["draft"] = nil
		t.Run("SRC-06 a pull request whose draft is null becomes an event", func(t *testing.T) {
			try(t, cat, sourceOf(t, c, "github"), s, "github", time.Now())
		})
	}
}

func instant(t *testing.T, text string) (at time.Time) {
	t.Helper()
	if text == "" {
		return at
	}
	return expect.Value(time.Parse(time.RFC3339, text))(t)
}

// document converts a value decoded from YAML to its decoded JSON form.
func document(t *testing.T, v any) any {
	t.Helper()
	return decoded(t, expect.Value(json.Marshal(v))(t))
}

func decoded(t *testing.T, text []byte) (v any) {
	t.Helper()
	expect.OK(t, json.Unmarshal(text, &v))
	return v
}

// TestSources checks that the generated configuration is valid and that its sources fit the generated catalog.
func TestSources(t *testing.T) {
	all := ready.Providers()
	cat, c := read(t, all...)
	t.Run("SRC-06 all sources fit the catalog", func(t *testing.T) {
		used := map[string]bool{}
		for _, s := range c.Sources {
			expect.OK(t, ingest.CheckCatalog(cat, s))
			for _, m := range s.Events {
				used[m.Name] = true
			}
		}
		for _, e := range cat.Entries() {
			expect.True(t, "a source makes "+e.Name, used[e.Name])
		}
	})
	for _, p := range all {
		_, own := read(t, p)
		for _, s := range own.Sources {
			t.Run("SRC-06 the steps of "+p.Name+" name the address of "+s.Name, func(t *testing.T) {
				where := "the source `" + s.Name + "`"
				if s.From == source.HTTP {
					where = "`https://HOST/sources/" + s.Name
				}
				if (s.From == source.HTTP || len(own.Sources) > 1) && !strings.Contains(strings.Join(p.Setup, "\n"), where) {
					t.Errorf("no step names %s", where)
				}
			})
		}
	}
}

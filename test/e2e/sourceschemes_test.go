//go:build unix

package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	sender "github.com/mcp-events/mcpevents/test/provider"
)

const schemesCatalog = `
events:
  - {name: any.thing, uri: event://any/thing, payloadSchema: {type: object}}
`

// unloggable is in every payload, and must not be in any log.
const unloggable = "do-not-log-this-payload"

// shot is a request that differs from the provider's requests, or repeats one.
type shot struct {
	name   string
	body   string
	signed string // the signed text; empty means the body
	at     time.Duration
	edit   func(*http.Request)
	want   int
	// only selects the schemes to which the shot applies, for example the schemes that sign a time. nil means all.
	only func(sender.Scheme) bool
}

// signsBody reports whether a scheme signs the body. GitLab sends a token instead.
func signsBody(s sender.Scheme) bool { return s.Credential != "" && s.Name != "gitlab" }

func isTimed(s sender.Scheme) bool { return s.Timed }

// isFirst selects one scheme, for shots at what is the same in all schemes.
func isFirst(s sender.Scheme) bool { return s.Name == "github" }

func with1(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set(name, value) }
}

func zipped(text string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(text))
	_ = z.Close()
	return b.String()
}

// ofMember returns a payload with an additional member.
func ofMember(member string) string { return `{"text":"` + unloggable + `",` + member + `}` }

func shots() []shot {
	plain := ofMember(`"n":1`)
	return []shot{
		{name: "SRC-02 a body that was changed", body: plain, signed: "{}", want: 401, only: signsBody},
		{name: "SRC-02 too old", body: plain, at: -11 * time.Minute, want: 401, only: isTimed},
		{name: "SRC-02 old, and within the tolerance", body: plain, at: -20 * time.Second, want: 202},
		{name: "SRC-04 a payload that does not match the schema", body: `["` + unloggable + `"]`, want: 422, only: isFirst},
		{name: "SRC-04 an event that is too large", body: ofMember(`"n":"` + strings.Repeat("a", 250<<10) + `"`), want: 413, only: isFirst},
		{name: "AUT-06 from a page of another site", body: plain, edit: with1("Origin", "https://evil.example"), want: 403, only: isFirst},
		{name: "AUT-06 with an unknown host name", body: plain, edit: func(r *http.Request) { r.Host = "evil.example" }, want: 403, only: isFirst},
		{name: "AUT-06 with a tunnel's host name", body: plain, edit: func(r *http.Request) { r.Host = "hooks.example.com" }, want: 202, only: isFirst},
	}
}

// schemes runs the tests of all schemes against one server.
type schemes struct {
	*harness.Server
	poller *follower

	mu    sync.Mutex
	taken map[string]bool // ids of accepted events
	said  []string        // signatures and keys that were sent
}

// TestSourceSchemes sends each scheme the requests of hostile, broken and impatient senders. Each is refused for the
// right reason, or becomes one event. The tests of shared/events/source have all kinds of bodies.
func TestSourceSchemes(t *testing.T) {
	t.Parallel()
	config := "\nsources:\n"
	for _, s := range sender.Schemes() {
		config += s.Source("any.thing")
	}
	s := &schemes{taken: map[string]bool{}, Server: harness.StartServer(t, harness.ServerOptions{
		Config: config, Catalog: schemesCatalog, Env: secretsOfSources(), Args: []string{"--allowed-hosts", "hooks.example.com", "--log-level", "debug"},
	})}
	s.poller = follow(t, &s.Target, "any.thing", object{})
	all := shots()
	for _, scheme := range sender.Schemes() {
		t.Run(scheme.Name, func(t *testing.T) {
			for _, x := range all {
				if x.only == nil || x.only(scheme) {
					t.Run(x.name, func(t *testing.T) { s.shoot(t, scheme, x) })
				}
			}
			t.Run("SRC-02 forged", func(t *testing.T) { s.forge(t, scheme) })
			if isFirst(scheme) {
				t.Run("SRC-04 twenty concurrent requests become one event", func(t *testing.T) { s.together(t, scheme) })
			}
		})
	}
	t.Run("SRC-04 each event arrived once", func(t *testing.T) {
		ids := eventIDs(s.poller.wait(t, len(s.taken)))
		slices.Sort(ids)
		expect.Equal(t, "the number of events", len(ids), len(s.taken))
		expect.Equal(t, "the number of different events", len(slices.Compact(ids)), len(s.taken))
	})
	t.Run("SRC-02 the log contains no secrets", func(t *testing.T) {
		log := s.Output()
		for _, secret := range append(s.said, unloggable, "panic") {
			expect.Lacks(t, "the log", log, secret)
		}
	})
}

// fire sends one request and records what the log must not contain.
func (s *schemes) fire(t *testing.T, scheme sender.Scheme, id, body, signed string, at time.Time, edit func(*http.Request)) *harness.HTTPAnswer {
	t.Helper()
	header := scheme.Headers(id, []byte(signed), at)
	path := scheme.Path(scheme.Name)
	a := post(t, s.Base()+path, header, []byte(body), edit)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range []string{scheme.Secret, header.Get(scheme.Credential)} {
		if secret != "" && !slices.Contains(s.said, secret) {
			s.said = append(s.said, secret)
		}
		if secret != "" && strings.Contains(string(a.Body), secret) {
			t.Errorf("the response contains %.20s…: %s", secret, a.Body)
		}
	}
	if a.Status == http.StatusAccepted {
		s.taken[id] = true
	}
	return a
}

func (s *schemes) shoot(t *testing.T, scheme sender.Scheme, x shot) {
	id := fmt.Sprintf("%s-%d", scheme.Name, time.Now().UnixNano())
	// The same body under another id would be a replay.
	if body := strings.Replace(x.body, unloggable, unloggable+id, 1); len(body) < publish.MaxBody {
		x.body = body
	}
	signed := x.body
	if x.signed != "" {
		signed = x.signed
	}
	a := s.fire(t, scheme, id, x.body, signed, time.Now().Add(x.at), x.edit)
	expect.Equal(t, fmt.Sprintf("the status of %.300s", a.Body), a.Status, x.want)
	switch text := string(a.Body); {
	case a.Status == 403 && !strings.Contains(text, "--allowed-"):
		t.Errorf("the error does not say what to set: %s", text)
	case a.Status == 202 && !strings.Contains(text, `"id":"`+id+`"`):
		t.Errorf("got %s, want %s", text, id)
	case a.Status == 422 && !strings.Contains(text, `"pointer"`):
		t.Errorf("the pointer is missing in %s", text)
	}
}

// forge sends requests without a signature, and with one of another secret. The tests of shared/events/source/verify have all faults.
func (s *schemes) forge(t *testing.T, scheme sender.Scheme) {
	body := []byte(ofMember(`"n":"forged"`))
	other := scheme
	other.Secret = strings.NewReplacer("0", "7", "5", "7", "9", "8").Replace(scheme.Secret)
	headers := other.Headers("forged", body, time.Now())
	for range 2 {
		if a := post(t, s.Base()+other.Path(scheme.Name), headers, body, nil); a.Status != http.StatusUnauthorized || strings.Contains(string(a.Body), "accepted") {
			t.Errorf("signature %q: %d %s", headers.Get(scheme.Credential), a.Status, a.Body)
		}
		headers.Del(scheme.Credential)
	}
}

// together sends the same delivery on twenty connections.
func (s *schemes) together(t *testing.T, scheme sender.Scheme) {
	id, body := "together-"+scheme.Name, ofMember(`"n":"`+scheme.Name+`"`)
	var wg sync.WaitGroup
	at := time.Now()
	for range 20 {
		wg.Go(func() {
			if a := s.fire(t, scheme, id, body, body, at, nil); a.Status != http.StatusAccepted || !strings.Contains(string(a.Body), id) {
				t.Errorf("%d %s", a.Status, a.Body)
			}
		})
	}
	wg.Wait()
}

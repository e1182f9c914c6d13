//go:build unix

package e2e

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
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
	zip    bool   // whether the body is compressed after it was signed
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
	form := with1("Content-Type", "application/x-www-form-urlencoded")
	gzipped := with1("Content-Encoding", "gzip")
	plain := ofMember(`"n":1`)
	return []shot{
		{name: "SRC-02 a body that was changed", body: plain, signed: "{}", want: 401, only: signsBody},
		{name: "SRC-02 too old", body: plain, at: -11 * time.Minute, want: 401, only: isTimed},
		{name: "SRC-02 old, and within the tolerance", body: plain, at: -20 * time.Second, want: 202},
		{name: "SRC-02 a forged body that is not GZIP", body: plain, signed: "{}", edit: gzipped, want: 401, only: isFirst},
		{name: "SRC-05 GZIP, signed before", body: plain, zip: true, edit: gzipped, want: 202, only: isFirst},
		{name: "SRC-05 GZIP of too large a body", body: zipped(strings.Repeat(" ", 50<<20)), edit: gzipped, want: 413, only: isFirst},
		{name: "SRC-05 half an object", body: plain[:20], want: 400, only: isFirst},
		{name: "SRC-05 a form with a payload", body: "payload=%7B%22text%22%3A%22" + unloggable + "%22%7D", edit: form, want: 202, only: isFirst},
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
	if x.zip {
		x.body = zipped(x.body)
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

// TestSourceFlood sends more requests to a source than its quota allows: a burst of 1,000, and then one every quarter of an
// hour, so that the number of accepted requests does not depend on the speed of the machine.
func TestSourceFlood(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{
		Config: githubSource + "quotas: [{principal: source/github, publishRate: 0.001}]\n", Env: secretsOfSources(),
	})
	body := pullBody("opened", "flood", 1)
	forged := schemeOf("github")
	forged.Secret = "not the secret of GitHub"
	answers := func(n int, headers http.Header) (statuses map[int]int, last *harness.HTTPAnswer) {
		statuses = map[int]int{}
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range n / 16 {
					a := post(t, s.Base()+"/sources/github", headers.Clone(), body, nil)
					mu.Lock()
					if statuses[a.Status]++; a.Status != http.StatusAccepted {
						last = a
					}
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		return statuses, last
	}
	if got, _ := answers(160, forged.Headers("f-1", body, time.Now())); got[http.StatusUnauthorized] != 160 {
		t.Errorf("unsigned requests got %v, want 401 for all", got)
	}
	const burst, more = 1000, 40
	got, last := answers(burst+more, schemeOf("github").Headers("f-2", body, time.Now()))
	t.Run("SRC-05 a signed flood is limited, and unsigned requests do not count", func(t *testing.T) {
		if accepted, refused := got[http.StatusAccepted], got[http.StatusTooManyRequests]; accepted < burst || refused == 0 || accepted+refused != burst+more {
			t.Fatalf("got %v, want %d times 202 and then 429", got, burst)
		}
	})
	t.Run("SRC-05 it is told when to try again", func(t *testing.T) {
		if after, err := strconv.Atoi(last.Header.Get("Retry-After")); err != nil || after < 1 || !strings.Contains(string(last.Body), `"publishRate"`) {
			t.Errorf("got %v %s", last.Header, last.Body)
		}
	})
}

// TestSourceSlowBody delays the rest of many bodies. Other senders must still be answered.
func TestSourceSlowBody(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Config: githubSource, Env: secretsOfSources(), Fast: true})
	addr := strings.TrimPrefix(s.Base(), "http://")
	var slow []net.Conn
	for range 40 { // each sends enough to need a slot, of which there are 25
		c := expect.Value(net.Dial("tcp", addr))(t)
		defer c.Close()
		expect.OK(t, expect.ErrOf(fmt.Fprintf(c, "POST /sources/github HTTP/1.1\r\nHost: %s\r\nContent-Length: 5000000\r\n\r\n%s", addr, strings.Repeat("{", 300_000))))
		slow = append(slow, c)
	}
	t.Run("SRC-05 others are answered", func(t *testing.T) {
		for i := range 20 {
			id := fmt.Sprint("s-", i)
			wantAccepted(t, github(t, s, "github", id, pullBody("opened", "slow", i+1)), id)
		}
	})
	t.Run("SRC-05 the slow requests are ended", func(t *testing.T) {
		refused, late := 0, 0
		for _, c := range slow {
			expect.OK(t, c.SetReadDeadline(time.Now().Add(harness.Patience)))
			answer, err := io.ReadAll(c)
			switch {
			case err != nil && len(answer) == 0:
				t.Errorf("it was not answered: %v", err)
			case strings.Contains(string(answer), "largeBodies"):
				refused++
			case strings.Contains(string(answer), "ended early"):
				late++
			}
		}
		// On a slow machine, the first slots are free again before the last request begins.
		if refused > 15 || refused+late != len(slow) {
			t.Errorf("%d were refused and %d ended, want at most 15 and the rest of %d", refused, late, len(slow))
		}
		wantAccepted(t, github(t, s, "github", "s-last", pullBody("opened", "slow", 99)), "s-last")
	})
}

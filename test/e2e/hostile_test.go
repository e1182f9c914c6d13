//go:build unix

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// restrained limits what the hostile subscriber may use, and how often auditor may send requests.
const restrained = `
quotas:
  - {principal: bob, subscriptions: 20, registrationRate: 0}
  - {principal: auditor, registrationRate: 2}
`

// TestHostileSubscriber checks that a malicious subscriber is limited, and that the owner of an address that it uses
// as its endpoint receives only the permitted challenges.
func TestHostileSubscriber(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := harness.StartServer(t, harness.ServerOptions{Config: restrained, Args: []string{"--verify-registrations"}})
		h := &hostile{Target: &s.Target, processes: func() int { return 1 }, log: s.Output}
		h.met = func(limit string) bool {
			return strings.Contains(s.Metrics(t), `mcpevents_limits_reached_total{limit="`+limit+`"}`)
		}
		h.attack(t)
		t.Run("SRF-07 a flood of registrations with new hosts does not use more and more memory", func(t *testing.T) { h.fillMemory(t, s) })
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		aws := harness.StartAWS(t, harness.AWSOptions{Config: restrained, Env: map[string]string{"MCPEVENTS_VERIFY_REGISTRATIONS": "true"}})
		catalog, err := os.ReadFile(filepath.Join(harness.Root(t), "catalog.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		aws.ApplyCatalog(t, "elsewhere", string(catalog)) // where foreign belongs
		h := &hostile{Target: &aws.Target, processes: func() int { return aws.Starts("RegisterFunction") }, log: aws.Output}
		h.met = func(limit string) bool {
			return strings.Contains(aws.Output(), `"limit":"`+limit+`","mcpevents_limits_reached":[`)
		}
		h.attack(t)
	})
}

// hostile is a malicious subscriber with a valid key, bob's.
type hostile struct {
	*harness.Target
	processes func() int              // number of processes that accept subscriptions, each with its own limits
	log       func() string           // returns the server's log
	met       func(limit string) bool // reports whether the metrics count the limit
	receiver  *harness.Receiver
	neighbour *harness.Endpoint // alice's

	mu      sync.Mutex
	secrets []string
}

func (h *hostile) attack(t *testing.T) {
	h.receiver = harness.NewReceiver(t)
	h.neighbour = h.receiver.Endpoint("neighbour")
	t.Run("EVX-12 SRF-07 an old challenge is not accepted", h.replayChallenges)
	t.Run("EVX-07 forged cursors are refused before a challenge is sent", h.forgeCursors)
	t.Run("EVX-08 secrets of the wrong size are refused before a challenge is sent", h.sendSecrets)
	t.Run("EVX-09 extreme lifetimes are limited", h.stretchLifetimes)
	t.Run("OPS-15 the quota holds during a flood, and affects only this principal", h.fillQuota)
	t.Run("OPS-15 SRF-07 the quota of registrations holds", h.hurry)
	t.Run("SRF-07 a victim receives only the permitted challenges", h.floodVictim)
	t.Run("EVS-10 no secret is in the log", func(t *testing.T) {
		log := h.log()
		for _, secret := range h.secrets {
			if len(secret) > 16 && strings.Contains(log, strings.TrimPrefix(secret, "whsec_")) {
				t.Errorf("the log contains %.12s…", secret)
			}
		}
	})
}

// secret returns a new secret, or the text of one with the given number of bytes.
func (h *hostile) secret(size int) string {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(rand.IntN(256))
	}
	secret := "whsec_" + base64.StdEncoding.EncodeToString(b)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.secrets = append(h.secrets, secret)
	return secret
}

// refused checks that the request is refused with one of the codes, and that the response does not contain the
// secret.
func (h *hostile) refused(t *testing.T, params object, codes ...int) {
	t.Helper()
	a := h.Stateless("bob").Do(t, "events/subscribe", params)
	secret, _ := params["delivery"].(object)["secret"].(string)
	if a.Error == nil {
		t.Errorf("the request was accepted: %s", a.Body)
		return
	}
	if !slices.Contains(codes, a.Error.Code) || a.Error.Message == "" {
		t.Errorf("got %.300s, want an error of %d", a.Body, codes)
	}
	if len(secret) > 16 && strings.Contains(string(a.Body), secret[6:16]) {
		t.Errorf("the response contains the secret: %.300s", a.Body)
	}
}

func (h *hostile) replayChallenges(t *testing.T) {
	hook := h.receiver.Endpoint("replayer")
	before := "none"
	hook.AnswerChallenge(func(d *harness.Delivery) harness.Reply {
		answer := before
		before = d.Challenge
		return harness.Reply{Body: `{"challenge":"` + answer + `"}`}
	})
	for range 3 {
		h.refused(t, subscription("ci.build_finished", nil, hook.URL(), h.secret(32)), -32015)
	}
	seen := map[string]bool{}
	for _, d := range hook.Challenges() {
		seen[d.Challenge] = true
	}
	if len(seen) != 3 {
		t.Errorf("%d different challenges, want 3", len(seen))
	}
}

func (h *hostile) forgeCursors(t *testing.T) {
	cursorOf := func(principal string) string {
		var answer struct{ Cursor string }
		h.Stateless(principal).Call(t, "events/poll", object{"name": "ci.build_finished", "arguments": object{}}, &answer)
		return answer.Cursor
	}
	good, foreign := cursorOf("bob"), cursorOf("foreign")
	middle := len(good) / 2
	other := "A"
	if good[middle] == 'A' {
		other = "B"
	}
	hook := h.receiver.Endpoint("forger")
	for name, cursor := range map[string]any{
		"garbage": "AAAA", "half": good[:middle], "changed": good[:middle] + other + good[middle+1:], "longer": good + good,
		"of another workspace": foreign, "huge": strings.Repeat("A", 64<<10), "a number": 1, "an object": object{"at": 0},
	} {
		t.Run(name, func(t *testing.T) {
			h.refused(t, with(subscription("ci.build_finished", nil, hook.URL(), h.secret(32)), "cursor", cursor), -32602)
		})
	}
	if n := len(hook.Challenges()); n != 0 {
		t.Errorf("%d challenges were sent", n)
	}
}

func (h *hostile) sendSecrets(t *testing.T) {
	hook := h.receiver.Endpoint("keyless")
	secrets := map[string]string{"no base64": "whsec_" + strings.Repeat("%", 44), "no prefix": h.secret(32)[6:], "the prefix alone": "whsec_"}
	for _, size := range []int{1, 16, 23, 65, 1 << 10, 64 << 10} {
		secrets[fmt.Sprint(size, " bytes")] = h.secret(size)
	}
	for name, secret := range secrets {
		t.Run(name, func(t *testing.T) { h.refused(t, subscription("ci.build_finished", nil, hook.URL(), secret), -32602) })
	}
	if n := len(hook.Challenges()); n != 0 {
		t.Errorf("%d challenges were sent", n)
	}
}

func (h *hostile) stretchLifetimes(t *testing.T) {
	hook := h.receiver.Endpoint("immortal")
	const most = 168 * time.Hour
	for _, ttl := range []any{
		-1, 0, 1, 1.5, json.Number("1e18"), json.Number("1e300"), json.Number("9223372036854775807"), json.Number("9223372036854775808"), nil, "1h",
		json.Number("-9223372036854775808"),
		[]int{1},
	} {
		t.Run(fmt.Sprint(ttl), func(t *testing.T) {
			a := h.Stateless("bob").Do(t, "events/subscribe", with(subscription("ci.build_finished", nil, hook.URL(), h.secret(32)), "ttlMs", ttl))
			if a.Error != nil {
				if a.Error.Code != -32602 || !strings.Contains(a.Error.Error(), "ttlMs") {
					t.Errorf("got %v", a.Error)
				}
				return
			}
			r := decode[subscribed](t, a.Result)
			if r.RefreshBefore == nil {
				t.Fatal("the subscription does not expire")
			}
			until, err := time.Parse(time.RFC3339, *r.RefreshBefore)
			if err != nil || time.Until(until) > most || time.Until(until) < -time.Second {
				t.Errorf("granted until %s, %v", *r.RefreshBefore, err)
			}
		})
	}
	h.Stateless("bob").Call(t, "events/unsubscribe", object{
		"name": "ci.build_finished", "arguments": object{}, "delivery": object{"mode": "webhook", "url": hook.URL()},
	}, nil)
}

// flood sends the given number of requests, sixteen concurrently, and counts the results by error code. 0 means
// success.
func flood(t *testing.T, n int, ask func(n int) *harness.Answer) (answers map[int]int) {
	t.Helper()
	answers = map[int]int{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	turns := make(chan int)
	for range 16 {
		wg.Go(func() {
			for n := range turns {
				a, code := ask(n), 0
				switch {
				case a.Error != nil:
					code = a.Error.Code
				case a.Status != http.StatusOK:
					code = a.Status
				}
				mu.Lock()
				answers[code]++
				mu.Unlock()
			}
		})
	}
	for i := range n {
		turns <- i
	}
	close(turns)
	wg.Wait()
	t.Logf("answers by code: %v", answers)
	return answers
}

// subscriber returns a function that subscribes and registers in turn, each time with a new URL below the endpoint's.
func (h *hostile) subscriber(t *testing.T, principal, url string) func(n int) *harness.Answer {
	c := h.Stateless(principal)
	return func(n int) *harness.Answer {
		at := fmt.Sprint(url, "/", n)
		if n%2 == 0 {
			return c.Do(t, "events/subscribe", subscription("ci.build_finished", nil, at, h.secret(32)))
		}
		return c.Do(t, "resources/subscriptions/register", object{"uris": []string{"event://ci/build-finished"}, "targetUri": at})
	}
}

// countExhausted counts the answers that report an exceeded limit, in both families of methods.
func countExhausted(answers map[int]int) int { return answers[-32013] + answers[429] }

func (h *hostile) fillQuota(t *testing.T) {
	url := h.receiver.Endpoint("hoard").URL()
	answers := flood(t, 60, h.subscriber(t, "bob", url)) // not more, because each causes a challenge to this host
	if answers[0] != 20 || countExhausted(answers) != 40 {
		t.Errorf("%d of 20 subscriptions were made", answers[0])
	}
	e := h.Stateless("bob").Refused(t, -32013, "events/subscribe", subscription("incident.created", nil, url+"/0", h.secret(32)))
	if limit := decode[map[string]any](t, e.Data); limit["limit"] != "subscriptions" || limit["max"] != float64(20) {
		t.Errorf("the error does not name the limit: %v", e)
	}
	harness.Eventually(t, harness.Patience, "the metric of the limit", func() bool {
		if h.met("subscriptions") {
			return true
		}
		// A function writes its metrics at the end of an invocation, at most every ten seconds.
		h.Stateless("bob").Refused(t, -32013, "events/subscribe", subscription("incident.created", nil, url+"/0", h.secret(32)))
		return false
	})
	subscribe(t, h.Stateless("alice"), h.neighbour, "ci.build_finished", nil)
}

func (h *hostile) hurry(t *testing.T) {
	began, all := time.Now(), 60*h.processes()
	answers := flood(t, all, func(int) *harness.Answer {
		return h.Stateless("auditor").Do(t, "resources/subscriptions/register", object{"uris": []string{}, "targetUri": "http://127.0.0.1/"})
	})
	passed := answers[-32602]
	if most := h.processes() * (20 + 2*int(time.Since(began).Seconds()+1)); passed > most || passed+countExhausted(answers) != all {
		t.Errorf("%d requests were accepted, want at most %d", passed, most)
	}
	if countExhausted(answers) == 0 {
		t.Error("the limit was not reached")
	}
}

func (h *hostile) floodVictim(t *testing.T) {
	victim := h.receiver.Endpoint("victim")
	victim.AnswerChallenge(func(*harness.Delivery) harness.Reply { return harness.Reply{Status: http.StatusNotFound} })
	url := strings.Replace(victim.URL(), "127.0.0.1", "localhost", 1) // a host that the other tests do not use
	began := time.Now()
	answers := flood(t, 400, h.subscriber(t, "bob", url))
	took := time.Since(began)
	h.Publish(t, build("", 1))
	h.neighbour.Wait(t, 1)
	if answers[0] != 0 || countExhausted(answers) == 0 || answers[-32015]+answers[-32602]+countExhausted(answers) != 400 {
		t.Errorf("the answers are %v", answers)
	}
	// In each window of five minutes, 20 challenges may fail, and 20 more may be in progress at that time.
	windows := int(began.Add(took).Unix()/300-began.Unix()/300) + 1
	got, most := len(victim.Challenges()), 40*windows
	t.Logf("400 requests in %v: %d challenges, at most %d are permitted", took.Round(time.Millisecond), got, most)
	if got == 0 || got > most {
		t.Errorf("the victim got %d challenges, at most %d are permitted", got, most)
	}
	if n, _ := victim.Count(); n != 0 {
		t.Errorf("the victim got %d deliveries", n)
	}
}

func (h *hostile) fillMemory(t *testing.T, s *harness.Server) {
	port := closedPort(t)
	port = port[strings.LastIndexByte(port, ':'):]
	round := func(n int) int64 {
		flood(t, 2000, func(i int) *harness.Answer {
			url := fmt.Sprintf("http://127.%d.%d.%d%s", 1+n, i/250, 1+i%250, port)
			return h.Stateless("bob").Do(t, "events/subscribe", subscription("incident.created", nil, url, h.secret(32)))
		})
		return s.PeakRSS()
	}
	round(0)
	before := round(1)
	after := round(2)
	t.Logf("%d MiB, then %d MiB", before>>20, after>>20)
	most := int64(32 << 20)
	if os.Getenv(harness.RaceVariable) != "" {
		most *= 8 // the race detector stores the writer of each word
	}
	if after-before > most {
		t.Errorf("memory grew by %d MiB in a round", (after-before)>>20)
	}
}

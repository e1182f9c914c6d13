//go:build unix

package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// restrained limits what the hostile subscriber may use.
const restrained = `
quotas:
  - {principal: bob, subscriptions: 20, registrationRate: 0}
`

// TestHostileSubscriber checks that a malicious subscriber is limited, and that the owner of an address that it uses
// as its endpoint receives only the permitted challenges.
func TestHostileSubscriber(t *testing.T) {
	t.Parallel()
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		s := harness.StartServer(t, harness.ServerOptions{Config: restrained, Args: []string{"--verify-registrations"}})
		h := &hostile{Target: &s.Target}
		h.met = func(limit string) bool {
			return strings.Contains(s.Metrics(t), `mcpevents_limits_reached_total{limit="`+limit+`"}`)
		}
		h.attack(t)
		t.Run("SRF-07 a flood of registrations with new hosts does not use more and more memory", func(t *testing.T) { h.fillMemory(t, s) })
	})
	t.Run("local AWS", func(t *testing.T) {
		t.Parallel()
		aws := harness.StartAWS(t, harness.AWSOptions{Config: restrained, Env: map[string]string{"MCPEVENTS_VERIFY_REGISTRATIONS": "true"}})
		h := &hostile{Target: &aws.Target}
		h.met = func(limit string) bool {
			return strings.Contains(aws.Output(), `"limit":"`+limit+`","mcpevents_limits_reached":[`)
		}
		h.attack(t)
	})
}

// hostile is a malicious subscriber with a valid key, bob's.
type hostile struct {
	*harness.Target
	met       func(limit string) bool // reports whether the metrics count the limit
	receiver  *harness.Receiver
	neighbour *harness.Endpoint // alice's
}

func (h *hostile) attack(t *testing.T) {
	h.receiver = harness.NewReceiver(t)
	h.neighbour = h.receiver.Endpoint("neighbour")
	t.Run("OPS-15 the quota holds during a flood, and affects only this principal", h.fillQuota)
	t.Run("EVX-12 SRF-07 a victim receives only the permitted challenges, and callbacks of others at its host are verified", h.floodVictim)
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
			return c.Do(t, "events/subscribe", subscription("ci.build_finished", nil, at, harness.NewSecret()))
		}
		return c.Do(t, "resources/subscriptions/register", object{"uris": []string{"event://ci/build-finished"}, "targetUri": at})
	}
}

// countExhausted counts the answers that report an exceeded limit, in both families of methods.
func countExhausted(answers map[int]int) int { return answers[-32013] + answers[429] }

func (h *hostile) fillQuota(t *testing.T) {
	url := h.receiver.Endpoint("hoard").URL()
	subscribe1 := h.subscriber(t, "bob", url)
	answers := flood(t, 40, subscribe1) // not more, because each causes a challenge to this host
	made, n := answers[0], 40
	// On a busy machine some of them were not answered in time, and their subscriptions may exist nevertheless.
	unclear := n - made - countExhausted(answers)
	harness.Eventually(t, harness.Patience, "the quota is reached", func() bool {
		a := subscribe1(n)
		n++
		switch {
		case a.Error == nil && a.Status == http.StatusOK:
			made++
		case a.Error != nil && strings.Contains(string(a.Error.Data), `"limit":"subscriptions"`):
			return true
		default:
			unclear++
		}
		return false
	})
	if made > 20 || made+unclear < 20 {
		t.Errorf("%d subscriptions were made, want 20; %d requests were not answered in time", made, unclear)
	}
	e := h.Stateless("bob").Refused(t, -32013, "events/subscribe", subscription("incident.created", nil, url+"/0", harness.NewSecret()))
	if limit := decode[map[string]any](t, e.Data); limit["limit"] != "subscriptions" || limit["max"] != float64(20) {
		t.Errorf("the error does not name the limit: %v", e)
	}
	harness.Eventually(t, harness.Patience, "the metric of the limit", func() bool {
		if h.met("subscriptions") {
			return true
		}
		// A function writes its metrics at the end of an invocation, at most every ten seconds.
		h.Stateless("bob").Refused(t, -32013, "events/subscribe", subscription("incident.created", nil, url+"/0", harness.NewSecret()))
		return false
	})
	subscribe(t, h.Stateless("alice"), h.neighbour, "ci.build_finished", nil)
}

func (h *hostile) floodVictim(t *testing.T) {
	victim, honest := h.receiver.Endpoint("victim"), h.receiver.Endpoint("honest")
	victim.AnswerChallenge(func(*harness.Delivery) harness.Reply { return harness.Reply{Status: http.StatusNotFound} })
	at := func(e *harness.Endpoint) string { // at a host that the other tests do not use
		return strings.Replace(e.URL(), "127.0.0.1", "localhost", 1)
	}
	const callbacks = 5
	var others sync.WaitGroup
	others.Go(func() {
		for n := range callbacks {
			params := subscription("incident.created", nil, fmt.Sprint(at(honest), "/", n), harness.NewSecret())
			var a *harness.Answer
			var err error
			harness.Within(t, harness.Patience, func() bool { // on a busy machine a dependency or the endpoint may not answer in time
				a, err = h.Stateless("alice").Try(t.Context(), "events/subscribe", params)
				return err != nil || a.Status != http.StatusServiceUnavailable && (a.Error == nil || a.Error.Code != http.StatusServiceUnavailable &&
					!bytes.Contains(a.Error.Data, []byte(`"timeout"`)))
			})
			if err != nil || a.Error != nil || a.Status != http.StatusOK {
				t.Errorf("EVX-12 callback %d of another principal: %v, %+v", n, err, a)
			}
		}
	})
	began := time.Now()
	answers := flood(t, 60, h.subscriber(t, "bob", at(victim)))
	took := time.Since(began)
	others.Wait()
	h.Publish(t, build("", 1))
	h.neighbour.Wait(t, 1)
	if answers[0] != 0 || countExhausted(answers) == 0 {
		t.Errorf("the answers are %v, want errors, and some of them because of the limit", answers)
	}
	// In each window of five minutes, 20 challenges may fail, and 20 more may be in progress at that time.
	windows := int(began.Add(took).Unix()/300-began.Unix()/300) + 1
	got, most := len(victim.Challenges()), 40*windows
	t.Logf("60 requests in %v: %d challenges, at most %d are permitted", took.Round(time.Millisecond), got, most)
	if got == 0 || got > most {
		t.Errorf("the victim got %d challenges, at most %d are permitted", got, most)
	}
	if n, _ := victim.Count(); n != 0 {
		t.Errorf("the victim got %d deliveries, want none", n)
	}
	expect.AtLeast(t, "EVX-12 the challenges to another principal's callbacks", len(honest.Challenges()), callbacks)
}

func (h *hostile) fillMemory(t *testing.T, s *harness.Server) {
	port := closedPort(t)
	port = port[strings.LastIndexByte(port, ':'):]
	round := func(n int) int64 {
		flood(t, 300, func(i int) *harness.Answer {
			url := fmt.Sprintf("http://127.%d.%d.%d%s", 1+n, i/250, 1+i%250, port)
			return h.Stateless("bob").Do(t, "events/subscribe", subscription("incident.created", nil, url, harness.NewSecret()))
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
	expect.AtMost(t, "the bytes by which memory grew in a round", after-before, most)
}

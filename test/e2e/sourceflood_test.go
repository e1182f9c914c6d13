//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

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

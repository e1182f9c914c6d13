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

	"github.com/mcp-events/mcpevents/test/harness"
)

// TestSourceFlood sends more requests to a source than its quota allows. A burst of the maximum number of events in a
// request is accepted.
func TestSourceFlood(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{
		Config: githubSource + "quotas: [{principal: source/github, publishRate: 1}]\n", Env: secretsOfSources(),
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
	t.Run("SRC-05 unsigned requests do not count", func(t *testing.T) {
		if got, _ := answers(1600, forged.Headers("f-1", body, time.Now())); got[http.StatusUnauthorized] != 1600 {
			t.Errorf("got %v", got)
		}
		wantAccepted(t, github(t, s, "github", "f-2", body), "f-2")
	})
	t.Run("SRC-05 a signed flood is limited, and told when to try again", func(t *testing.T) {
		begun := time.Now()
		got, last := answers(1600, schemeOf("github").Headers("f-2", body, begun))
		most := 1000 + int(time.Since(begun).Seconds()) + 1
		if got[http.StatusTooManyRequests] == 0 || got[http.StatusAccepted] > most || got[http.StatusAccepted]+got[http.StatusTooManyRequests] != 1600 {
			t.Fatalf("got %v, want at most %d accepted", got, most)
		}
		if after, err := strconv.Atoi(last.Header.Get("Retry-After")); err != nil || after < 1 || !strings.Contains(string(last.Body), `"publishRate"`) {
			t.Errorf("got %v %s", last.Header, last.Body)
		}
		harness.Eventually(t, harness.Patience, "it goes on", func() bool {
			return github(t, s, "github", "f-3", pullBody("opened", "flood", 2)).Status == http.StatusAccepted
		})
	})
}

// TestSourceSlowBody delays the rest of many bodies. Other senders must still be answered.
func TestSourceSlowBody(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Config: githubSource, Env: secretsOfSources(), Fast: true})
	addr := strings.TrimPrefix(s.Base(), "http://")
	var slow []net.Conn
	for i := range 80 { // half of them send enough to need a slot, of which there are 25
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST /sources/github HTTP/1.1\r\nHost: %s\r\nContent-Length: 5000000\r\n\r\n%s", addr, strings.Repeat("{", 1+i%2*300_000)); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	t.Run("SRC-05 others are answered", func(t *testing.T) {
		for i := range 20 {
			id := fmt.Sprint("s-", i)
			wantAccepted(t, github(t, s, "github", id, pullBody("opened", "slow", i+1)), id)
		}
	})
	t.Run("SRC-05 the slow requests are ended within two minutes and keep no memory", func(t *testing.T) {
		refused, late := 0, 0
		for _, c := range slow {
			if err := c.SetReadDeadline(time.Now().Add(2 * time.Minute)); err != nil {
				t.Fatal(err)
			}
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
		if refused == 0 || refused > 15 || refused+late != len(slow) {
			t.Errorf("%d were refused and %d ended, want 1 to 15 and the rest of %d", refused, late, len(slow))
		}
		wantAccepted(t, github(t, s, "github", "s-last", pullBody("opened", "slow", 99)), "s-last")
	})
}

//go:build !race

package subscription

// Simulations of days and crowds. The race detector makes them take ten times as long, and finds in them no more than in the
// other tests of the same code.

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestManyPrincipalsOfOneHost has 500 principals subscribe ten callbacks each at one host within five minutes, and renew all
// verifications in as little time a day later. Meanwhile one principal floods the host with callbacks that echo, another with
// callbacks that do not, and 50 more together use up what may fail at the host.
func TestManyPrincipalsOfOneHost(t *testing.T) {
	t.Parallel()
	const (
		principals, each = 500, 10
		span             = 5 * time.Minute
		answers          = 300 * time.Millisecond
		flood            = 100 * time.Millisecond // between the requests of a flooding principal
	)
	for name, processes := range map[string]int{"EVX-12 SRF-07 one process": 1, "EVX-12 SRF-07 eight processes on one store": 8} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var honest, echoing, failing, crowd atomic.Int64 // challenges of each
				targets := &endpoints{outside: &outside{}, answer: func(_ context.Context, url string) error {
					time.Sleep(answers)
					switch {
					case strings.Contains(url, "/echoing/"):
						echoing.Add(1)
					case strings.Contains(url, "/failing/"):
						failing.Add(1)
						return errNoEcho
					case strings.Contains(url, "/crowd/"):
						crowd.Add(1)
						return errNoEcho
					default:
						honest.Add(1)
					}
					return nil
				}}
				f := newFixture(t, Options{})
				registrars := make([]*Registrar, processes)
				for i := range registrars {
					r := *f.Registrar
					r.Service, r.Targets = &Service{Store: Store{DB: f.db}, Catalog: f.Catalog, Log: f.Log}, targets
					registrars[i] = &r
				}
				var turn atomic.Int64
				subscribe := func(p auth.Principal, url string) error {
					_, err := registrars[int(turn.Add(1))%processes].Subscribe(t.Context(), p, SubscribeRequest{Name: "github.push", URL: url, Secret: "whsec_one"})
					return err
				}
				attack := func(until time.Time, p auth.Principal, every time.Duration, kind string) {
					var tries sync.WaitGroup
					for n := 0; time.Now().Before(until); n++ {
						tries.Go(func() {
							if err := subscribe(p, fmt.Sprintf("https://chat.example/%s/%s/%d", kind, p.ID, n)); err != nil && !fault.Is(err, fault.Exhausted) && !fault.Is(err, fault.Unavailable) {
								t.Errorf("%s: %v", p.ID, err)
							}
						})
						time.Sleep(every)
					}
					tries.Wait()
				}
				round := func() (refused int64) {
					var all sync.WaitGroup
					var no atomic.Int64
					until := time.Now().Add(span)
					all.Go(func() { attack(until, principal("echoing"), flood, "echoing") })
					all.Go(func() { attack(until, principal("failing"), flood, "failing") })
					for n := range 50 {
						all.Go(func() { attack(until, principal("crowd%d", n), 10*time.Second, "crowd") })
					}
					for i := range principals * each {
						all.Go(func() {
							time.Sleep(span * time.Duration(i) / (principals * each))
							n := i / each // so the ten of a principal come together
							if err := subscribe(principal("user%d", n), fmt.Sprintf("https://chat.example/callbacks/%d", i)); err != nil {
								if no.Add(1) < 4 {
									t.Errorf("user%d: %v", n, err)
								}
							}
						})
					}
					all.Wait()
					return no.Load()
				}
				for day := range 2 {
					honest.Store(0)
					echoing.Store(0)
					failing.Store(0)
					crowd.Store(0)
					if refused := round(); refused > 0 || honest.Load() != principals*each {
						t.Errorf("day %d: %d of %d subscriptions were refused, and %d challenges were sent for them, want one for each", day, refused, principals*each, honest.Load())
					}
					t.Logf("day %d: challenges of 500 principals %d, of one that echoes %d, of one that does not %d, of 50 that do not %d",
						day, honest.Load(), echoing.Load(), failing.Load(), crowd.Load())
					// Five minutes touch six minutes and two windows.
					expect.AtMost(t, "the challenges of one principal", echoing.Load(), 6*quota.DefaultVerifications)
					expect.AtMost(t, "the failed challenges of one principal", failing.Load(), 2*(maxFailed+maxPending))
					expect.AtMost(t, "the failed challenges of 50 principals", crowd.Load(), 2*(maxFailedByAll+50))
					time.Sleep(24 * time.Hour)
				}
			})
		})
	}
}

//go:build unix

package interop

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

// enduring settings let a webhook whose receiver was killed arrive within the test, and a dead stream be noticed.
var enduring = map[string]string{
	"MCPEVENTS_RETRY_SCHEDULE":        "0s,1s,1s,2s,2s,4s,4s,8s,8s,16s,16s,32s",
	"MCPEVENTS_HEARTBEAT":             "2s",
	"MCPEVENTS_EVENTS_RETRY_SCHEDULE": "0s,1s,1s,2s,2s,4s,4s,8s,8s,16s,16s,32s",
}

// TestEverybodyEmbedded lets 5,000 events (by default 500) flow to clients of four makers in all modes, each of which
// asked for something else, while the server and the clients are killed at random. Each gets what it asked for.
func TestEverybodyEmbedded(t *testing.T) {
	t.Parallel()
	var env []string
	for name, value := range enduring {
		env = append(env, name+"="+value)
	}
	s := harness.StartServer(t, harness.ServerOptions{Fast: true, Env: env})
	everybody(t, &s.Target, func(*rand.Rand) {
		s.Kill()
		if err := s.TryStart(t.Context()); err != nil {
			t.Errorf("the server does not start again: %v", err)
		}
	})
}

// TestEverybodyOnLocalAWS runs the same clients and kills processes of the functions.
func TestEverybodyOnLocalAWS(t *testing.T) {
	t.Parallel()
	aws := harness.StartAWS(t, harness.AWSOptions{Visibility: 10 * time.Second, Env: enduring})
	functions := []string{"PublishFunction", "FanoutFunction", "DispatchFunction", "StreamFunction"}
	everybody(t, &aws.Target, func(r *rand.Rand) { aws.KillOf(functions[r.IntN(len(functions))]) })
	t.Logf("%d processes of functions were killed", aws.Killed())
}

// seedVariable repeats the choices of an earlier run, which logged its seed.
const seedVariable = "MCPEVENTS_TEST_SEED"

func everybody(t *testing.T, s *harness.Target, killServer func(*rand.Rand)) {
	events, kills := harness.Size(500, 5_000), harness.Size(12, 60)
	began := time.Now()
	parties := partiesOf(t, s)
	for _, p := range parties {
		p.follow(t)
	}
	t.Logf("%d clients follow after %v", len(parties), time.Since(began).Round(time.Millisecond))

	var accepted atomic.Int64
	over := make(chan struct{})
	go func() {
		defer close(over)
		storm(t, parties, killServer, kills, events, &accepted)
	}()
	all := publish(t, s, events, &accepted)
	<-over
	t.Logf("%d events are published after %v", events, time.Since(began).Round(time.Millisecond))
	harness.Within(t, 4*time.Minute, func() bool {
		return !slices.ContainsFunc(parties, func(p *party) bool { return p.different() < len(p.wanted(all)) })
	})
	t.Logf("all is received after %v", time.Since(began).Round(time.Millisecond))
	for _, p := range parties {
		t.Run("WHK-18 EVX-19 EVX-20 "+p.name, func(t *testing.T) { p.check(t, all) })
	}
}

// storm kills the server or a client at random moments of the publishing, about as often the one as the other.
func storm(t *testing.T, parties []*party, killServer func(*rand.Rand), kills, events int, accepted *atomic.Int64) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Errorf("%s: %v", seedVariable, err)
		}
	}
	r := rand.New(rand.NewPCG(seed, 0))
	var mortal []*party
	for _, p := range parties {
		if p.mortal {
			mortal = append(mortal, p)
		}
	}
	var moments []int
	for range kills {
		moments = append(moments, r.IntN(events))
	}
	slices.Sort(moments)
	servers := 0
	for _, moment := range moments {
		harness.Within(t, 2*time.Minute, func() bool { return accepted.Load() >= int64(moment) })
		if r.IntN(2) == 0 {
			servers++
			killServer(r)
		} else {
			mortal[r.IntN(len(mortal))].kill()
		}
	}
	t.Logf("the server was killed %d times, clients %d times (%s=%d)", servers, kills-servers, seedVariable, seed)
}

// publish publishes so slowly that every kill finds events on their way. What is not acknowledged is published again.
func publish(t *testing.T, s *harness.Target, events int, accepted *atomic.Int64) (all []harness.Event) {
	t.Helper()
	pace := time.NewTicker(time.Duration(harness.Size(40, 20)) * time.Millisecond)
	defer pace.Stop()
	for n := range events {
		<-pace.C
		e := happening(n)
		harness.Eventually(t, 2*time.Minute, "the publishing of "+e.ID, func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := s.TryPublish(ctx, "publisher", e)
			return err == nil
		})
		all = append(all, e)
		accepted.Add(1)
	}
	return all
}

// happening returns the n-th event. It cycles through four types with different variables and members. The data holds the id.
func happening(n int) harness.Event {
	id := fmt.Sprintf("e-%05d", n)
	pick := func(turn int, of ...string) string { return of[n/turn%len(of)] }
	e := harness.Event{ID: id}
	switch n % 4 {
	case 0:
		e.URI = "event://incidents/" + pick(4, "payments", "search") + "/created"
		e.Data = object{"id": id, "title": "It is down", "severity": pick(8, "critical", "info")}
	case 1:
		e.URI = "event://chat/" + pick(4, "acme", "globex") + "/" + pick(8, "general", "random") + "/message"
		e.Data = object{"id": id, "user": "u1", "text": "Hello"}
	case 2:
		e.URI = "event://github/" + pick(4, "acme", "globex") + "/" + pick(8, "website", "api") + "/pull_request"
		e.Data = object{"action": pick(16, "opened", "closed"), "number": n, "pull_request": object{"title": id, "author": "octocat"}}
	default:
		e.URI = "event://deploy/" + pick(4, "production", "staging") + "/" + pick(8, "web", "api") + "/finished"
		e.Data = object{"version": id, "outcome": pick(16, "succeeded", "failed")}
	}
	return e
}

// wish is what a client asked for: events whose URI begins so and, unless member is empty, whose data has the value there.
type wish struct{ under, member, value string }

func (w wish) wants(e harness.Event) bool {
	return strings.HasPrefix(e.URI, w.under) && (w.member == "" || e.Data.(object)[w.member] == w.value)
}

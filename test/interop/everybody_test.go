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

// quickRetries lets webhooks reach a restarted receiver, and clients notice a dead stream, within the test.
var quickRetries = map[string]string{
	"MCPEVENTS_RETRY_SCHEDULE":        "0s,1s,1s,2s,2s,4s,4s,8s,8s,16s,16s,32s",
	"MCPEVENTS_HEARTBEAT":             "2s",
	"MCPEVENTS_EVENTS_RETRY_SCHEDULE": "0s,1s,1s,2s,2s,4s,4s,8s,8s,16s,16s,32s",
}

// TestEverybodyEmbedded publishes 500 events (5,000 in a full run) to clients of four makers in all modes while it kills the
// server and the clients at random. Each client has another subscription and must receive all of its events.
func TestEverybodyEmbedded(t *testing.T) {
	t.Parallel()
	var env []string
	for name, value := range quickRetries {
		env = append(env, name+"="+value)
	}
	s := harness.StartServer(t, harness.ServerOptions{Fast: true, Env: env})
	testEverybody(t, &s.Target, func(*rand.Rand) {
		s.Kill()
		if err := s.TryStart(t.Context()); err != nil {
			t.Errorf("restart the server: %v", err)
		}
	})
}

// TestEverybodyOnLocalAWS does the same with functions on local AWS, whose processes it kills.
func TestEverybodyOnLocalAWS(t *testing.T) {
	t.Parallel()
	aws := harness.StartAWS(t, harness.AWSOptions{Visibility: 10 * time.Second, Env: quickRetries})
	functions := []string{"PublishFunction", "FanoutFunction", "DispatchFunction", "StreamFunction"}
	testEverybody(t, &aws.Target, func(r *rand.Rand) { aws.KillOf(functions[r.IntN(len(functions))]) })
	t.Logf("%d processes of functions were killed", aws.Killed())
}

// seedVariable sets the seed, which each run logs, so that a run's random choices can be repeated.
const seedVariable = "MCPEVENTS_TEST_SEED"

func testEverybody(t *testing.T, s *harness.Target, killServer func(*rand.Rand)) {
	events, kills := harness.Size(500, 5_000), harness.Size(12, 60)
	began := time.Now()
	parties := partiesOf(t, s)
	for _, p := range parties {
		p.follow(t)
	}
	t.Logf("%d clients are subscribed after %v", len(parties), time.Since(began).Round(time.Millisecond))

	var accepted atomic.Int64
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		killAtRandom(t, parties, killServer, kills, events, &accepted)
	}()
	all := publish(t, s, events, &accepted)
	<-killed
	t.Logf("%d events are published after %v", events, time.Since(began).Round(time.Millisecond))
	harness.Within(t, 2*harness.Patience, func() bool {
		return !slices.ContainsFunc(parties, func(p *party) bool { return p.distinct() < len(p.wanted(all)) })
	})
	t.Logf("all events are received after %v", time.Since(began).Round(time.Millisecond))
	for _, p := range parties {
		t.Run("WHK-18 EVX-19 EVX-20 "+p.name, func(t *testing.T) { p.check(t, all) })
	}
}

// killAtRandom kills the server or a client at random moments while events are published, each about half of the times.
func killAtRandom(t *testing.T, parties []*party, killServer func(*rand.Rand), kills, events int, accepted *atomic.Int64) {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv(seedVariable); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Errorf("%s: %v", seedVariable, err)
		}
	}
	r := rand.New(rand.NewPCG(seed, 0))
	var killable []*party
	for _, p := range parties {
		if p.killable {
			killable = append(killable, p)
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
			killable[r.IntN(len(killable))].kill()
		}
	}
	t.Logf("the server was killed %d times, clients %d times (%s=%d)", servers, kills-servers, seedVariable, seed)
}

// publish publishes the events slowly, so that events are in transit at every kill. It publishes an event again until the
// server acknowledges it.
func publish(t *testing.T, s *harness.Target, events int, accepted *atomic.Int64) (all []harness.Event) {
	t.Helper()
	pace := time.NewTicker(time.Duration(harness.Size(40, 20)) * time.Millisecond)
	defer pace.Stop()
	for n := range events {
		<-pace.C
		e := newEvent(n)
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

// newEvent returns the n-th event. The events cycle through four types with different variables and members. The data
// contains the id.
func newEvent(n int) harness.Event {
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

// wish selects the events of a client's subscription. Their URI has the prefix and, unless member is empty, that member
// of their data has the value.
type wish struct{ prefix, member, value string }

func (w wish) wants(e harness.Event) bool {
	return strings.HasPrefix(e.URI, w.prefix) && (w.member == "" || e.Data.(object)[w.member] == w.value)
}

//go:build unix

package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// room is a workspace that messages are posted to.
type room struct {
	workspace        string
	channels, events int // events of each channel
}

// rooms receive 3,000 messages, or 10,000 in a full run. The room whose wildcard is followed gets only a few of them,
// because the log then stores each message separately.
var rooms = []room{{"acme", 3, harness.Size(80, 300)}, {"globex", 7, harness.Size(400, 1300)}}

// restarts is how often an instance is killed or all instances are shut down.
var restarts = harness.Size(11, 19)

// TestInstancesBehindOneAddress runs two instances of the MCP endpoint with a common store behind one address, which
// forwards each request to a random instance. It kills or shuts down one after the other while events are published. Every
// client must receive every event.
func TestInstancesBehindOneAddress(t *testing.T) {
	aws := harness.StartAWS(t, harness.AWSOptions{
		Managed: runner.Managed{Instances: 2, AtOnce: 64},
		Env:     map[string]string{"MCPEVENTS_STREAM_MAX_AGE": "9s"},
		Fast:    true,
		// Events that fanout could not process on a busy machine are received again within the test. The time is longer than an
		// invocation of fanout, so that only one invocation at a time works on a URI.
		Visibility: 30 * time.Second,
	})
	began := time.Now()
	all := messages()
	of := func(prefixes ...string) (ids []string) {
		for _, batch := range all {
			for _, e := range batch {
				if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(e.ID, p) }) {
					ids = append(ids, e.ID)
				}
			}
		}
		return ids
	}
	var one []string
	for n := range rooms[1].channels {
		one = append(one, channelURI("globex", n))
	}
	everything := append([]string{"event://chat/acme"}, one...)
	target := &aws.Target
	workspace := map[string]any{"workspace": "acme"}
	channel := func(n int) map[string]any {
		return map[string]any{"workspace": "globex", "channel": fmt.Sprint("c", n)}
	}
	followers := []struct {
		name string
		run  func(context.Context, *follower) error
		want []string
	}{
		{"SES-01 SES-02 SES-03 a session", byURI(target, "bob", spec.V20251125, everything...), of("acme", "globex")},
		{"SES-01 SES-03 a session of single URIs", byURI(target, "bob", spec.V20251125, one...), of("globex")},
		{"SUB-08 a listen", byURI(target, "alice", spec.V20260728, everything...), of("acme", "globex")},
		{"SUB-08 a listen of one URI", byURI(target, "alice", spec.V20260728, one[0]), of("globex-c0-")},
		{"EVX-06 a stream of one channel", byName(target, "message.created", channel(1), spec.ModePush), of("globex-c1-")},
		{"EVX-06 a stream of a workspace", byName(target, "message.created", workspace, spec.ModePush), of("acme")},
		{"EVX-05 polls of one channel", byName(target, "message.created", channel(2), spec.ModePoll), of("globex-c2-")},
		{"EVX-05 polls of a workspace", byName(target, "message.created", workspace, spec.ModePoll), of("acme")},
		{"EVX-07 one channel in both modes", byName(target, "message.created", channel(3), spec.ModePoll, spec.ModePush), of("globex-c3-")},
		{"EVX-07 a workspace in both modes", byName(target, "message.created", workspace, spec.ModePoll, spec.ModePush), of("acme")},
	}
	var open []*follower
	for _, f := range followers {
		open = append(open, follow(t, f.run))
	}

	var accepted atomic.Int64
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		restart(t, aws, &accepted)
	}()
	t.Logf("%d followers are connected after %v", len(open), time.Since(began))
	post(t, &aws.Target, all, &accepted)
	<-stopped
	t.Logf("all messages are posted after %v", time.Since(began))
	harness.Within(t, 3*time.Minute, func() bool {
		for n, f := range followers {
			if open[n].distinct() < len(f.want) {
				return false
			}
		}
		return true
	})
	t.Logf("all messages are received after %v; %d instances were killed, %d started", time.Since(began), aws.Killed(), aws.Starts(stream))
	expect.AtLeast(t, "the killed instances", aws.Killed(), restarts/2)
	expect.AtLeast(t, "the started instances", aws.Starts(stream), 2+aws.Killed())
	for n, f := range followers {
		t.Run(f.name, func(t *testing.T) {
			open[n].check(t, f.want)
			checkOrder(t, open[n].ids)
			if polls := strings.Contains(f.name, "EVX-05"); !polls && open[n].connections.Load() < 2 { // a client pauses before it connects again, and may miss kills
				t.Error("the client was never disconnected, want at least once")
			}
		})
	}
}

const stream = "StreamFunction"

// restart kills an instance at regular intervals of accepted messages. Every fifth time it shuts down all instances instead.
func restart(t *testing.T, aws *harness.AWS, accepted *atomic.Int64) {
	total := 0
	for _, r := range rooms {
		total += r.channels * r.events
	}
	for n := 1; n <= restarts; n++ {
		harness.Within(t, 2*time.Minute, func() bool { return accepted.Load() >= int64(n*total/(restarts+1)) })
		if n%5 == 0 {
			aws.Retire(stream)
		} else {
			aws.KillOf(stream)
		}
	}
}

func channelURI(workspace string, n int) string {
	return fmt.Sprintf("event://chat/%s/c%d/message", workspace, n)
}

// messages returns the messages to post, in batches of ten per channel. Their ids consist of workspace, channel and number.
func messages() (batches [][]harness.Event) {
	for _, room := range rooms {
		for first := 0; first < room.events; first += 10 {
			for c := range room.channels {
				var batch []harness.Event
				for n := first; n < first+10; n++ {
					id := fmt.Sprintf("%s-c%d-%04d", room.workspace, c, n)
					batch = append(batch, harness.Event{
						ID: id, URI: channelURI(room.workspace, c), Data: map[string]any{"id": id, "user": "u", "text": "Hello"},
					})
				}
				batches = append(batches, batch)
			}
		}
	}
	return batches
}

// post publishes four batches concurrently, and the batches of one channel one after the other.
func post(t *testing.T, target *harness.Target, batches [][]harness.Event, accepted *atomic.Int64) {
	t.Helper()
	var wg sync.WaitGroup
	const lanes = 4
	for lane := range lanes {
		wg.Go(func() {
			for _, batch := range batches {
				if int(batch[0].URI[len(batch[0].URI)-len("0/message")]-'0')%lanes != lane {
					continue
				}
				retry(t, func(ctx context.Context) error {
					_, err := target.TryPublish(ctx, "publisher", batch...)
					return err
				})
				accepted.Add(int64(len(batch)))
			}
		})
	}
	wg.Wait()
}

// checkOrder asserts that the messages of each channel arrived in order, apart from repetitions.
func checkOrder(t *testing.T, ids []string) {
	t.Helper()
	last, seen := map[string]string{}, map[string]bool{}
	for _, id := range ids {
		channel := id[:strings.LastIndexByte(id, '-')]
		if !seen[id] && id < last[channel] {
			t.Errorf("%s arrived after %s", id, last[channel])
		}
		if !seen[id] {
			last[channel] = id
		}
		seen[id] = true
	}
}

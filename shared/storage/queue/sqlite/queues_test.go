package sqlite

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	store "github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite/engine"
	"github.com/mcp-events/mcpevents/test/expect"
)

func rowsOf(t *testing.T, q *Queues, name queue.Name) (n int64) {
	t.Helper()
	err := q.engine.Read(context.Background(), func(c *engine.Conn) (err error) {
		n, err = c.Int("SELECT count(*) FROM " + q.queues[name].sql.table)
		return err
	})
	expect.OK(t, err)
	return n
}

func depth(t *testing.T, q *Queues, name queue.Name) queue.Depth {
	t.Helper()
	return expect.Value(q.Depth(context.Background(), name))(t)
}

func accept(context.Context, []queue.Message) ([]string, error) { return nil, nil }

func TestGroupsOfAStandardQueueTakeTurns(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, q *Queues) {
		var noisy []queue.Outgoing
		for i := range 100 {
			noisy = append(noisy, queue.Outgoing{Body: fmt.Appendf(nil, "noisy %d", i), Group: "noisy"})
		}
		send(t, q, queue.Slow, noisy...)
		send(t, q, queue.Slow, queue.Outgoing{Body: []byte("quiet 0"), Group: "a"}, queue.Outgoing{Body: []byte("quiet 1"), Group: "b"})
		var got []string
		stop := run(q, queue.Slow, queue.ConsumeOptions{Batch: 1}, accepting(func(batch []queue.Message) { got = append(got, string(batch[0].Body)) }))
		synctest.Wait()
		stop()
		if last := max(slices.Index(got, "quiet 0"), slices.Index(got, "quiet 1")); len(got) != 102 || last > 4 {
			t.Errorf("got %d messages, the last quiet one after %d; want 102 and at most 5", len(got), last+1)
		}
	})
}

// TestAGroupAtItsBoundIsPassedOver has ten workers and groups whose messages hang. The messages of a healthy group are handled
// immediately, and a bounded group continues when one of its messages has left its handler.
func TestAGroupAtItsBoundIsPassedOver(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, q *Queues) {
		const hanging, each, perGroup = 2, 50, 4
		var msgs []queue.Outgoing
		for i := range each {
			for g := range hanging {
				msgs = append(msgs, queue.Outgoing{Body: fmt.Appendf(nil, "hangs %d", i), Group: fmt.Sprint("hanging", g)})
			}
		}
		send(t, q, queue.Slow, msgs...)
		var mu sync.Mutex
		running, healthy, done := map[string]int{}, 0, 0
		defer run(q, queue.Slow, queue.ConsumeOptions{Batch: 1, Concurrency: 10, PerGroup: perGroup}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			m := batch[0]
			mu.Lock()
			if running[m.Group]++; running[m.Group] > perGroup && m.Group != "" {
				t.Errorf("got %d concurrent messages of %s, want at most %d", running[m.Group], m.Group, perGroup)
			}
			mu.Unlock()
			if strings.HasPrefix(m.Group, "hanging") {
				time.Sleep(20 * time.Second)
			} else {
				time.Sleep(10 * time.Millisecond)
			}
			mu.Lock()
			defer mu.Unlock()
			running[m.Group]--
			done++
			if !strings.HasPrefix(m.Group, "hanging") {
				healthy++
			}
			if string(m.Body) == "hangs 0" && m.Received == 1 {
				return []string{m.ID}, nil // redelivered at the front of its group
			}
			return nil, nil
		})()
		synctest.Wait()
		for i := range 20 {
			group := "healthy"
			if i%2 == 0 {
				group = "" // messages without a group are not bounded
			}
			send(t, q, queue.Slow, queue.Outgoing{Body: fmt.Appendf(nil, "healthy %d", i), Group: group})
		}
		time.Sleep(time.Second)
		mu.Lock()
		expect.Equal(t, "healthy messages in a second", healthy, 20)
		mu.Unlock()
		time.Sleep(each / perGroup * 20 * time.Second)
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		expect.Equal(t, "calls", done, 20+hanging*(each+1))
		mq := q.queues[queue.Slow]
		mq.mu.Lock()
		defer mq.mu.Unlock()
		expect.Equal(t, "groups in the end", len(mq.window.ready.groups), 0)
	})
}

// TestAnOwnerWithManyGroupsLeavesConsumersToOthers has owners with more groups than consumers, whose messages hang.
func TestAnOwnerWithManyGroupsLeavesConsumersToOthers(t *testing.T) {
	const consumers, groups, takes = 16, 40, 20 * time.Second
	inBubble(t, Options{}, func(t *testing.T, q *Queues) {
		var mu sync.Mutex
		running, done := map[string]int{}, map[string]int{}
		defer run(q, queue.Slow, queue.ConsumeOptions{Batch: 1, Concurrency: consumers, PerGroup: 2}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			m := batch[0]
			mu.Lock()
			running[m.Owner]++
			running[m.Group]++
			if m.Group == "shared" && running["shared"] > 2 {
				t.Errorf("got %d concurrent messages of the shared group, want at most 2", running["shared"])
			}
			mu.Unlock()
			time.Sleep(takes)
			mu.Lock()
			defer mu.Unlock()
			running[m.Owner]--
			running[m.Group]--
			done[m.Owner]++
			return nil, nil
		})()
		hang := func(owner string) {
			for i := range groups {
				// The queue reads delayed messages from the file.
				send(t, q, queue.Slow, queue.Outgoing{Body: []byte("m"), Group: fmt.Sprint(owner, i), Owner: owner, Delay: time.Second})
			}
			time.Sleep(2 * time.Second)
		}
		check := func(want map[string]int) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for owner, n := range want {
				expect.Equal(t, "WHK-16: running messages of "+owner, running[owner], n)
			}
		}
		hang("one")
		check(map[string]int{"one": 12})
		hang("two")
		check(map[string]int{"one": 12, "two": 3})
		time.Sleep(10 * takes)
		mu.Lock()
		expect.Equal(t, "messages of the first owner", done["one"], groups)
		expect.Equal(t, "messages of the second owner", done["two"], groups)
		mu.Unlock()

		for i := range groups {
			send(t, q, queue.Slow, queue.Outgoing{Body: []byte("m"), Group: "shared", Owner: fmt.Sprint("owner", i)})
		}
		check(map[string]int{"shared": 2})
		time.Sleep(groups/2*takes + time.Second)
		mu.Lock()
		defer mu.Unlock()
		for i := range groups {
			expect.Equal(t, "messages of an owner in a shared group", done[fmt.Sprint("owner", i)], 1)
		}
		mq := q.queues[queue.Slow]
		mq.mu.Lock()
		defer mq.mu.Unlock()
		r := &mq.window.ready
		expect.Equal(t, "groups, owners and limits in the end", len(r.groups)+len(r.owners)+len(r.limits), 0)
	})
}

// Rows of an earlier release have no owner.
func TestMessagesWithAndWithoutAnOwnerShareTheLimitOfTheirGroup(t *testing.T) {
	r, opts := newReady(false), &queue.ConsumeOptions{Batch: 1, Concurrency: 8, PerGroup: 2}
	for _, group := range []string{"g", "g/one", "g/two", "g", "g/two"} {
		r.add(&message{group: group})
	}
	for left := 5; left > 0; left -= 2 {
		var taken []*message
		for batch := r.take(opts); len(batch) > 0; batch = r.take(opts) {
			taken = append(taken, batch...)
		}
		expect.Len(t, "the messages of the group that handlers have", taken, min(left, 2))
		for _, m := range taken {
			r.release(m)
		}
	}
}

// The handlers of an owner may all be busy with other groups for long.
func TestAnOwnerThatMayNotTakeMoreDoesNotDelayTheOthersOfItsGroup(t *testing.T) {
	r, opts := newReady(false), &queue.ConsumeOptions{Batch: 1, Concurrency: 8, PerGroup: 1}
	add := func(groups ...string) {
		for _, group := range groups {
			r.add(&message{group: group})
		}
	}
	take := func() (group string) {
		for _, m := range r.take(opts) {
			group = m.group
		}
		return group
	}
	add("shared/one")
	take()
	add("shared/two", "shared/three")
	expect.Equal(t, "a message of a group at its limit", take(), "")
	add("a/two", "b/two", "c/two", "d/two", "e/four", "f/five", "g/six")
	for range 6 {
		take()
	}
	expect.Equal(t, "a fourth message of an owner", take(), "")
	r.release(&message{group: "shared/one"})
	expect.Equal(t, "the next message", take(), "shared/three")
}

// TestPushFrontIsLinear checks that the cost of pushFront does not depend on the length: 20,000 calls on a long deque copy each
// element a few times, not 20,000 times.
func TestPushFrontIsLinear(t *testing.T) {
	const n = 20_000
	var d deque[int]
	for i := range n {
		d.push(i)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range n {
		d.pushFront(-1-2*i, -2*i)
		d.push(n + i)
	}
	runtime.ReadMemStats(&after)
	expect.AtMost(t, "the bytes allocated", after.TotalAlloc-before.TotalAlloc, 16*n*8)
	last := 1 - 2*n - 1
	for d.len() > 0 {
		if v := d.pop(); v < last {
			t.Fatalf("got %d after %d, want ascending numbers", v, last)
		} else {
			last = v
		}
	}
	expect.Equal(t, "the last number", last, 2*n-1)
}

func TestAHandlerThatPanicsOrReportsAnUnknownIDFailsItsBatch(t *testing.T) {
	for name, h := range map[string]queue.Handler{
		"panic":      func(context.Context, []queue.Message) ([]string, error) { panic("oops") },
		"unknown id": func(context.Context, []queue.Message) ([]string, error) { return []string{"4711"}, nil },
	} {
		bubble(t, name, Options{}, func(t *testing.T, q *Queues) {
			send(t, q, queue.Inbox, queue.Outgoing{Body: []byte("m")}, queue.Outgoing{Body: []byte("n")})
			stop := run(q, queue.Inbox, queue.ConsumeOptions{MaxReceives: 2}, h)
			time.Sleep(5 * time.Minute)
			stop()
			expect.Equal(t, "visible dead letters", depth(t, q, queue.Dead).Visible, 2)
		})
	}
}

func TestDepth(t *testing.T) {
	inBubble(t, Options{MaxReady: 4}, func(t *testing.T, q *Queues) {
		began := time.Now()
		want := func(what string, want queue.Depth) {
			t.Helper()
			expect.Equal(t, what, depth(t, q, queue.Slow), want)
		}
		oldest := began.UTC().Truncate(time.Microsecond)
		want("empty", queue.Depth{})
		for i := range 9 {
			send(t, q, queue.Slow, queue.Outgoing{Body: fmt.Appendf(nil, "%d", i), Delay: time.Duration(i%3/2) * time.Minute})
		}
		want("sent", queue.Depth{Visible: 6, Delayed: 3, Oldest: oldest})
		release := make(chan struct{})
		stop := run(q, queue.Slow, queue.ConsumeOptions{Batch: 2}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			<-release
			if batch[0].Received == 1 {
				return []string{batch[0].ID}, nil
			}
			return nil, nil
		})
		synctest.Wait()
		want("in a handler", queue.Depth{Visible: 4, InFlight: 2, Delayed: 3, Oldest: oldest})
		time.Sleep(time.Second)
		close(release)
		synctest.Wait()
		want("three accepted, three failed", queue.Depth{InFlight: 3, Delayed: 3, Oldest: oldest})
		time.Sleep(time.Hour)
		stop()
		want("all accepted", queue.Depth{})
		expect.Equal(t, "rows in the end", rowsOf(t, q, queue.Slow), 0)
	})
}

func TestTheMemoryIsBounded(t *testing.T) {
	const n = 3000
	for name, opts := range map[string]Options{"messages": {MaxReady: 50}, "bytes": {MaxBytes: 10_000}} {
		bubble(t, name, opts, func(t *testing.T, q *Queues) {
			mq := q.queues[queue.Events]
			check := func() {
				mq.mu.Lock()
				defer mq.mu.Unlock()
				if opts.MaxReady > 0 && mq.window.messages > opts.MaxReady {
					t.Errorf("got %d messages in memory, want at most %d", mq.window.messages, opts.MaxReady)
				}
				if slack := 12 << 10; opts.MaxBytes > 0 && mq.window.bytes > opts.MaxBytes+fetchRows*30+slack {
					t.Errorf("got %d bytes in memory, want about %d", mq.window.bytes, opts.MaxBytes)
				}
			}
			var msgs []queue.Outgoing
			var want []string
			for i := range n {
				body := fmt.Sprintf("%05d%s", i, strings.Repeat("x", 20))
				want = append(want, body)
				msgs = append(msgs, queue.Outgoing{Body: []byte(body), Group: fmt.Sprintf("g%d", i%7), Dedup: body[:5]})
			}
			send(t, q, queue.Events, msgs[:n/2]...)
			check()
			var mu sync.Mutex
			var got []string
			stop := run(q, queue.Events, queue.ConsumeOptions{Concurrency: 3}, func(_ context.Context, batch []queue.Message) ([]string, error) {
				check()
				mu.Lock()
				defer mu.Unlock()
				for _, m := range batch {
					got = append(got, string(m.Body))
				}
				return nil, nil
			})
			for part := range slices.Chunk(msgs[n/2:], 100) {
				send(t, q, queue.Events, part...)
			}
			synctest.Wait()
			stop()
			for g := range 7 {
				var group []string
				for _, body := range got {
					var i int
					if _, err := fmt.Sscanf(body[:5], "%d", &i); err == nil && i%7 == g {
						group = append(group, body)
					}
				}
				expect.True(t, fmt.Sprintf("the group %d, %q, is in order", g, group), slices.IsSorted(group))
			}
			slices.Sort(got)
			expect.List(t, "the messages", got, want)
			mq.mu.Lock()
			defer mq.mu.Unlock()
			if mq.window.messages != 0 || mq.window.bytes != 0 || len(mq.window.ready.groups) != 0 || mq.window.depth() != (queue.Depth{}) {
				t.Errorf("got %d messages, %d bytes, %d groups in the end, want none", mq.window.messages, mq.window.bytes, len(mq.window.ready.groups))
			}
		})
	}
}

func TestUnacceptedMessagesSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.db")
	session := func(use func(q *Queues)) {
		q, end := start(t, path, store.Options{}, Options{})
		use(q)
		end()
	}
	once := queue.Outgoing{Body: []byte("once"), Group: "g", Dedup: "once"}
	session(func(q *Queues) {
		send(t, q, queue.Deliveries, queue.Outgoing{Body: []byte("accepted")}, queue.Outgoing{Body: []byte("failed")})
		send(t, q, queue.Slow, queue.Outgoing{Body: []byte("late"), Delay: 10 * time.Minute})
		send(t, q, queue.Events, once)
		done := make(chan struct{})
		stop := run(q, queue.Deliveries, queue.ConsumeOptions{Visibility: time.Hour}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			defer close(done)
			return []string{batch[1].ID}, nil
		})
		<-done
		stop()
		d := depth(t, q, queue.Deliveries)
		expect.Equal(t, "messages in flight and visible before the restart", [2]int{d.InFlight, d.Visible}, [2]int{1, 0})
	})
	session(func(q *Queues) {
		expect.Equal(t, "visible messages after the restart", depth(t, q, queue.Deliveries).Visible, 1)
		d := depth(t, q, queue.Slow)
		expect.Equal(t, "messages delayed and visible after the restart", [2]int{d.Delayed, d.Visible}, [2]int{1, 0})
		send(t, q, queue.Events, once)
		expect.Equal(t, "visible messages after a second one with the same id", depth(t, q, queue.Events).Visible, 1)
		got := make(chan queue.Message)
		stop := run(q, queue.Deliveries, queue.ConsumeOptions{}, accepting(func(batch []queue.Message) { got <- batch[0] }))
		if m := <-got; string(m.Body) != "failed" || m.Received != 2 {
			t.Errorf("got %+v, want the failed message, received twice", m)
		}
		stop()
	})
}

func TestConsumingEndsWhenTheQueuesAreClosed(t *testing.T) {
	db := expect.Value(store.Open(store.Memory, store.Options{}))(t)
	defer db.Close()
	q := expect.Value(Open(db.Engine(), Options{}))(t)
	result := make(chan error)
	go func() {
		result <- q.Consume(context.Background(), queue.Inbox, accept, queue.ConsumeOptions{Concurrency: 3})
	}()
	expect.OK(t, q.Close())
	expect.Fault(t, "the send", <-result, fault.Unavailable)
	expect.Fault(t, "an unknown queue", q.Consume(context.Background(), "nowhere", accept, queue.ConsumeOptions{}), fault.Invalid)
}

// TestCloseWaitsForRunningHandlers checks that Close ends the context of a running handler, waits for the handler, so that it
// never uses a closed file, and keeps its result.
func TestCloseWaitsForRunningHandlers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.db")
	db := expect.Value(store.Open(path, store.Options{}))(t)
	q := expect.Value(Open(db.Engine(), Options{}))(t)
	send(t, q, queue.Slow, queue.Outgoing{Body: []byte("accepted"), Group: "a"}, queue.Outgoing{Body: []byte("failed"), Group: "b"})
	running, returned := make(chan struct{}, 2), make(chan error, 2)
	stop := run(q, queue.Slow, queue.ConsumeOptions{Batch: 1, Concurrency: 2}, func(ctx context.Context, batch []queue.Message) ([]string, error) {
		running <- struct{}{}
		<-ctx.Done()
		err := q.Send(context.Background(), queue.Inbox, queue.Outgoing{Body: batch[0].Body}) // the file is still open
		returned <- err
		if string(batch[0].Body) == "failed" {
			return nil, ctx.Err()
		}
		return nil, nil
	})
	<-running
	<-running
	expect.OK(t, q.Close(), "Close")
	expect.MustEqual(t, "the handlers that have returned", len(returned), 2)
	for range 2 {
		expect.OK(t, <-returned)
	}
	stop()
	expect.OK(t, db.Close())
	again := open(t, path, Options{})
	expect.Equal(t, "visible messages after the restart", depth(t, again, queue.Slow).Visible, 1)
}

func TestCloseDoesNotWaitForever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := expect.Value(store.Open(store.Memory, store.Options{}))(t)
		q := expect.Value(Open(db.Engine(), Options{Log: slog.New(slog.DiscardHandler)}))(t)
		send(t, q, queue.Inbox, queue.Outgoing{Body: []byte("m")})
		running := make(chan struct{})
		stop := run(q, queue.Inbox, queue.ConsumeOptions{}, func(context.Context, []queue.Message) ([]string, error) {
			close(running)
			time.Sleep(time.Hour) // ignores its context
			return nil, nil
		})
		<-running
		start := time.Now()
		expect.Fault(t, "the error of Close", q.Close(), fault.Unavailable)
		expect.Equal(t, "the time of Close", time.Since(start), closeTime)
		expect.OK(t, db.Close())
		stop() // the handler returns after the file was closed
	})
}

// crashFile, in the environment, makes this test binary the process that is killed.
const crashFile = "QUEUE_CRASH_FILE"

// TestAKilledProcessLosesNoMessage kills a process that sends and handles messages. Then it checks that every message whose Send
// had returned was handled or is still in the queue.
func TestAKilledProcessLosesNoMessage(t *testing.T) {
	if path := os.Getenv(crashFile); path != "" {
		workUntilKilled(path)
		return
	}
	path := filepath.Join(t.TempDir(), "events.db")
	sent, handled := map[string]bool{}, map[string]bool{}
	for round := range 3 {
		child := exec.Command(os.Args[0], "-test.run=^TestAKilledProcessLosesNoMessage$")
		child.Env = append(os.Environ(), fmt.Sprintf("%s=%s", crashFile, path), fmt.Sprintf("QUEUE_CRASH_ROUND=%d", round))
		child.Stderr = os.Stderr
		out := expect.Value(child.StdoutPipe())(t)
		expect.OK(t, child.Start())
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			verb, body, _ := strings.Cut(lines.Text(), " ")
			if verb == "sent" {
				sent[body] = true
			} else {
				handled[body] = true
			}
			if n == 300*(round+1) {
				_ = child.Process.Kill()
			}
		}
		_ = child.Wait()
	}
	q := open(t, path, Options{})
	var mu sync.Mutex
	for _, name := range []queue.Name{queue.Events, queue.Deliveries} {
		defer run(q, name, queue.ConsumeOptions{Concurrency: 2}, accepting(func(batch []queue.Message) {
			mu.Lock()
			defer mu.Unlock()
			for _, m := range batch {
				handled[string(m.Body)] = true
			}
		}))()
	}
	expect.Eventually(t, "each message that was sent is handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		maps.DeleteFunc(sent, func(body string, _ bool) bool { return handled[body] })
		return len(sent) == 0
	})
}

func workUntilKilled(path string) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	say := func(verb string, body []byte) {
		if _, err := io.WriteString(os.Stdout, verb+" "+string(body)+"\n"); err != nil {
			os.Exit(0) // the parent has ended
		}
	}
	db, err := store.Open(path, store.Options{})
	fail(err)
	q, err := Open(db.Engine(), Options{MaxReady: 20})
	fail(err)
	for _, name := range []queue.Name{queue.Events, queue.Deliveries} {
		go func() {
			fail(q.Consume(context.Background(), name, func(_ context.Context, batch []queue.Message) (failed []string, err error) {
				for i, m := range batch {
					if i >= 4 { // all later messages fail too, so that the order is kept
						failed = append(failed, m.ID)
						continue
					}
					say("handled", m.Body)
				}
				return failed, nil
			}, queue.ConsumeOptions{Concurrency: 2}))
		}()
	}
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 100_000 { // the parent kills the process long before
				body := fmt.Appendf(nil, "%s-%d-%d", os.Getenv("QUEUE_CRASH_ROUND"), w, i)
				if i%2 == 0 {
					fail(q.Send(context.Background(), queue.Deliveries, queue.Outgoing{Body: body}))
				} else {
					fail(q.Send(context.Background(), queue.Events, queue.Outgoing{Body: body, Group: fmt.Sprint("g", w), Dedup: string(body)}))
				}
				say("sent", body)
			}
		})
	}
	all.Wait()
}

func TestTheBytesInHandlersAreBounded(t *testing.T) {
	t.Run("WHK-26 handlers have at most the given bytes, a group at most half of them, and every message is handled", func(t *testing.T) {
		const bytes, size = 1000, 100
		inBubble(t, Options{}, func(t *testing.T, q *Queues) {
			var mu sync.Mutex
			now, most, all := map[string]int{}, map[string]int{}, 0
			add := func(m queue.Message, n int) {
				mu.Lock()
				defer mu.Unlock()
				for _, of := range []string{m.Group, "all"} {
					now[of] += n
					most[of] = max(most[of], now[of])
				}
				all += max(n, 0) / size
			}
			defer run(q, queue.Deliveries, queue.ConsumeOptions{Batch: 3, Concurrency: 50, Bytes: bytes}, func(_ context.Context, batch []queue.Message) ([]string, error) {
				for _, m := range batch {
					add(m, len(m.Body))
				}
				time.Sleep(time.Second)
				for _, m := range batch {
					add(m, -len(m.Body))
				}
				return nil, nil
			})()
			var msgs []queue.Outgoing
			for i := range 60 {
				msgs = append(msgs, queue.Outgoing{Body: []byte(strings.Repeat("x", size)), Group: []string{"a", "a", "b"}[i%3]})
			}
			expect.OK(t, q.Send(context.Background(), queue.Deliveries, msgs...))
			time.Sleep(time.Minute)
			mu.Lock()
			defer mu.Unlock()
			if all != len(msgs) || most["all"] != bytes || most["a"] > bytes/2 || most["b"] > bytes/2 {
				t.Errorf("%d of %d messages were handled, with at most %v bytes at the same time; want %d, and half of it for a group", all, len(msgs), most, bytes)
			}
		})
	})
}

package sqlite

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	store "github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// poisonFile and poisonQueue, in the environment, make this test binary the process that a message kills.
const (
	poisonFile  = "QUEUE_POISON_FILE"
	poisonQueue = "QUEUE_POISON_QUEUE"

	poison          = "poison"
	poisonReceives  = 3
	exitedByPoison  = 7
	maxPoisonDeaths = 10
)

// TestAMessageThatKillsTheProcessBecomesADeadLetter starts processes that handle a queue. One message ends its process before its
// handler returns, as a fatal error of the Go runtime would. After [poisonReceives] processes it must be a dead letter, and the
// messages that were handled together with it must not.
func TestAMessageThatKillsTheProcessBecomesADeadLetter(t *testing.T) {
	if path := os.Getenv(poisonFile); path != "" {
		workUntilPoisoned(path, queue.Name(os.Getenv(poisonQueue)))
		return
	}
	for _, name := range []queue.Name{queue.Deliveries, queue.Events} {
		t.Run("WHK-19 on the queue "+string(name), func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "events.db")
			q, end := start(t, path, store.Options{}, Options{})
			for _, body := range []string{"a", poison, "b"} {
				send(t, q, name, queue.Outgoing{Body: []byte(body), Group: "g", Dedup: dedupOf(name, body)})
			}
			end()
			deaths := 0
			var handled []string
			for ; deaths < maxPoisonDeaths; deaths++ {
				child := exec.Command(os.Args[0], "-test.run=^TestAMessageThatKillsTheProcessBecomesADeadLetter$")
				child.Env = append(os.Environ(), poisonFile+"="+path, poisonQueue+"="+string(name))
				child.Stderr = os.Stderr
				out := expect.Value(child.StdoutPipe())(t)
				expect.OK(t, child.Start())
				for lines := bufio.NewScanner(out); lines.Scan(); {
					if body, ok := strings.CutPrefix(lines.Text(), "handled "); ok {
						handled = append(handled, body)
					}
				}
				_ = child.Wait()
				if code := child.ProcessState.ExitCode(); code == 0 {
					break
				} else if code != exitedByPoison {
					t.Fatalf("got the exit code %d, want 0 or %d", code, exitedByPoison)
				}
			}
			expect.MustEqual(t, "the killed processes", deaths, poisonReceives)
			slices.Sort(handled)
			expect.List(t, "the other messages", slices.Compact(handled), []string{"a", "b"})
			q, end = start(t, path, store.Options{}, Options{})
			defer end()
			dead := make(chan queue.Message, 10)
			defer run(q, queue.Dead, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
				for _, m := range batch {
					dead <- m
				}
				return nil, nil
			})()
			letter := expect.Value(queue.ParseDeadLetter((<-dead).Body))(t)
			if letter.Body != poison || letter.Received != poisonReceives || letter.Reason != queue.ReasonReceives {
				t.Errorf("got the dead letter %+v, want the poison with %d receives", letter, poisonReceives)
			}
			expect.Equal(t, "the messages in the queue and further dead letters", rowsOf(t, q, name)+int64(len(dead)), 0)
		})
	}
}

// workUntilPoisoned handles a queue until it is empty or the poison ends the process.
func workUntilPoisoned(path string, name queue.Name) {
	fail := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	db, err := store.Open(path, store.Options{})
	fail(err)
	q, err := Open(db.Engine(), Options{Log: slog.New(slog.DiscardHandler)})
	fail(err)
	empty, stop := context.WithCancel(context.Background())
	left := func() int {
		d, err := q.Depth(context.Background(), name)
		fail(err)
		return d.Visible + d.InFlight
	}
	go func() {
		for left() > 0 {
			time.Sleep(time.Millisecond)
		}
		stop()
	}()
	fail(q.Consume(empty, name, func(_ context.Context, batch []queue.Message) ([]string, error) {
		for _, m := range batch {
			if string(m.Body) == poison {
				os.Exit(exitedByPoison)
			}
		}
		for _, m := range batch {
			fmt.Println("handled " + string(m.Body))
		}
		return nil, nil
	}, queue.ConsumeOptions{MaxReceives: poisonReceives}))
	fail(q.Close())
	fail(db.Close())
	os.Exit(0)
}

// A handler that knows that a message is new need not look for what an earlier receive has done.
func TestOnlyTheFirstReceiveInAnyProcessIsMarked(t *testing.T) {
	for _, name := range []queue.Name{queue.Deliveries, queue.Events} {
		t.Run(string(name), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "events.db")
				q, end := start(t, path, store.Options{}, Options{})
				send(t, q, name, queue.Outgoing{Body: []byte("left"), Group: "g", Dedup: dedupOf(name, "left")})
				end()
				q, end = start(t, path, store.Options{}, Options{})
				defer end()
				synctest.Wait() // until the message that is left has been read, because the same read might find the new one
				send(t, q, name, queue.Outgoing{Body: []byte("new"), Group: "h", Dedup: dedupOf(name, "new"), Value: 7})
				got := make(chan string, 10)
				defer run(q, name, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) (failed []string, _ error) {
					for _, m := range batch {
						got <- fmt.Sprintf("%s %d %v %v", m.Body, m.Received, m.First, m.Value)
						if m.Received == 1 {
							failed = append(failed, m.ID)
						}
					}
					return failed, nil
				})()
				var all []string
				for range 4 {
					all = append(all, <-got)
				}
				slices.Sort(all)
				expect.List(t, "the receives", all, []string{"left 1 false <nil>", "left 2 false <nil>", "new 1 true 7", "new 2 false <nil>"})
			})
		})
	}
}

// On a FIFO queue, a message that fails behind another one does not count a receive. Nevertheless, its handler may have done some
// of its work.
func TestAMessageThatFailedBehindAnotherIsNotNew(t *testing.T) {
	inBubble(t, Options{}, func(t *testing.T, q *Queues) {
		for _, body := range []string{"a", "b"} {
			send(t, q, queue.Events, queue.Outgoing{Body: []byte(body), Group: "g", Dedup: body})
		}
		var all []string
		stop := run(q, queue.Events, queue.ConsumeOptions{}, func(_ context.Context, batch []queue.Message) ([]string, error) {
			for _, m := range batch {
				all = append(all, fmt.Sprintf("%s %d %v", m.Body, m.Received, m.First))
			}
			if len(all) == 2 {
				return nil, errors.New("no")
			}
			return nil, nil
		})
		time.Sleep(time.Minute)
		stop()
		expect.List(t, "the receives", all, []string{"a 1 true", "b 1 true", "a 2 false", "b 1 false"})
	})
}

// dedupOf returns a deduplication id, which only FIFO queues accept.
func dedupOf(name queue.Name, id string) string {
	if name.FIFO() {
		return id
	}
	return ""
}

package stream_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// interleaved is a store in which publishers commit an event to every shard of a pattern after each read of one of them.
// So no two shards are read at the same moment.
type interleaved struct {
	store.DB
	turn    chan struct{} // of the bubble, unlike a mutex, so that its clock runs while a commit takes its time
	rounds  int           // how many more reads are followed by commits
	publish func()
}

func (s *interleaved) Query(ctx context.Context, q store.Query) (store.Page, error) {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	page, err := s.DB.Query(ctx, q)
	if err == nil && s.rounds > 0 && strings.HasPrefix(q.Partition, "w#") && !q.Reverse {
		s.rounds--
		s.publish()
	}
	return page, err
}

// uriPerShard returns one URI for each shard of [openPattern].
func uriPerShard() (uris []string) {
	found := map[uint32]bool{}
	for i := 0; len(uris) < eventlog.Shards; i++ {
		uri := fmt.Sprintf("event://sim/%d", i)
		h := fnv.New32a()
		h.Write([]byte(uri))
		if shard := h.Sum32() % eventlog.Shards; !found[shard] {
			found[shard] = true
			uris = append(uris, uri)
		}
	}
	return uris
}

// A chain of polls returns every event of a wildcard although events are committed between the reads of its shards:
// SQLite exactly once, and a store in which writers stamp at least once.
func TestPollsOfAWildcardWhileEventsAreCommittedBetweenTheReadsOfItsShards(t *testing.T) {
	stores := map[string]func(*testing.T) store.DB{
		"SQLite": embedded, "stamped by writers": slowest(20 * time.Millisecond),
	}
	filters := map[string]func(*event.Event) bool{
		"": nil, " with a filter": func(e *event.Event) bool { return !strings.HasSuffix(e.ID, "0") },
	}
	for name, open := range stores {
		for filter, wants := range filters {
			for _, most := range []int{1, 3, 500} {
				t.Run(fmt.Sprintf("EVX-26 %s, pages of %d%s", name, most, filter), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						db := &interleaved{DB: open(t), turn: make(chan struct{}, 1)}
						r := over(t, db)
						uris := uriPerShard()
						var published []string
						db.publish = func() {
							for _, uri := range uris {
								e := occurrence(fmt.Sprint(len(published)), uri)
								if wants == nil || wants(&e) {
									published = append(published, e.ID)
								} else {
									published = append(published, "")
								}
								if _, err := (&eventlog.Log{DB: db.DB}).Append(t.Context(), "default", uri, []event.Event{e}, []string{openPattern.Key}); err != nil {
									t.Error(err)
								}
							}
						}
						request := stream.PollRequest{Pattern: openPattern, Most: most, Bytes: 1 << 20, Wants: wants}
						request.Cursor = r.poll(request).Cursor
						db.rounds = 40

						got := map[string]int{}
						for quiet := 0; quiet < 2; {
							page := r.poll(request)
							for _, e := range page.Events {
								got[e.ID]++
							}
							request.Cursor = page.Cursor
							if quiet++; len(page.Events) > 0 || page.More {
								quiet = 0
							} else {
								time.Sleep(2 * eventlog.Window)
							}
						}
						if len(published) != 40*len(uris) {
							t.Fatalf("the publishers committed %d events, want %d", len(published), 40*len(uris))
						}
						skipped, repeated := 0, 0
						for _, id := range published {
							if id == "" {
								continue
							}
							if got[id] == 0 {
								skipped++
							}
							repeated += max(0, got[id]-1)
						}
						if skipped > 0 || repeated > 0 && r.db.Stamps() {
							t.Errorf("of %d events, polls skipped %d and repeated %d, want 0 and 0", len(published), skipped, repeated)
						}
					})
				})
			}
		}
	}
}

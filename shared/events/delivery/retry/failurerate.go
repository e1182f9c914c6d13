package retry

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// An MCP Events subscription is suspended if more than 95 % of its attempts in the last hour failed (SEP-3415, webhook event
// delivery). Several processes make these attempts, and each one counts only its own. So each process stores its counts, with
// one item per subscription and minute, next to the subscription's status. A process that records a failure reads the items of
// all processes and adds them up.
//
// A process stores a failure immediately. A write per success would be too expensive, so it stores successes together with the
// status, at the latest when their number has doubled. The sum may therefore lack up to half of another process's latest
// successes. For example, if the rate appears to be 95 %, the real rate is at least 90 %.

const (
	rateWindow  = time.Hour
	rateMinimum = 100 // with fewer attempts, no subscription is suspended
	// ratePercent is the failure rate in percent above which a subscription is suspended.
	ratePercent = 95
	// rateUnwritten is the number of successes that a process counts without a write.
	rateUnwritten = 4
	// rateAsk is how often a process adds up the attempts of a subscription, unless it makes rateMinimum attempts sooner.
	rateAsk   = 5 * time.Second
	maxTallys = 100_000
)

// tally counts this process's attempts for one subscription.
type tally struct {
	minutes []minuteTally // the minutes with unwritten attempts, and the current one; oldest first
	began   time.Time     // when written was last 0
	written int           // written successes
	dirty   int           // unwritten successes
	asked   time.Time     // when the attempts of all processes were last added up
	since   int           // attempts since asked
}

// minuteTally counts the attempts of one minute. It is the value of an item.
type minuteTally struct {
	Minute int64 `json:"-"` // since 1970
	OK     int   `json:"ok,omitempty"`
	Failed int   `json:"f,omitempty"`
}

// rates has the tallies of a process. The zero value is ready to use.
type rates struct {
	mu   sync.Mutex
	self string // the name of this process in the keys of its items
	subs map[string]*tally
}

const ratePrefix = "rate#"

func rateKey(workspace, id string, minute int64, self string) store.Key {
	k := subscription.StatusKey(workspace, id)
	k.Sort = fmt.Sprintf("%s%010d#%s", ratePrefix, minute, self)
	return k
}

func (r *rates) get(workspace, id string, now time.Time) *tally {
	if r.self == "" || len(r.subs) >= maxTallys {
		r.self, r.subs = rand.Text()[:10], map[string]*tally{} // the old items keep their counts
	}
	key := workspace + "#" + id
	t := r.subs[key]
	if t == nil {
		t = &tally{began: now}
		r.subs[key] = t
	}
	return t
}

// count counts an attempt and returns the writes that are due. After a failure, or if flush is set, it returns all counts that
// are not written yet. After a success it returns them only if there are enough, because a write per success would be expensive.
func (r *rates) count(workspace, id string, failed, flush bool, now time.Time) (due []store.Op) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.get(workspace, id, now)
	minute := now.Unix() / 60
	if n := len(t.minutes); n == 0 || t.minutes[n-1].Minute != minute {
		t.minutes = append(t.minutes, minuteTally{Minute: minute})
	}
	m := &t.minutes[len(t.minutes)-1]
	t.since++
	if failed {
		m.Failed++
	} else {
		m.OK++
		t.dirty++
	}
	if now.Sub(t.began) > rateWindow {
		t.began, t.written = now, 0
	}
	if !failed && !flush && t.dirty < max(rateUnwritten, t.written) {
		return nil
	}
	for _, m := range t.minutes {
		value, _ := json.Marshal(m) // two numbers
		due = append(due, store.Put(store.Item{
			Key: rateKey(workspace, id, m.Minute, r.self), Value: value,
			Expires: time.Unix(m.Minute*60, 0).Add(rateWindow + 2*time.Minute),
		}))
	}
	t.minutes = append(t.minutes[:0], *m)
	t.written, t.dirty = t.written+t.dirty, 0
	return due
}

// failing reports whether the attempts of all processes in the last hour failed too often. Attempts before resumed, in
// seconds since 1970, do not count. Most calls return false without a read; see [rateAsk].
func (r *rates) failing(ctx context.Context, db store.DB, workspace, id string, resumed int64, now time.Time) (bool, error) {
	r.mu.Lock()
	t := r.get(workspace, id, now)
	if now.Sub(t.asked) < rateAsk && !now.Before(t.asked) && t.since < rateMinimum {
		r.mu.Unlock()
		return false, nil
	}
	t.asked, t.since = now, 0
	first := max(now.Add(-rateWindow).Unix(), resumed)/60 + 1
	own := map[string]bool{}
	ok, failed := 0, 0
	for _, m := range t.minutes { // the items of these minutes may be older
		if own[rateKey(workspace, id, m.Minute, r.self).Sort] = true; m.Minute >= first {
			ok, failed = ok+m.OK, failed+m.Failed
		}
	}
	r.mu.Unlock()

	q := store.Query{Table: store.Deliveries, Limit: 500}
	from := rateKey(workspace, id, first, "")
	q.Partition, q.After, q.Until = from.Partition, strings.TrimSuffix(from.Sort, "#"), ratePrefix+"~"
	for {
		page, err := db.Query(ctx, q)
		if err != nil {
			return false, fault.Wrap(fault.Unavailable, err, "read the rate of a subscription's failures")
		}
		for _, it := range page.Items {
			if own[it.Sort] {
				continue
			}
			var m minuteTally
			if err := json.Unmarshal(it.Value, &m); err != nil {
				continue // it expires soon, and one minute of one process changes the rate little
			}
			ok, failed = ok+m.OK, failed+m.Failed
		}
		if !page.More {
			return ok+failed >= rateMinimum && 100*failed > ratePercent*(ok+failed), nil
		}
		q.After = page.Last
	}
}

package property

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

// mood is how an endpoint answers.
type mood int

const (
	well mood = iota
	flaky
	slow
	failing
	hanging
	busy
)

// receipt is a request that an endpoint accepted.
type receipt struct {
	at     time.Time
	id     string // webhook-id
	n      int
	cursor string
	notice string // the type of a message that is no event
}

// endpoints are the made-up webhook endpoints, by URL.
type endpoints struct {
	mu       sync.Mutex
	random   *rand.Rand
	moods    map[string]mood
	received map[string][]receipt
	attempts int
	failures int
}

func newEndpoints(seed uint64) *endpoints {
	return &endpoints{random: rand.New(rand.NewPCG(seed, 99)), moods: map[string]mood{}, received: map[string][]receipt{}}
}

func (e *endpoints) set(url string, m mood) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.moods[url] = m
}

func (e *endpoints) all(m mood) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for url := range e.moods {
		e.moods[url] = m
	}
}

// answer decides about a request, and keeps it if it is accepted.
func (e *endpoints) answer(r webhook.Request) webhook.Outcome {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.attempts++
	took := between(e.random, 0, 20*time.Millisecond)
	m := e.moods[r.URL]
	if m == flaky {
		m = []mood{well, well, well, failing}[e.random.IntN(4)]
	}
	switch m {
	case failing:
		e.failures++
		return webhook.Outcome{Status: 500, Category: webhook.HTTP5xx, Took: took}
	case busy:
		e.failures++
		return webhook.Outcome{Status: 429, Category: webhook.HTTP4xx, RetryAfter: 2 * time.Second, Took: took}
	case hanging:
		e.failures++
		return webhook.Outcome{Status: 200, Took: time.Hour}
	case slow:
		took = between(e.random, 500*time.Millisecond, 3*time.Second)
	}
	var body struct {
		Type   string
		Cursor string
		Data   *payload
	}
	_ = json.Unmarshal(r.Body, &body)
	got := receipt{at: time.Now(), id: r.ID, cursor: body.Cursor, n: -1, notice: body.Type}
	if body.Data != nil {
		got.n, got.notice = body.Data.N, ""
	}
	e.received[r.URL] = append(e.received[r.URL], got)
	return webhook.Outcome{Status: 200, Took: took}
}

func (e *endpoints) receipts(url string) []receipt {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.received[url])
}

// subscriber is a webhook subscription.
type subscriber struct {
	*run
	random  *rand.Rand
	url     string
	wish    wish
	id      string
	since   time.Time
	cursors []watermark // of answers to subscribe
	faults  []string
}

// watermark is a cursor that the client may have stored at a time.
type watermark struct {
	at     time.Time
	cursor string
	from   string
}

// subscribe makes or refreshes the subscription. With resume the client passes the last cursor that it has.
func (s *subscriber) subscribe(resume bool) bool {
	server := s.system.pick(s.random.IntN)
	if server == nil {
		return false
	}
	var out struct {
		ID, Cursor string
		Truncated  bool
	}
	params := map[string]any{
		"name": s.wish.name, "arguments": json.RawMessage(s.wish.arguments()),
		"delivery": map[string]any{"mode": "webhook", "url": s.url, "secret": "whsec_" + strings.Repeat("a", 32)},
	}
	if resume {
		params["cursor"] = s.last()
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	asked := time.Now()
	if err := call(ctx, server.endpoint, spec.MethodEventsSub, params, &out); err != nil {
		if !server.isDead() && !s.run.faults {
			s.faults = append(s.faults, err.Error())
		}
		return false
	}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	s.id = out.ID
	if out.Cursor != "" && !resume {
		s.cursors = append(s.cursors, watermark{asked, out.Cursor, "a refresh"})
	}
	if out.Truncated {
		s.faults = append(s.faults, "the answer to subscribe is truncated although nothing had expired")
	}
	return true
}

// last returns the last cursor that the subscriber has.
func (s *subscriber) last() string {
	for _, r := range slices.Backward(s.system.endpoints.receipts(s.url)) {
		if r.cursor != "" {
			return r.cursor
		}
	}
	return s.cursors[len(s.cursors)-1].cursor
}

// open lists the accepted events that the subscriber has not received.
func (s *subscriber) open() (missing []*occurrence) {
	got := map[int]bool{}
	for _, r := range s.system.endpoints.receipts(s.url) {
		got[r.n] = true
	}
	for _, o := range s.ledger.accepted(s.wish, s.since) {
		if !got[o.n] {
			missing = append(missing, o)
		}
	}
	return missing
}

// letters counts the dead letters of the subscription by event.
func (s *subscriber) letters(server *process) (map[string][]deadletter.Letter, error) {
	found := map[string][]deadletter.Letter{}
	for before := ""; ; {
		list, next, err := server.operations.ListLetters(context.Background(), caller.Workspace, deadletter.LetterQuery{Subscription: s.id}, before, 100)
		if err != nil {
			return nil, err
		}
		for _, l := range list {
			found[l.Event+" "+l.URI] = append(found[l.Event+" "+l.URI], l)
		}
		if before = next; next == "" {
			return found, nil
		}
	}
}

// settled reports whether every accepted event was received or is a dead letter.
func (s *subscriber) settled(server *process) bool {
	missing := s.open()
	if len(missing) == 0 {
		return true
	}
	letters, err := s.letters(server)
	if err != nil {
		return false
	}
	return len(unaccounted(missing, letters)) == 0
}

// unaccounted returns the events without a dead letter.
func unaccounted(missing []*occurrence, letters map[string][]deadletter.Letter) (rest []*occurrence) {
	used := map[string]int{}
	for _, o := range missing {
		name := o.id + " " + o.uri
		if used[name]++; used[name] > len(letters[name]) {
			rest = append(rest, o)
		}
	}
	return rest
}

// check compares what the endpoint received with the ledger.
func (s *subscriber) check(server *process) (problems []string, dead int) {
	report := func(format string, args ...any) {
		problems = append(problems, fmt.Sprintf("webhook %s (%s): ", s.url, s.wish)+fmt.Sprintf(format, args...))
	}
	for _, f := range s.faults {
		report("%s", f)
	}
	receipts := s.system.endpoints.receipts(s.url)
	ids, arrived := map[int]string{}, map[int]time.Time{}
	var gaps []watermark
	for _, r := range receipts {
		switch o := s.ledger.event(r.n); {
		case r.n < 0:
			if r.notice == "gap" {
				gaps = append(gaps, watermark{r.at, r.cursor, "a gap notice"})
			} else {
				report("got a message of type %q", r.notice)
			}
		case o == nil || !s.wish.wants(o):
			report("got event %d, which was not asked for", r.n)
		case ids[r.n] != "" && ids[r.n] != r.id:
			report("got event %d with webhook-id %s and again with %s", r.n, ids[r.n], r.id)
		case ids[r.n] == "":
			ids[r.n], arrived[r.n] = r.id, r.at
		}
	}
	letters, err := s.letters(server)
	if err != nil {
		report("%v", err)
		return problems, 0
	}
	missing := s.open()
	lost := unaccounted(missing, letters)
	dead = len(missing) - len(lost)
	if len(missing) == 0 && len(gaps) == 0 && len(receipts) == 0 {
		return problems, dead
	}
	// A client that reads on from the cursor of a notice must find the events that were given up.
	found := map[int]bool{}
	for _, gap := range gaps {
		got, _, err := s.readOn(server, s.wish, gap.cursor)
		if err != nil {
			report("%v", err)
		}
		for n := range got {
			found[n] = true
		}
	}
	var gone, unannounced []int
	for _, o := range missing {
		switch {
		case found[o.n]:
		case slices.Contains(lost, o):
			gone = append(gone, o.n)
		default:
			unannounced = append(unannounced, o.n)
		}
	}
	if len(gone) > 0 {
		report("%d of %d events did not arrive, have no dead letter and lie in no announced gap: %s",
			len(gone), len(s.ledger.accepted(s.wish, s.since)), s.ledger.describe(gone))
	}
	if len(unannounced) > 0 {
		report("%d events were given up without a gap notice whose cursor leads to them (%d notices): %s", len(unannounced), len(gaps), s.ledger.describe(unannounced))
	}
	for _, w := range s.watermarks(receipts) {
		s.checkWatermark(server, w, arrived, letters, report)
	}
	return problems, dead
}

// watermarks draws some of the cursors that the client had.
func (s *subscriber) watermarks(receipts []receipt) (list []watermark) {
	seen := map[string]bool{}
	for _, r := range receipts {
		if r.n >= 0 && r.cursor != "" && !seen[r.cursor] {
			seen[r.cursor] = true
			list = append(list, watermark{r.at, r.cursor, "a delivery"})
		}
	}
	list = append(list, s.cursors...)
	s.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list[:min(len(list), 6)]
}

// checkWatermark reads on from a cursor. It expects every earlier event to have been acknowledged or given up before the client
// received the cursor.
func (s *subscriber) checkWatermark(server *process, w watermark, arrived map[int]time.Time, letters map[string][]deadletter.Letter, report func(string, ...any)) {
	got, truncated, err := s.readOn(server, s.wish, w.cursor)
	if err != nil || truncated {
		report("reading on from the cursor of %s: truncated %v, %v", w.from, truncated, err)
		return
	}
	var skipped []int
	for _, o := range s.ledger.accepted(s.wish, s.since) {
		at, ok := arrived[o.n]
		before := ok && !at.After(w.at)
		abandoned := slices.ContainsFunc(letters[o.id+" "+o.uri], func(l deadletter.Letter) bool { return !l.Dead.After(w.at.Add(time.Second)) })
		if !before && !abandoned && !got[o.n] {
			skipped = append(skipped, o.n)
		}
	}
	if len(skipped) > 0 {
		report("the cursor of %s at %s skips %d events that were open: %s", w.from, w.at.Format("04:05.000"), len(skipped), s.ledger.describe(skipped))
	}
}

// logged reports whether every event has left the events queue.
func (s *system) logged() bool {
	d, err := cmp.Or(s.processes[0].queues, s.queues).Depth(context.Background(), queue.Events)
	return err == nil && d.Visible+d.InFlight+d.Delayed == 0
}

// undecided describes the messages that still wait in the queues.
func (s *system) undecided() string {
	var text []string
	p := s.processes[0]
	queues := cmp.Or(p.queues, s.queues)
	for _, name := range queue.Names() {
		if d, err := queues.Depth(context.Background(), name); err == nil && d.Visible+d.InFlight+d.Delayed > 0 {
			text = append(text, fmt.Sprintf("%s: %d visible, %d in flight, %d delayed", name, d.Visible, d.InFlight, d.Delayed))
		}
	}
	return strings.Join(text, "; ")
}

//go:build !race

package delivery

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/events/delivery/lifecycle"
	"github.com/mcp-events/mcpevents/shared/events/delivery/retry"
	"github.com/mcp-events/mcpevents/shared/events/fanout"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/subscription"
	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/mcp"
	"github.com/mcp-events/mcpevents/shared/mcp/events"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

const (
	chatUsers    = 1000
	chatChannels = 10
	chatLifetime = 6 * time.Hour // that the server grants
	chatHost     = "https://chat.example/mcp-events/"
)

// TestADayOfChatGPT lets a thousand users of the scripted double of ChatGPT live through 24 hours with this server. They
// subscribe, refresh after 73 % of the lifetime, and rotate their secrets. Some delete a task, which unsubscribes, and some remove
// the plugin, which does not. In the meantime another release is deployed next to the first, takes over, and is rolled back. Every
// event that was published while a subscription lived must arrive at its callback, and no event after that.
// EVX-20, EVX-09, EVX-10, EVX-15: a day, a deployment and a rollback lose no event.
func TestADayOfChatGPT(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &rehearsal{callbacks: map[string]*userTask{}, random: rand.New(rand.NewPCG(20, 26)), begin: time.Now()}
		d.world, d.config = newWorld(t)
		before := d.start("before")
		var everyone sync.WaitGroup
		for n := range chatUsers {
			joins, tasks := d.upTo(2*time.Hour), 1+n%10/7
			removes := time.Duration(0) // the plugin
			if n%10 == 3 {
				removes = 3*time.Hour + d.upTo(18*time.Hour)
			}
			for i := range tasks {
				c := &userTask{
					d: d, user: fmt.Sprintf("user%d", n), url: fmt.Sprintf("%scallback_%d_%d", chatHost, n, i), channel: d.below(chatChannels),
					got: map[string]bool{},
				}
				if (n+i)%6 == 5 {
					c.deletes = 3*time.Hour + d.upTo(18*time.Hour)
				}
				d.tasks, d.callbacks[c.url] = append(d.tasks, c), c
				c.removes = removes
				everyone.Go(func() { time.Sleep(joins); c.live() })
			}
		}
		d.sleepUntil(30 * time.Minute) // events come while users still join
		everyone.Go(d.publish)
		d.sleepUntil(8 * time.Hour)
		after := d.start("after")
		d.sleepUntil(8*time.Hour + 10*time.Minute)
		before()
		d.sleepUntil(16 * time.Hour)
		before = d.start("before")
		d.sleepUntil(16*time.Hour + 10*time.Minute)
		after()
		everyone.Wait()
		time.Sleep(30 * time.Minute) // the longest schedule of an event is half of that
		d.judge()
		before()
		_ = d.queued.Close()
	})
}

// rehearsal is a server whose processes start and stop, and ChatGPT, which is one host with the callbacks of all users.
type rehearsal struct {
	*world
	config Config // of the dispatchers
	begin  time.Time
	random *rand.Rand

	mu        sync.Mutex
	serving   []http.Handler // the MCP endpoints of the processes
	turn      int
	tasks     []*userTask
	callbacks map[string]*userTask // by URL
	events    []published

	challenges, posts, failures, refreshes, rotations atomic.Int64
}

type published struct {
	id      string
	channel int
	at      time.Time
}

func (d *rehearsal) upTo(span time.Duration) time.Duration {
	return time.Duration(d.random.Int64N(int64(span)))
}
func (d *rehearsal) below(n int) int             { return d.random.IntN(n) }
func (d *rehearsal) sleepUntil(at time.Duration) { time.Sleep(time.Until(d.begin.Add(at))) }

// start starts a process and returns a function that stops it. The earlier release does not know profiles and stores none.
func (d *rehearsal) start(release string) (stop func()) {
	ctx, cancel := context.WithCancel(d.t.Context())
	log := &eventlog.Log{DB: d.db}
	services := &subscription.Service{Store: subscription.Store{DB: d.db}, Catalog: d.catalogs, Log: log}
	var registrar events.Registrar = &subscription.Registrar{
		Service: services, Sealer: d.sealer, Targets: verifying{plain{}, d}, Options: subscription.Options{DefaultTTL: chatLifetime},
		Replay: &deadletter.Replayer{Log: log, Queue: d.queued}, Watermark: &lifecycle.Watermark{DB: d.db},
	}
	if release == "before" {
		registrar = withoutProfiles{registrar}
	}
	var keys []auth.Key
	for n := range chatUsers {
		name := fmt.Sprintf("user%d", n)
		h := sha256.Sum256([]byte(name))
		keys = append(keys, auth.Key{Principal: name, Workspace: "default", Scopes: []string{auth.ScopeRead, auth.ScopeSubscribe}, SHA256: hex.EncodeToString(h[:])})
	}
	authenticator, err := auth.NewStaticKeys(keys, nil)
	expect.OK(d.t, err)
	endpoint, err := mcp.New(mcp.Options{
		Auth: authenticator, Catalogs: d.catalogs, Registrar: registrar, Deregistrar: services, Logger: slog.New(slog.DiscardHandler),
	})
	expect.OK(d.t, err)
	config := d.config
	config.Poster, config.Gate, config.Options, config.Subscriptions = d, &Gate{}, embedded(), services
	config.Gaps = &lifecycle.Gaps{Log: log, Sealer: func(context.Context) (*eventlog.Sealer, error) { return d.sealer, nil }}
	config.Terminator = &lifecycle.Terminator{
		Queue: d.queued, Subscriptions: services, Lists: d.services.Lists, Log: config.Log, Plain: []string{chatHost}, Review: config.Terminator.Review,
	}
	dispatcher := NewDispatcher(config)
	fanout := &fanout.Fanout{DB: d.db, Log: log, Catalog: d.catalogs, Queue: d.queued}
	var workers sync.WaitGroup
	d.consume(ctx, &workers, queue.Events, fanout.Handle, queue.ConsumeOptions{Batch: 100, Concurrency: 4})
	d.consume(ctx, &workers, queue.Deliveries, dispatcher.HandlePages, queue.ConsumeOptions{Batch: 10, Concurrency: 64, PerGroup: 16, Visibility: 2 * time.Minute})
	d.consume(ctx, &workers, queue.Slow, dispatcher.HandleSingles, queue.ConsumeOptions{Batch: 1, Concurrency: 64, PerGroup: 8, Visibility: 2 * time.Minute})
	retry, sweeper := &retry.Job{DB: d.db, Queue: d.queued}, &subscription.Sweeper{Service: services}
	workers.Go(func() {
		for periodic.Sleep(ctx, time.Minute) == nil {
			_, err := retry.Run(context.WithoutCancel(ctx))
			_, swept := sweeper.Sweep(context.WithoutCancel(ctx))
			if err := errors.Join(err, swept); err != nil {
				d.t.Error(err)
			}
		}
	})
	d.mu.Lock()
	d.serving = append(d.serving, endpoint)
	d.mu.Unlock()
	return func() {
		d.mu.Lock()
		d.serving = slices.DeleteFunc(d.serving, func(h http.Handler) bool { return h == endpoint })
		d.mu.Unlock()
		cancel()
		workers.Wait()
		dispatcher.Wait(context.Background())
	}
}

type withoutProfiles struct{ events.Registrar }

func (r withoutProfiles) Subscribe(ctx context.Context, p auth.Principal, s subscription.SubscribeRequest) (*subscription.SubscribeResult, error) {
	s.Profile = ""
	return r.Registrar.Subscribe(ctx, p, s)
}

// verifying are targets whose challenges the double answers.
type verifying struct {
	plain
	d *rehearsal
}

func (v verifying) Verify(_ context.Context, url, _ string, key []byte) error {
	time.Sleep(200 * time.Millisecond)
	v.d.challenges.Add(1)
	c := v.d.callbacks[url]
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || string(key) != c.secret {
		return fmt.Errorf("the callback does not answer the challenge: gone %v, secret %q", c.gone, key)
	}
	return nil
}

// publish sends an event to a channel every three minutes, so each channel has one in half an hour.
func (d *rehearsal) publish() {
	for n := 0; time.Since(d.begin) < 24*time.Hour; n++ {
		channel := n % chatChannels
		id := fmt.Sprintf("evt_%d", n)
		m := d.message(fmt.Sprintf("event://github/channel%d/app/push", channel), "github.push", id, `{"branch":"main"}`, time.Now())
		m.Group, m.Dedup = fmt.Sprintf("g%d", channel), id
		d.mu.Lock()
		d.events = append(d.events, published{id, channel, time.Now()})
		d.mu.Unlock()
		expect.OK(d.t, d.queued.Send(d.t.Context(), queue.Events, m))
		time.Sleep(3 * time.Minute)
	}
}

// Send receives the webhooks as the host of the callbacks.
func (d *rehearsal) Send(ctx context.Context, r webhook.Request) webhook.Outcome {
	n := d.posts.Add(1)
	took := 50*time.Millisecond + time.Duration(n%10)*25*time.Millisecond
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return webhook.Outcome{Category: webhook.Aborted, Err: ctx.Err()}
	}
	c := d.callbacks[r.URL]
	if n%50 == 0 { // it is overloaded
		d.failures.Add(1)
		return webhook.Outcome{Status: 503, Category: webhook.HTTP5xx, Took: took}
	}
	return c.receive(r, took)
}

// userTask is one task of a user in ChatGPT. Each task has its own subscription and callback.
type userTask struct {
	d         *rehearsal
	user, url string
	channel   int
	// deletes is when the user deletes the task, and removes when the user removes the plugin. 0 means never.
	deletes, removes time.Duration

	mu          sync.Mutex
	secret, old string
	rotated     time.Time
	id          string
	cursor      *string
	got         map[string]bool
	from        time.Time // the answer to the first subscribe
	until       time.Time // when it ended; zero if it did not
	lapses      time.Time // refreshBefore
	gone        bool
	unexpected  []string
}

// receive answers a webhook as the callback of the task.
func (t *userTask) receive(r webhook.Request, took time.Duration) webhook.Outcome {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.gone {
		return webhook.Outcome{Status: 410, Category: webhook.HTTP4xx, Took: took}
	}
	// A new secret reaches the host of the callbacks later than the server, so that both have to sign for a while.
	secret := t.secret
	if time.Since(t.rotated) < 20*time.Minute && t.old != "" {
		secret = t.old
	}
	if !slices.ContainsFunc(r.Keys, func(key []byte) bool { return string(key) == secret }) {
		return webhook.Outcome{Status: 401, Category: webhook.HTTP4xx, Took: took}
	}
	var body struct {
		EventID string  `json:"eventId"`
		Type    string  `json:"type"`
		Cursor  *string `json:"cursor"`
	}
	if err := json.Unmarshal(r.Body, &body); err != nil || body.Type != "" || r.ID != body.EventID || t.id != "" && r.SubscriptionID != t.id {
		t.unexpected = append(t.unexpected, fmt.Sprintf("webhook-id %s of %s: %s", r.ID, r.SubscriptionID, r.Body))
	}
	t.got[body.EventID] = true
	if body.Cursor != nil {
		t.cursor = body.Cursor
	}
	return takes(took)
}

// live subscribes a task and refreshes the subscription until the end of the day, or until its user ends it.
func (t *userTask) live() {
	t.subscribe(true)
	for round := 1; ; round++ {
		due := time.Now().Add(time.Until(t.lapses) * 73 / 100)
		end := t.d.begin.Add(24*time.Hour + 30*time.Minute)
		for _, at := range []time.Duration{t.deletes, t.removes} {
			if at > 0 && t.d.begin.Add(at).Before(end) {
				end = t.d.begin.Add(at)
			}
		}
		if due.After(end) {
			time.Sleep(time.Until(end))
			t.end(end)
			return
		}
		time.Sleep(time.Until(due))
		t.subscribe(round%2 == 0)
		t.d.refreshes.Add(1)
	}
}

// end ends the task as its user wanted.
func (t *userTask) end(at time.Time) {
	switch at {
	case t.d.begin.Add(t.deletes):
		t.mu.Lock()
		t.until = time.Now()
		t.mu.Unlock()
		t.call(spec.MethodEventsUnsub, map[string]any{"delivery": map[string]any{"mode": "webhook", "url": t.url}}, nil)
	case t.d.begin.Add(t.removes):
		t.mu.Lock()
		t.gone, t.until = true, time.Now()
		t.mu.Unlock()
	}
}

// subscribe creates or refreshes the subscription, with its last cursor.
func (t *userTask) subscribe(rotate bool) {
	t.mu.Lock()
	if rotate {
		t.old, t.secret, t.rotated = t.secret, fmt.Sprintf("whsec_%s_%d", t.url, t.d.rotations.Add(1)), time.Now()
	}
	params := map[string]any{"cursor": t.cursor, "delivery": map[string]any{"mode": "webhook", "url": t.url, "secret": t.secret}}
	t.mu.Unlock()
	var g struct {
		ID            string
		RefreshBefore *time.Time
		Cursor        *string
		Truncated     bool
	}
	t.call(spec.MethodEventsSub, params, &g)
	t.mu.Lock()
	defer t.mu.Unlock()
	if g.ID == "" || t.id != "" && g.ID != t.id || g.RefreshBefore == nil || g.Truncated {
		t.unexpected = append(t.unexpected, fmt.Sprintf("granted %+v", g))
		t.lapses = time.Now().Add(chatLifetime)
		return
	}
	t.id, t.lapses = g.ID, *g.RefreshBefore
	if t.from.IsZero() {
		t.from = time.Now()
	}
	if g.Cursor != nil {
		t.cursor = g.Cursor
	}
}

// call sends a request to one of the processes, as a client that declares no capabilities does.
func (t *userTask) call(method string, params map[string]any, result any) {
	params["name"], params["arguments"] = "github.push", map[string]any{"owner": fmt.Sprintf("channel%d", t.channel), "repo": "app"}
	params["_meta"] = map[string]any{
		spec.MetaVersion: spec.V20260728, spec.MetaCapabilities: map[string]any{},
		"io.modelcontextprotocol/clientInfo": map[string]any{"name": "chatgpt", "version": "1"},
	}
	body, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		t.d.t.Error(err)
		return
	}
	req := httptest.NewRequest(http.MethodPost, "/mcp", bytes.NewReader(body)).WithContext(t.d.t.Context())
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream", "Authorization": "Bearer " + t.user,
		spec.HeaderVersion: string(spec.V20260728), spec.HeaderMethod: method,
	} {
		req.Header.Set(name, value)
	}
	t.d.mu.Lock()
	t.d.turn++
	process := t.d.serving[t.d.turn%len(t.d.serving)]
	t.d.mu.Unlock()
	w := httptest.NewRecorder()
	process.ServeHTTP(w, req)
	var answer struct{ Result, Error json.RawMessage }
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || answer.Error != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.unexpected = append(t.unexpected, fmt.Sprintf("%s is answered with %d %s", method, w.Code, w.Body))
		return
	}
	if result != nil {
		if err := json.Unmarshal(answer.Result, result); err != nil {
			t.d.t.Error(err)
		}
	}
}

// judge compares the events that each callback received with the events that were published for it.
func (d *rehearsal) judge() {
	const (
		reports = 5
		retries = 20 * time.Minute // more than the schedule of an event; one that fails just before the end of a task is not owed
	)
	var owed, lost, late, odd, unsubscribed, removed int
	for _, c := range d.tasks {
		c.mu.Lock()
		for _, text := range c.unexpected {
			if odd++; odd <= reports {
				d.t.Errorf("%s of %s: %s", c.url, c.user, text)
			}
		}
		switch {
		case c.gone:
			removed++
		case !c.until.IsZero():
			unsubscribed++
		}
		sub, err := d.services.Lookup(d.t.Context(), "default", c.user, c.id)
		if alive := time.Now().Before(c.lapses) && (c.until.IsZero() || c.gone); err != nil || (sub != nil) != alive {
			d.t.Errorf("%s of %s: subscription %v, %v; want one: %v", c.url, c.user, sub, err, alive)
		}
		for _, e := range d.events {
			if e.channel != c.channel {
				continue
			}
			switch ended := !c.until.IsZero(); {
			case e.at.After(c.from) && (!ended || e.at.Before(c.until.Add(-retries))):
				owed++
				if !c.got[e.id] {
					if lost++; lost <= reports {
						d.t.Errorf("%s of %s has not got %s, published %v after the begin; it was subscribed at %v and has ended: %v", c.url, c.user, e.id, e.at.Sub(d.begin), c.from.Sub(d.begin), ended)
					}
				}
			case ended && e.at.After(c.until) && c.got[e.id]:
				if late++; late <= reports {
					d.t.Errorf("%s of %s has got %s, published %v after it ended", c.url, c.user, e.id, e.at.Sub(c.until))
				}
			}
		}
		c.mu.Unlock()
	}
	if lost+late+odd > 0 {
		d.t.Errorf("%d of %d events were lost, %d arrived after the end, %d answers and requests were unexpected", lost, owed, late, odd)
	}
	if owed < 10_000 || unsubscribed < 100 || removed < 80 || d.failures.Load() < 100 {
		d.t.Errorf("too little happened: %d events were owed, %d tasks deleted, %d callbacks removed, %d attempts failed", owed, unsubscribed, removed, d.failures.Load())
	}
	d.t.Logf("%d tasks of %d users, %d of them deleted and %d with the plugin removed; %d events owed, %d attempts of which %d failed; %d challenges, %d refreshes, %d secrets",
		len(d.tasks), chatUsers, unsubscribed, removed, owed, d.posts.Load(), d.failures.Load(), d.challenges.Load(), d.refreshes.Load(), d.rotations.Load())
}

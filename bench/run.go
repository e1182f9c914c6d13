// Package bench measures senders of webhooks: the server of this project, which it starts as a separate process, and other senders
// through an [Adapter]. The same driver publishes to all senders, and the same receiver receives their webhooks, so that results can be
// compared.
//
//	driver ── POST, --publishers connections ──▶ server under test ── webhooks ──▶ receiver ──▶ ledger
//	  └── when was event n sent? ─────────────────────────────────────────────────────────────────┘
//
// The measured CPU time includes the driver and the receiver, so they do little work. They have their own HTTP/1.1 code, keep connections
// open, and verify only one of 64 signatures. Read [Shape] first, then [Run]. The files streams.go and gateway.go measure streams and the
// gateway.
package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/progress"
)

// Options configure a benchmark.
type Options struct {
	Shape
	Serve    []string      // the program and arguments that start a server; flags are added
	Server   string        // measure this server instead; its CPU and memory are not known then
	Token    string        // for Server, if it wants one
	Data     string        // directory for the server's database; a temporary one if empty
	Receiver string        // address that receives webhooks
	Against  string        // with [Gateway], a second program of this project to measure, started with the arguments of Serve
	Profile  string        // file for a CPU profile of the server's first ten seconds
	Adapters []Adapter     // other senders, measured after the server
	Timeout  time.Duration // the longest time that a run may take
	Wait     time.Duration // how long to wait, after the last publish, for missing deliveries
	Progress io.Writer     // a terminal that shows progress; nil shows none

	env []string // environment variables of the started server, in addition to the inherited ones
}

// Run measures the server of this project, and then the sender of each adapter, under the load of the shape. With [Shape.Hang], it
// measures each of them without hanging endpoints first, and then with them.
func Run(ctx context.Context, o Options) (Report, error) {
	return o.report(ctx, func(ctx context.Context, r *receiver, report *Report) error {
		for _, a := range append([]Adapter{{}}, o.Adapters...) {
			if err := o.measure(ctx, r, a, report); err != nil {
				return err
			}
		}
		return nil
	})
}

// report calls the function measure, and returns the report to which measure has added its results.
func (o Options) report(ctx context.Context, measure func(context.Context, *receiver, *Report) error) (Report, error) {
	report := newReport(o)
	if err := o.check(); err != nil {
		return report, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	r, err := newReceiver(o.Receiver, o.Client)
	if err != nil {
		return report, err
	}
	defer r.close()
	err = measure(ctx, r, &report)
	return report, err
}

// measure measures the sender of an adapter. For the zero Adapter, it measures the server of this project.
func (o Options) measure(ctx context.Context, r *receiver, a Adapter, report *Report) (err error) {
	s := &server{pid: a.PID}
	if a.Name == "" {
		if s, err = o.start(ctx, ""); err != nil {
			return err
		}
		defer s.stop()
		a = own(s.url, o.Token)
	}
	p := &pass{options: o, adapter: a, server: s, receiver: r}
	defer r.letGo()
	if p.secrets, err = p.registerEndpoints(ctx); err != nil {
		return err
	}
	if err := p.run(ctx, report); err != nil || o.Hang == 0 {
		return err
	}
	if err := p.registerHanging(ctx); err != nil {
		return err
	}
	p.hanging = o.Hang
	return p.run(ctx, report)
}

type pass struct {
	options  Options
	adapter  Adapter
	server   *server
	receiver *receiver
	secrets  []string // of the endpoints
	hanging  int
}

func (p *pass) registerEndpoints(ctx context.Context) ([]string, error) {
	secrets := make([]string, p.options.endpoints())
	return secrets, p.register(ctx, len(secrets), func(i int) values {
		return values{target: p.receiver.origin() + endpointPath + strconv.Itoa(i), uri: p.options.uri(i), n: i}
	}, func(i int, answer []byte) error {
		if p.adapter.Secret == "" {
			return nil
		}
		if secrets[i] = text(answer, p.adapter.Secret); secrets[i] == "" {
			return fault.New(fault.Unavailable, "the answer to a registration has no secret at %s: %.300s", p.adapter.Secret, answer)
		}
		return nil
	})
}

func (p *pass) registerHanging(ctx context.Context) error {
	o := p.options
	origins := make([]string, o.Hang)
	for i := range origins {
		origins[i] = p.receiver.origin()
		if o.HangOrigin {
			var err error
			if origins[i], err = p.receiver.listen("127.0.0.1:0"); err != nil {
				return err
			}
		}
	}
	return p.register(ctx, o.Hang*o.URIs, func(i int) values {
		return values{target: origins[i/o.URIs] + hangPath + strconv.Itoa(i/o.URIs), uri: o.uri(i), n: o.endpoints() + i}
	}, func(int, []byte) error { return nil })
}

// register registers as many endpoints as the parameter count says, over up to eight connections. The function endpoint returns the
// values of the variables for the registration of one endpoint. The function answered is called with the number of an endpoint, and with
// the sender's response to its registration.
func (p *pass) register(ctx context.Context, count int, endpoint func(int) values, answered func(int, []byte) error) error {
	if p.adapter.Register == nil {
		return nil
	}
	var next atomic.Int64
	return together(ctx, min(8, count), func(ctx context.Context) error {
		c := newPoster(p.options.Client)
		defer c.close()
		q := p.adapter.Register.ready()
		for ctx.Err() == nil {
			i := int(next.Add(1)) - 1
			if i >= count {
				return nil
			}
			answer, err := q.post(c, false, endpoint(i))
			if err != nil {
				return fault.Wrap(fault.KindOf(err), err, "register endpoint %d", i)
			}
			if err := answered(i, answer); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// together makes n concurrent calls of the function f. It returns the first error. This error also cancels the contexts of the other
// calls.
func together(ctx context.Context, n int, f func(context.Context) error) error {
	all, ctx := errgroup.WithContext(ctx)
	for range n {
		all.Go(func() error { return f(ctx) })
	}
	return all.Wait()
}

// trailing is how long the CPU time is measured after the last webhook has arrived, because a server may postpone work.
const trailing = 500 * time.Millisecond

var runs atomic.Int64

// run publishes the events, waits until the webhooks have arrived, and adds a result to the report.
func (p *pass) run(ctx context.Context, report *Report) error {
	o := p.options
	l := newLedger(fmt.Sprintf("bench-%d-%d-", os.Getpid(), runs.Add(1)), o.Shape, p.secrets)
	p.receiver.run.Store(&received{ledger: l, find: p.adapter.Received, delay: o.AnswerDelay})
	defer progress.Count(o.Progress, p.name()+" delivered", int64(len(l.took)), l.arrived.Load)()

	before := p.sample(ctx)
	l.began = time.Now()
	err := p.publish(ctx, l)
	publishing := time.Since(l.began)
	if err != nil {
		return err
	}
	select {
	case <-l.done:
	case <-time.After(o.Wait):
	case <-ctx.Done():
	}
	_ = until(ctx, time.Now().Add(trailing))
	p.receiver.run.Store(nil)
	report.Results = append(report.Results, p.result(l, before, p.sample(context.WithoutCancel(ctx)), publishing))
	return nil
}

func (p *pass) name() string {
	if p.hanging > 0 {
		return fmt.Sprintf("%s next to %d that hang", p.adapter.Name, p.hanging)
	}
	return p.adapter.Name
}

func (p *pass) publish(ctx context.Context, l *ledger) error {
	o := p.options
	payload := o.filler()
	var next atomic.Int64
	publishers := o.Publishers
	if o.Latency {
		publishers = 1
	}
	return together(ctx, publishers, func(ctx context.Context) error {
		c := newPoster(o.Client)
		defer c.close()
		q := p.adapter.Publish.ready()
		events := make([]values, 0, o.Batch)
		for ctx.Err() == nil {
			from := int(next.Add(int64(o.Batch))) - o.Batch
			if from >= o.Events {
				return nil
			}
			at := time.Now()
			if o.Rate > 0 {
				at = o.due(l.began, from)
				if err := until(ctx, at); err != nil {
					return err
				}
			}
			events = events[:0]
			for n := from; n < min(from+o.Batch, o.Events); n++ {
				events = append(events, values{id: l.id(n), uri: o.uri(n), n: n, payload: payload})
				l.publishing(n, at)
			}
			if err := p.post(c, q, events); err != nil {
				return err
			}
			for range len(events) * o.Subscribers {
				if !o.Latency {
					break
				}
				select {
				case <-l.each:
				case <-ctx.Done():
					return fault.New(fault.Unavailable, "event %d did not arrive in time", from)
				}
			}
		}
		return ctx.Err()
	})
}

// post publishes the events, either in one request or each in its own request.
func (p *pass) post(c poster, q *request, events []values) error {
	if p.adapter.Array && len(events) > 1 {
		_, err := q.post(c, true, events...)
		return err
	}
	for i := range events {
		if _, err := q.post(c, false, events[i]); err != nil {
			return err
		}
	}
	return nil
}

func until(ctx context.Context, at time.Time) error {
	if !at.After(time.Now()) {
		return nil
	}
	return periodic.Sleep(ctx, time.Until(at))
}

// Shape describes the load of a benchmark. Only results with the same Shape can be compared.
type Shape struct {
	Events      int  `json:"events"`
	Batch       int  `json:"batch"`       // events per request
	Publishers  int  `json:"publishers"`  // connections
	Rate        int  `json:"rate"`        // events per second; 0 is as fast as the server accepts them
	URIs        int  `json:"uris"`        // number of URIs, which the events use in turn
	Subscribers int  `json:"subscribers"` // for each URI
	Payload     int  `json:"payload"`     // bytes
	Latency     bool `json:"latency"`     // publish each event only when the previous one has arrived everywhere
	// Hang is the number of additional endpoints that never answer. Each of them subscribes to every URI, and results do not count
	// deliveries to them. With HangOrigin, each has an origin (host and port) of its own. Otherwise they share the origin of the other
	// endpoints.
	Hang       int  `json:"hang"`
	HangOrigin bool `json:"hangOrigin"`
	// AnswerDelay is how long the endpoints take to answer. It does not apply to endpoints that never answer.
	AnswerDelay time.Duration `json:"answerDelayNs,omitempty"`
	// Client is [ClientOwn] (the default) or [ClientStd].
	Client string `json:"client,omitempty"`
}

const (
	ClientOwn = "own"      // a few lines of HTTP/1.1, which use little CPU time
	ClientStd = "net/http" // Go's, for a comparison that others can repeat with their own programs
)

// maxDeliveries limits the number of deliveries, because the ledger needs four bytes of memory for each.
const maxDeliveries = 100_000_000

func (s Shape) check() error {
	for name, n := range map[string]int{
		"events": s.Events, "batch": s.Batch, "publishers": s.Publishers, "uris": s.URIs, "subscribers": s.Subscribers, "payload": s.Payload,
	} {
		if n < 1 {
			return fault.New(fault.Invalid, "--%s %d is not allowed (at least 1)", name, n)
		}
	}
	if s.Rate < 0 || s.Hang < 0 || s.AnswerDelay < 0 {
		return fault.New(fault.Invalid, "--rate, --hang and --answer-delay are not allowed to be negative")
	}
	if s.deliveries() > maxDeliveries {
		return fault.New(fault.Invalid, "%d deliveries are too many (at most %d)", s.deliveries(), maxDeliveries)
	}
	if s.Client != "" && s.Client != ClientOwn && s.Client != ClientStd {
		return fault.New(fault.Invalid, "--client %.40q is not known (allowed: %s, %s)", s.Client, ClientOwn, ClientStd)
	}
	if s.HangOrigin && s.Hang == 0 {
		return fault.New(fault.Invalid, "--hang-origin needs --hang")
	}
	return nil
}

func (s Shape) deliveries() int { return s.Events * s.Subscribers }

// endpoints returns the number of endpoints that answer. Endpoint i subscribes to the URI with the number i modulo URIs.
func (s Shape) endpoints() int { return s.Subscribers * s.URIs }

func (s Shape) uri(i int) string { return "event://bench/" + strconv.Itoa(i%s.URIs) + "/tick" }

// due returns when the driver should send the request that begins with event n.
func (s Shape) due(started time.Time, n int) time.Time {
	return started.Add(time.Duration(float64(n) / float64(s.Rate) * float64(time.Second)))
}

func (s Shape) filler() string {
	b := make([]byte, max(1, (s.Payload-14)/2))
	_, _ = rand.Read(b) // never fails (Go 1.24)
	return fmt.Sprintf(`{"filler":"%x"}`, b)
}

func (s Shape) String() string {
	speed := "as fast as possible"
	switch {
	case s.Latency:
		speed = "one event at a time"
	case s.Rate > 0:
		speed = fmt.Sprintf("%d events a second", s.Rate)
	}
	delay := ""
	if s.AnswerDelay > 0 {
		delay = fmt.Sprintf(", answers after %s", s.AnswerDelay)
	}
	client := ""
	if s.Client == ClientStd {
		client = ", with net/http"
	}
	return fmt.Sprintf("%d events, batch %d, %d publishers, %s, %d URIs, %d subscribers each, payload %d B%s%s",
		s.Events, s.Batch, s.Publishers, speed, s.URIs, s.Subscribers, s.Payload, delay, client)
}

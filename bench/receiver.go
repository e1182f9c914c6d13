package bench

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// receiver is an HTTP server that receives webhooks. It answers requests to /endpoint/N, and never answers requests to /hang/N.
type receiver struct {
	std       bool // receive with net/http
	listeners []net.Listener
	servers   []*http.Server
	running   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	hung  chan struct{} // closed when letGo ends the hanging requests

	run    atomic.Pointer[received]
	served atomic.Int64 // webhooks that were received with net/http
}

// received tells the receiver how to handle the webhooks of one run of the benchmark: in which ledger to record them, where to find their
// event ids, and how long to wait before each answer.
type received struct {
	*ledger
	find  Received
	delay time.Duration // how long to wait before each answer
}

const (
	endpointPath = "/endpoint/"
	hangPath     = "/hang/"
	// verifyEvery is how many webhooks arrive for each signature that the receiver verifies. If it verified all of them, this would add
	// much to the measured CPU time.
	verifyEvery = 64
)

func newReceiver(addr, client string) (*receiver, error) {
	r := &receiver{std: client == ClientStd, hung: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	_, err := r.listen(addr)
	return r, err
}

func (r *receiver) listen(addr string) (origin string, err error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "listen for webhooks")
	}
	r.listeners = append(r.listeners, l)
	if r.std {
		server := &http.Server{Handler: r, ReadHeaderTimeout: callTimeout}
		r.servers = append(r.servers, server)
		r.running.Go(func() { _ = server.Serve(l) })
		return "http://" + l.Addr().String(), nil
	}
	r.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.running.Go(func() { r.serve(conn) })
		}
	})
	return "http://" + l.Addr().String(), nil
}

func (r *receiver) origin() string { return "http://" + r.listeners[0].Addr().String() }

// close stops the receiver and closes all connections, even if their requests hang.
func (r *receiver) close() {
	for _, l := range r.listeners {
		_ = l.Close()
	}
	r.mu.Lock()
	for conn := range r.conns {
		_ = conn.Close()
	}
	r.conns = nil
	close(r.hung)
	r.mu.Unlock()
	for _, s := range r.servers {
		_ = s.Close()
	}
	r.running.Wait()
}

// letGo closes the connections of all requests that the receiver has not answered yet.
func (r *receiver) letGo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.hung)
	r.hung = make(chan struct{})
}

// admit records a new connection. It returns false if the receiver is closed.
func (r *receiver) admit(conn net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.conns == nil {
		return false
	}
	r.conns[conn] = struct{}{}
	return true
}

func (r *receiver) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	if !r.admit(conn) {
		return
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.conns, conn)
	}()
	reader := bufio.NewReaderSize(conn, 4096)
	var m message
	for served := 0; ; served++ {
		if err := m.read(reader); err != nil {
			return
		}
		if !r.take(&m, served%verifyEvery == 0) {
			return
		}
		if _, err := conn.Write(noContent); err != nil || m.closing {
			return
		}
	}
}

// ServeHTTP receives webhooks if the benchmark uses [ClientStd], which means net/http.
func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	m := message{head: []byte(req.Method + " " + req.URL.Path + " " + req.Proto + "\n")}
	for name, values := range req.Header {
		m.head = append(m.head, name+": "+values[0]+"\n"...)
	}
	var err error
	if m.body, err = io.ReadAll(http.MaxBytesReader(w, req.Body, maxHTTPBody)); err != nil || !r.take(&m, r.served.Add(1)%verifyEvery == 0) {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusNoContent)
}

// take records a webhook, and waits for the configured delay of the response. If the parameter verify is true, it checks the signature.
// It returns false if the receiver must close the connection without a response, for example because the endpoint hangs.
func (r *receiver) take(m *message, verify bool) bool {
	at := time.Now()
	if hangs(m.start()) {
		r.mu.Lock()
		hung, open := r.hung, r.conns != nil
		r.mu.Unlock()
		if open {
			<-hung
		}
		return false
	}
	run := r.run.Load()
	if run == nil {
		return true
	}
	run.note(m, at, verify)
	return r.wait(run.delay)
}

// wait waits for the time delay. It returns false if [receiver.close] or [receiver.letGo] is called meanwhile.
func (r *receiver) wait(delay time.Duration) bool {
	if delay == 0 {
		return true
	}
	r.mu.Lock()
	hung, open := r.hung, r.conns != nil
	r.mu.Unlock()
	if !open {
		return false
	}
	select {
	case <-time.After(delay):
		return true
	case <-hung:
		return false
	}
}

var noContent = []byte("HTTP/1.1 204 No Content\r\n\r\n")

func hangs(start []byte) bool {
	_, path, _ := bytes.Cut(start, []byte(" "))
	return bytes.HasPrefix(path, []byte(hangPath))
}

// endpointOf returns N in a request line such as "POST /endpoint/N HTTP/1.1".
func endpointOf(start []byte) (int, error) {
	_, rest, _ := bytes.Cut(start, []byte(" "))
	path, _, _ := bytes.Cut(rest, []byte(" "))
	number, ok := bytes.CutPrefix(path, []byte(endpointPath))
	if !ok {
		return 0, errors.New("not an endpoint")
	}
	return strconv.Atoi(string(number))
}

func (r *received) note(m *message, at time.Time, verify bool) {
	endpoint, err := endpointOf(m.start())
	if err != nil {
		r.strange.Add(1)
		return
	}
	id := m.header(r.find.Header)
	if r.find.Header == "" {
		id = []byte(text(m.body, r.find.Pointer))
	}
	r.arrive(id, endpoint, at)
	if verify && endpoint < len(r.secrets) && r.secrets[endpoint] != "" && bytes.HasPrefix(id, []byte(r.prefix)) {
		h := http.Header{}
		h.Set(webhook.HeaderID, string(id))
		h.Set(webhook.HeaderTimestamp, string(m.header(webhook.HeaderTimestamp)))
		h.Set(webhook.HeaderSignature, string(m.header(webhook.HeaderSignature)))
		if webhook.Verify(h, m.body, r.secrets[endpoint]) != nil {
			r.forged.Add(1)
		}
	}
}

// ledger records which deliveries of a run have arrived, and how long each took. Its methods may be called concurrently.
type ledger struct {
	prefix      string // the prefix of the event ids of this run
	subscribers int
	uris        int
	secrets     []string // by endpoint; without a secret, signatures are not verified
	began       time.Time

	sent []atomic.Int64  // by event: nanoseconds after began
	took []atomic.Uint32 // by event and subscriber: the latency in microseconds + 1, or 0 if the event has not arrived

	arrived, duplicates, strange, forged atomic.Int64

	last atomic.Int64  // the time of the latest arrival that was no duplicate, in the unit of sent
	done chan struct{} // closed with the last delivery
	each chan struct{} // receives a value for each arrival; nil without [Shape.Latency]
}

func newLedger(prefix string, s Shape, secrets []string) *ledger {
	l := &ledger{
		prefix: prefix, subscribers: s.Subscribers, uris: s.URIs, secrets: secrets, began: time.Now(),
		sent: make([]atomic.Int64, s.Events), took: make([]atomic.Uint32, s.deliveries()), done: make(chan struct{}),
	}
	if s.Latency {
		l.each = make(chan struct{}, s.deliveries())
	}
	return l
}

func (l *ledger) id(n int) string { return l.prefix + strconv.Itoa(n) }

// publishing records when event n is sent. With a fixed rate, the parameter at is the time at which the event should have been sent. So
// if the server accepts events too slowly, the delay counts as part of the latency.
func (l *ledger) publishing(n int, at time.Time) { l.sent[n].Store(int64(at.Sub(l.began))) }

// arrive records that an endpoint has received an event. It ignores events of other runs.
func (l *ledger) arrive(id []byte, endpoint int, at time.Time) {
	text, ours := strings.CutPrefix(string(id), l.prefix)
	if !ours {
		return
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || n >= len(l.sent) || endpoint < 0 || endpoint >= l.subscribers*l.uris || n%l.uris != endpoint%l.uris {
		l.strange.Add(1)
		return
	}
	since := int64(at.Sub(l.began))
	took := time.Duration(since - l.sent[n].Load()).Microseconds()
	if !l.took[n*l.subscribers+endpoint/l.uris].CompareAndSwap(0, uint32(min(max(took, 0)+1, math.MaxUint32))) {
		l.duplicates.Add(1)
		return
	}
	for last := l.last.Load(); since > last && !l.last.CompareAndSwap(last, since); last = l.last.Load() {
	}
	if l.each != nil {
		l.each <- struct{}{}
	}
	if l.arrived.Add(1) == int64(len(l.took)) {
		close(l.done)
	}
}

func (l *ledger) lost() int64 { return int64(len(l.took)) - l.arrived.Load() }

func (l *ledger) latencies() []time.Duration {
	out := make([]time.Duration, 0, len(l.took))
	for i := range l.took {
		if v := l.took[i].Load(); v != 0 {
			out = append(out, time.Duration(v-1)*time.Microsecond)
		}
	}
	slices.Sort(out)
	return out
}

// percentile returns the smallest of the sorted durations that is as long as, or longer than, at least p percent of them (nearest rank).
func percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	rank := int(math.Ceil(p*float64(len(sorted))/100 - 1e-9)) // 1e-9, because 99.9 as a float64 is a little more than 99.9
	return sorted[min(max(rank, 1), len(sorted))-1]
}

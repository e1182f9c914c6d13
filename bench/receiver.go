package bench

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/webhook"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// receiver takes webhooks at /endpoint/N, and takes them without ever answering at /hang/N.
type receiver struct {
	std       bool // receive with net/http
	listeners []net.Listener
	servers   []*http.Server
	running   sync.WaitGroup

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	hung  chan struct{} // closed when what hangs is let go

	run    atomic.Pointer[received]
	served atomic.Int64 // webhooks that were received with net/http
}

// received is where webhooks are noted, and how their ids are found.
type received struct {
	*ledger
	find  Received
	delay time.Duration // before each answer
}

const (
	endpointPath = "/endpoint/"
	hangPath     = "/hang/"
	// verifyEvery is of how many webhooks one signature is verified.
	verifyEvery = 64
)

func newReceiver(addr, client string) (*receiver, error) {
	r := &receiver{std: client == ClientStd, hung: make(chan struct{}), conns: map[net.Conn]struct{}{}}
	_, err := r.listen(addr)
	return r, err
}

// listen opens an origin and returns its URL.
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

// close ends all connections, including the hanging ones.
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

// letGo closes the connections of all requests that hang, so that the sender need not wait for them to end.
func (r *receiver) letGo() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.hung)
	r.hung = make(chan struct{})
}

// admit keeps a connection for close to end, unless close was first.
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

// ServeHTTP receives a webhook with net/http.
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

// take notes a webhook and waits until it is time to answer. It reports false if there is no answer.
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

// wait waits before an answer. It reports false if the receiver closes meanwhile.
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

// endpointOf returns N of "POST /endpoint/N HTTP/1.1".
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

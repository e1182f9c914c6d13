package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/progress"
)

// quiet is how long the CPU time of the streams is measured while no event is published.
const quiet = 20 * time.Second

// Streams measures how much memory and CPU time open streams need, and how long one event takes to reach all streams for its URI. The
// parameter count is the number of streams.
func Streams(ctx context.Context, o Options, count int, w io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	s, err := o.start(ctx, "", "--streams", strconv.Itoa(count+10))
	if err != nil {
		return err
	}
	defer s.stop()
	publisher := o.newPublisher(s)
	defer publisher.caller.close()
	pid, readers := s.pid, (count+o.URIs-1)/o.URIs // readers is the number of streams of the first URI
	before := memory(pid, "VmRSS")
	started := time.Now()
	var opened atomic.Int64
	shown := progress.Count(o.Progress, "streams opened", int64(count), opened.Load)
	arrived, end, err := o.updates(ctx, s, count, &opened)
	defer end()
	shown()
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(w, "streams %d, over %d URIs, opened in %s\n", count, o.URIs, time.Since(started).Round(time.Millisecond))

	idle, since := cpuSeconds(pid), time.Now()
	shown = progress.Count(o.Progress, "seconds quiet", int64(quiet.Seconds()), func() int64 { return int64(time.Since(since).Seconds()) })
	err = until(ctx, since.Add(quiet))
	shown()
	if err != nil {
		return err
	}
	used := 100 * (cpuSeconds(pid) - idle) / time.Since(since).Seconds()
	grown := memory(pid, "VmRSS") - before

	// Measure several events, because the first one is slower than the others.
	times := make([]time.Duration, 0, 5)
	for n := range cap(times) {
		published := time.Now()
		if err := publisher.publish(n); err != nil {
			return err
		}
		var last time.Time
		for range readers {
			select {
			case last = <-arrived:
			case <-ctx.Done():
				return fault.New(fault.Unavailable, "an event did not reach every stream in time")
			}
		}
		times = append(times, last.Sub(published))
	}
	slices.Sort(times)
	_, _ = fmt.Fprintf(w, "server memory          %.1f KiB a stream (resident, over %.0f MiB without)\n", float64(grown)/1024/float64(count), float64(before)/(1<<20))
	_, _ = fmt.Fprintf(w, "                       %.1f KiB a stream after the events\n", float64(memory(pid, "VmRSS")-before)/1024/float64(count))
	_, _ = fmt.Fprintf(w, "goroutines             %s\n", s.goroutines(ctx))
	_, _ = fmt.Fprintf(w, "CPU while quiet        %.1f %% of one core, heartbeats included\n", used)
	_, _ = fmt.Fprintf(w, "one event to %d streams: fastest %s, median %s, slowest %s\n",
		readers, times[0].Round(time.Millisecond), times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
	return nil
}

// StreamLatency measures how long an event takes to reach a stream, with one event at a time.
func StreamLatency(ctx context.Context, o Options, w io.Writer) error {
	if err := o.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	s, err := o.start(ctx, "")
	if err != nil {
		return err
	}
	defer s.stop()
	arrived, end, err := o.updates(ctx, s, 1, new(atomic.Int64))
	defer end()
	if err != nil {
		return err
	}
	publisher := o.newPublisher(s)
	defer publisher.caller.close()
	took, err := o.latencies(ctx, publisher, arrived)
	if err != nil {
		return err
	}
	slices.Sort(took)
	_, err = fmt.Fprintf(w, "publish to open listen, one event at a time, %d events\np50 %s  p90 %s  p99 %s  max %s\n",
		o.Events, percentile(took, 50), percentile(took, 90), percentile(took, 99), percentile(took, 100))
	return err
}

func (o Options) latencies(ctx context.Context, p *publisher, arrived <-chan time.Time) ([]time.Duration, error) {
	took := make([]time.Duration, 0, o.Events)
	var count atomic.Int64
	defer progress.Count(o.Progress, "events arrived", int64(o.Events), count.Load)()
	for n := range o.Events {
		started := time.Now()
		if err := p.publish(n); err != nil {
			return nil, err
		}
		select {
		case at := <-arrived:
			took = append(took, at.Sub(started))
			count.Add(1)
		case <-ctx.Done():
			return nil, fault.New(fault.Unavailable, "event %d did not arrive in time", n)
		}
	}
	return took, nil
}

type publisher struct {
	caller  poster
	request *request
	values  values
	prefix  string
}

func (o Options) newPublisher(s *server) *publisher {
	return &publisher{
		caller: newPoster(o.Client), request: own(s.url, o.Token).Publish.ready(), values: values{uri: o.uri(0), payload: o.filler()},
		prefix: fmt.Sprintf("bench-%d-%d-", os.Getpid(), runs.Add(1)),
	}
}

func (p *publisher) publish(n int) error {
	p.values.id, p.values.n = p.prefix+strconv.Itoa(n), n
	_, err := p.request.post(p.caller, false, p.values)
	return err
}

const listensAtOnce = 64

// listens opens as many streams as the parameter count says. The function filter returns the filter of stream i. When a message with the
// given method arrives on a stream, the channel arrived receives the time of its arrival. The parameter opened counts the open streams.
func listens(ctx context.Context, server string, count int, method string, filter func(i int) string, opened *atomic.Int64) (arrived <-chan time.Time, end func(), err error) {
	messages, conns := make(chan time.Time, count), make([]net.Conn, count)
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(listensAtOnce)
	for i := range conns {
		all.Go(func() error {
			conn, r, err := listen(ctx, strings.TrimPrefix(server, "http://"), i, filter(i))
			conns[i] = conn
			if err != nil {
				return err
			}
			opened.Add(1)
			go follow(r, method, messages)
			return nil
		})
	}
	err = all.Wait()
	return messages, func() {
		for _, conn := range conns {
			if conn != nil {
				_ = conn.Close()
			}
		}
	}, err
}

// updates opens streams for resource updates of the shape's URIs in turn. See [listens].
func (o Options) updates(ctx context.Context, s *server, count int, opened *atomic.Int64) (arrived <-chan time.Time, end func(), err error) {
	return listens(ctx, s.url, count, "notifications/resources/updated", func(i int) string {
		return fmt.Sprintf(`{"resourceSubscriptions":[%q]}`, o.uri(i))
	}, opened)
}

func listen(ctx context.Context, host string, i int, filter string) (net.Conn, *bufio.Reader, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, nil, fault.Wrap(fault.Unavailable, err, "open stream %d", i)
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"subscriptions/listen","params":{"notifications":%s,"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`, i, filter)
	_, err = fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: subscriptions/listen\r\nContent-Length: %d\r\n\r\n%s", host, len(body), body)
	if err != nil {
		return conn, nil, fault.Wrap(fault.Unavailable, err, "open stream %d", i)
	}
	r := bufio.NewReaderSize(conn, 2048)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			return conn, nil, fault.Wrap(fault.Unavailable, err, "open stream %d", i)
		}
		if strings.Contains(line, "subscriptions/acknowledged") {
			return conn, r, nil
		}
		if strings.HasPrefix(line, "HTTP/1.1 ") && !strings.HasPrefix(line, "HTTP/1.1 200") {
			return conn, nil, fault.New(fault.Unavailable, "stream %d was answered %s", i, strings.TrimSpace(line))
		}
	}
}

func follow(r *bufio.Reader, method string, arrived chan<- time.Time) {
	update := []byte(method)
	for {
		line, err := r.ReadSlice('\n')
		if bytes.Contains(line, update) {
			arrived <- time.Now()
		}
		if err != nil && err != bufio.ErrBufferFull {
			return
		}
	}
}

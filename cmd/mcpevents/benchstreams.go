package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"mcpevents/shared/fault"
)

// streams opens many listens of one event type, and measures what they cost the
// server while they are quiet and how long one event takes to reach all.
func (c *BenchCmd) streams(ctx context.Context, server, debug string, pid int) error {
	before := residentMemory(pid)
	started := time.Now()
	arrived := make(chan time.Time, c.Streams)
	var opening sync.WaitGroup
	var failed atomic.Pointer[error]
	slots := make(chan struct{}, 64)
	host := strings.TrimPrefix(server, "http://")
	open := make([]net.Conn, c.Streams)
	defer func() {
		for _, conn := range open {
			if conn != nil {
				_ = conn.Close()
			}
		}
	}()
	for i := range open {
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			conn, r, err := c.listen(ctx, host, i)
			if err != nil {
				failed.Store(&err)
				return
			}
			open[i] = conn
			go follow(r, arrived)
		})
		if failed.Load() != nil {
			break
		}
	}
	opening.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	_, _ = fmt.Printf("streams %d, over %d URIs, opened in %s\n", c.Streams, c.URIs, time.Since(started).Round(time.Millisecond))

	idle, since := cpuSeconds(pid), time.Now()
	select {
	case <-time.After(20 * time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	used := 100 * (cpuSeconds(pid) - idle) / time.Since(since).Seconds()
	memory := residentMemory(pid) - before

	// The first event also warms what is only needed then.
	times := make([]time.Duration, 0, 5)
	for n := range cap(times) {
		body, _ := json.Marshal(c.event(n*c.URIs, c.filler()))
		published := time.Now()
		if _, err := benchPost(ctx, server+"/events", body, nil); err != nil {
			return err
		}
		var last time.Time
		for range c.readers() {
			select {
			case last = <-arrived:
			case <-ctx.Done():
				return fault.New(fault.Unavailable, "an event did not reach every stream in time")
			}
		}
		times = append(times, last.Sub(published))
	}
	slices.Sort(times)
	fmt.Printf("server memory          %.1f KiB a stream (resident, over %.0f MiB without)\n", float64(memory)/1024/float64(c.Streams), float64(before)/(1<<20))
	fmt.Printf("                       %.1f KiB a stream after the events\n", float64(residentMemory(pid)-before)/1024/float64(c.Streams))
	fmt.Printf("goroutines             %s\n", goroutines(ctx, debug))
	fmt.Printf("CPU while quiet        %.1f %% of one core, heartbeats included\n", used)
	fmt.Printf("one event to %d streams: fastest %s, median %s, slowest %s\n",
		c.readers(), times[0].Round(time.Millisecond), times[len(times)/2].Round(time.Millisecond), times[len(times)-1].Round(time.Millisecond))
	return nil
}

// streamLatency opens one listen and measures how long events take to it.
func (c *BenchCmd) streamLatency(ctx context.Context, server string) error {
	conn, r, err := c.listen(ctx, strings.TrimPrefix(server, "http://"), 0)
	if conn != nil {
		defer func() { _ = conn.Close() }()
	}
	if err != nil {
		return err
	}
	arrived := make(chan time.Time, 1)
	go follow(r, arrived) // until the connection closes
	filler := c.filler()
	return c.oneByOne(ctx, server, arrived, "publish to open listen", func(i int) benchEvent {
		e := c.event(i, filler)
		e.URI = c.uri(0)
		return e
	})
}

// readers is how many of the streams listen to the first URI.
func (c *BenchCmd) readers() int { return (c.Streams + c.URIs - 1) / c.URIs }

// listen opens stream number i and waits for its acknowledgment.
func (c *BenchCmd) listen(ctx context.Context, host string, i int) (net.Conn, *bufio.Reader, error) {
	return c.listenFor(ctx, host, i, fmt.Sprintf(`{"resourceSubscriptions":[%q]}`, c.uri(i)))
}

// listenFor is listen with another filter.
func (c *BenchCmd) listenFor(ctx context.Context, host string, i int, filter string) (net.Conn, *bufio.Reader, error) {
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

// follow tells when an update arrives, until the stream ends.
func follow(r *bufio.Reader, arrived chan<- time.Time) {
	followMethod(r, "notifications/resources/updated", arrived)
}

// followMethod tells when a message of the method arrives, until the stream ends.
func followMethod(r *bufio.Reader, method string, arrived chan<- time.Time) {
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

// residentMemory is what a process has in memory, in bytes (Linux; 0 elsewhere).
func residentMemory(pid int) int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize())
}

// goroutines is how many the server runs, from its debug address.
func goroutines(ctx context.Context, debug string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, debug+"/debug/pprof/goroutine?debug=1", nil)
	if err != nil {
		return "unknown"
	}
	resp, err := benchClient.Do(req)
	if err != nil {
		return "unknown"
	}
	defer func() { _ = resp.Body.Close() }()
	head, _ := io.ReadAll(io.LimitReader(resp.Body, 64))
	first, _, _ := strings.Cut(string(head), "\n")
	return strings.TrimPrefix(first, "goroutine profile: total ")
}

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"mcpevents/shared/fault"
)

// gatewayConfig puts one backend behind the gateway twice, once in each era.
func gatewayConfig(dir, backend string) (file string, err error) {
	file = filepath.Join(dir, "config.yaml")
	text := fmt.Sprintf("backends:\n  - {name: b25, prefix: b25_, url: %q, protocolVersion: 2025-11-25}\n  - {name: b26, prefix: b26_, url: %[1]q, protocolVersion: 2026-07-28}\n", backend)
	return file, fault.Wrap(fault.Unavailable, os.WriteFile(file, []byte(text), 0o600), "write the configuration")
}

// gateway measures what the gateway adds to a call and to its progress messages, against the same
// calls to the backend itself, in turn; and how long a change of the backend's tools takes to many streams.
func (c *BenchCmd) gateway(ctx context.Context, g *Globals, server string, backend *benchBackend) error {
	const steps = 20
	progress := mpb.NewWithContext(ctx, mpb.WithOutput(os.Stderr), mpb.WithAutoRefresh())
	if !g.terminal() {
		progress = mpb.NewWithContext(ctx, mpb.WithOutput(io.Discard))
	}
	// A progress call takes as long as many calls without.
	bar := progress.AddBar(int64(4*c.Calls+2*c.Calls/steps+changeRounds), mpb.PrependDecorators(decor.Name("measured "), decor.CountersNoUnit("%d / %d")),
		mpb.AppendDecorators(decor.EwmaETA(decor.ET_STYLE_GO, 30)))
	var report []string
	say := func(format string, args ...any) { report = append(report, fmt.Sprintf(format, args...)) }
	eras := []struct{ client, backend string }{
		{"2025-11-25", "2025-11-25"}, {"2026-07-28", "2026-07-28"}, {"2026-07-28", "2025-11-25"}, {"2025-11-25", "2026-07-28"},
	}
	say("tools/call, %d each way in turn                 direct p50, p99        gateway p50, p99       added p50, p99", c.Calls)
	for _, era := range eras {
		direct, err := newBenchCaller(ctx, backend.server.URL+"/mcp", era.backend, "work")
		if err != nil {
			return err
		}
		over, err := newBenchCaller(ctx, server+"/mcp", era.client, "b"+era.backend[2:4]+"_work")
		if err != nil {
			return err
		}
		before, after := make([]time.Duration, 0, c.Calls), make([]time.Duration, 0, c.Calls)
		for n := range c.Calls + benchWarm {
			took, _, err := direct.call(ctx, 0)
			if err != nil {
				return err
			}
			long, _, err := over.call(ctx, 0)
			if err != nil {
				return err
			}
			if n >= benchWarm {
				before, after = append(before, took), append(after, long)
				bar.Increment()
			}
		}
		say("  client %s, backend %s      %s", era.client, era.backend, compared(before, after))
	}
	say("progress message, sent to read, %d each way in turn", c.Calls/steps*steps)
	for _, era := range eras[:2] {
		direct, err := newBenchCaller(ctx, backend.server.URL+"/mcp", era.backend, "work")
		if err != nil {
			return err
		}
		over, err := newBenchCaller(ctx, server+"/mcp", era.client, "b"+era.backend[2:4]+"_work")
		if err != nil {
			return err
		}
		var before, after []time.Duration
		for range max(1, c.Calls/steps) {
			_, some, err := direct.call(ctx, steps)
			if err != nil {
				return err
			}
			_, more, err := over.call(ctx, steps)
			if err != nil {
				return err
			}
			before, after = append(before, some...), append(after, more...)
			bar.Increment()
		}
		say("  client %s, backend %s      %s", era.client, era.backend, compared(before, after))
	}
	if err := c.changes(ctx, server, backend, bar, say); err != nil {
		return err
	}
	bar.SetTotal(-1, true)
	progress.Wait()
	for _, line := range report {
		fmt.Println(line)
	}
	return nil
}

// benchWarm is how many calls are made before those that count.
const benchWarm = 50

// compared are the quantiles of both ways, and what one is over the other.
func compared(direct, over []time.Duration) string {
	slices.Sort(direct)
	slices.Sort(over)
	q := func(d []time.Duration, quantile float64) time.Duration {
		return d[int(float64(len(d)-1)*quantile)].Round(time.Microsecond)
	}
	return fmt.Sprintf("%9s %9s    %9s %9s    %9s %9s", q(direct, .5), q(direct, .99), q(over, .5), q(over, .99),
		q(over, .5)-q(direct, .5), q(over, .99)-q(direct, .99))
}

// benchCaller is a client of either era.
type benchCaller struct {
	url, tool string
	header    http.Header
	modern    bool
	last      int
}

func newBenchCaller(ctx context.Context, url, version, tool string) (*benchCaller, error) {
	c := &benchCaller{url: url, tool: tool, header: http.Header{}, modern: version >= "2026-07-28"}
	c.header.Set("Content-Type", "application/json")
	c.header.Set("Accept", "application/json, text/event-stream")
	if c.modern {
		c.header.Set("Mcp-Protocol-Version", version)
		c.header.Set("Mcp-Method", "tools/call")
		c.header.Set("Mcp-Name", tool)
		return c, nil
	}
	resp, err := c.post(ctx, fmt.Sprintf(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"bench","version":"1"}}}`, version))
	if err != nil {
		return nil, err
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	c.header.Set("Mcp-Protocol-Version", version)
	c.header.Set("Mcp-Session-Id", resp.Header.Get("Mcp-Session-Id"))
	if resp, err = c.post(ctx, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); err == nil {
		_ = resp.Body.Close()
	}
	return c, err
}

func (c *benchCaller) post(ctx context.Context, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = c.header.Clone()
	resp, err := benchClient.Do(req)
	return resp, fault.Wrap(fault.Unavailable, err, "call %s", c.url)
}

// call calls the tool and returns how long it took, and each of its progress messages.
func (c *benchCaller) call(ctx context.Context, steps int) (took time.Duration, each []time.Duration, err error) {
	c.last++
	meta := `"progressToken":1`
	if c.modern {
		meta += `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"steps":%d},"_meta":{%s}}}`, c.last, c.tool, steps, meta)
	began := time.Now()
	resp, err := c.post(ctx, body)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var all bytes.Buffer
	chunk := make([]byte, 4096)
	for {
		n, err := resp.Body.Read(chunk)
		at := time.Now()
		all.Write(chunk[:n])
		for part := range bytes.SplitSeq(chunk[:n], []byte(`"message":"`)) {
			text, _, _ := bytes.Cut(part, []byte(`"`))
			if sent, err := strconv.ParseInt(string(text), 10, 64); err == nil {
				each = append(each, at.Sub(time.Unix(0, sent)))
			}
		}
		if err != nil {
			break
		}
	}
	took = time.Since(began)
	if !bytes.Contains(all.Bytes(), []byte(`"done"`)) || len(each) != steps {
		return 0, nil, fault.New(fault.Unavailable, "%s answered with %d of %d progress messages: %.300s", c.url, len(each), steps, all.Bytes())
	}
	return took, each, nil
}

const changeRounds = 10

// changes opens many listens and measures how long a change of the backend's tools takes to all.
func (c *BenchCmd) changes(ctx context.Context, server string, backend *benchBackend, bar *mpb.Bar, say func(string, ...any)) error {
	const streams = 1000
	arrived := make(chan time.Time, streams)
	var opening sync.WaitGroup
	var failed atomic.Pointer[error]
	open := make([]net.Conn, streams)
	defer func() {
		for _, conn := range open {
			if conn != nil {
				_ = conn.Close()
			}
		}
	}()
	slots := make(chan struct{}, 32)
	for i := range open {
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			conn, r, err := c.listenFor(ctx, strings.TrimPrefix(server, "http://"), i, `{"toolsListChanged":true}`)
			open[i] = conn
			if err != nil {
				failed.Store(&err)
				return
			}
			go followMethod(r, "notifications/tools/list_changed", arrived)
		})
	}
	opening.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	var medians, slowest []time.Duration
	for range changeRounds {
		sent := time.Now()
		told := backend.changed() // behind the gateway it is two backends
		each := make([]time.Duration, 0, told*streams)
		for range told * streams {
			select {
			case at := <-arrived:
				each = append(each, at.Sub(sent))
			case <-ctx.Done():
				return fault.New(fault.Unavailable, "a change did not reach every stream in time")
			}
		}
		slices.Sort(each)
		medians, slowest = append(medians, each[len(each)/2]), append(slowest, each[len(each)-1])
		bar.Increment()
	}
	slices.Sort(medians)
	slices.Sort(slowest)
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	say("list_changed of two backends at once to %d streams each, %d rounds", streams, changeRounds)
	say("  middle stream: median %s, slowest round %s; last stream: median %s, slowest round %s",
		ms(medians[len(medians)/2]), ms(medians[len(medians)-1]), ms(slowest[len(slowest)/2]), ms(slowest[len(slowest)-1]))
	return nil
}

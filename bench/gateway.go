package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/progress"
)

// bothRevisions is a configuration with the same backend twice: as b25 with revision 2025-11-25 of MCP, and as b26 with revision
// 2026-07-28. The configuration gatewayConfig also has a backend that sends events.
const bothRevisions = "backends:\n  - {name: b25, prefix: b25_, url: %q, protocolVersion: 2025-11-25}\n  - {name: b26, prefix: b26_, url: %[1]q, protocolVersion: 2026-07-28}\n"

const gatewayConfig = bothRevisions + "  - {name: events, prefix: " + eventsPrefix + ", url: %q}\nquotas:\n  - {workspace: default, sessions: %d}\n"

// Gateway puts a backend behind the gateway of a server, and measures:
//
//   - how much longer a call and its progress messages take through the gateway than directly (direct calls and calls through the gateway
//     alternate),
//   - how long a change of the backend's tools takes to reach many streams,
//   - how much longer an event of a backend takes through the gateway, and
//   - how much memory idle sessions need.
func Gateway(ctx context.Context, o Options, calls, sessions int, w io.Writer) error {
	if o.Server != "" || calls < 20 {
		return fault.New(fault.Invalid, "--gateway measures a server of its own, with 20 --calls or more")
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	b := newBackend()
	defer b.close()
	events := o
	events.Data, events.Profile = "", "" // the publisher needs a database of its own, and no profile
	publisher, err := events.start(ctx, "")
	if err != nil {
		return err
	}
	defer publisher.stop()
	s, err := o.start(ctx, fmt.Sprintf(gatewayConfig, b.server.URL+"/mcp", publisher.url+"/mcp", sessions+100), "--streams", strconv.Itoa(changeStreams+10))
	if err != nil {
		return err
	}
	defer s.stop()
	// Measure the sessions first. Later, they would use memory that the server has freed, and would seem to need less.
	idle, err := o.idleSessions(ctx, s, sessions)
	if err != nil {
		return err
	}
	measured := []through{{url: s.url, backend: b}}
	if o.Against != "" {
		other, end, err := o.against(ctx)
		defer end()
		if err != nil {
			return err
		}
		measured = append(measured, other)
	}
	report, err := o.gateway(ctx, measured, calls)
	if err == nil {
		var line string
		line, err = o.backendEvents(ctx, publisher, s.url, calls)
		report = append(report, line)
	}
	if idle != "" {
		report = append(report, idle)
	}
	for _, line := range report {
		_, _ = fmt.Fprintln(w, line)
	}
	return err
}

// through is a measured server, whose gateway is in front of a backend. The report shows the field name. It is empty for the server under
// test, and set for the server of [Options.Against].
type through struct {
	url, name string
	backend   *backend
}

// against starts the server of [Options.Against]. The caller must call the function end, even after an error.
func (o Options) against(ctx context.Context) (other through, end func(), err error) {
	b := newBackend()
	o.Data, o.Profile, o.Serve = "", "", append([]string{o.Against}, o.Serve[1:]...)
	s, err := o.start(ctx, fmt.Sprintf(bothRevisions, b.server.URL+"/mcp"), "--streams", strconv.Itoa(changeStreams+10))
	if err != nil {
		return other, b.close, err
	}
	return through{s.url, "the program of --against", b}, func() { s.stop(); b.close() }, nil
}

const (
	// warmCalls is the number of calls before the measured ones, because the first calls are slower.
	warmCalls     = 50
	progressSteps = 20
)

// gateway measures calls, progress messages and changes of the backend's tools with each server. It compares the calls and progress
// messages with direct calls to the backend. It returns the lines of the report.
func (o Options) gateway(ctx context.Context, servers []through, calls int) (report []string, err error) {
	var done atomic.Int64
	progressCalls := calls / progressSteps // fewer calls, because each sends many messages
	defer progress.Count(o.Progress, "measured", int64(4*calls+2*progressCalls+len(servers)*changeRounds), done.Load)()
	say := func(format string, args ...any) { report = append(report, fmt.Sprintf(format, args...)) }
	type pair struct{ client, backend string }
	same := []pair{{"2025-11-25", "2025-11-25"}, {"2026-07-28", "2026-07-28"}}
	for _, part := range []struct {
		title              string
		revisions          []pair
		steps, warm, calls int
	}{
		{
			fmt.Sprintf("tools/call, %d each way in turn                 direct p50, p99        gateway p50, p99       added p50, p99", calls),
			append(same, pair{"2026-07-28", "2025-11-25"}, pair{"2025-11-25", "2026-07-28"}), 0, warmCalls, calls,
		},
		{fmt.Sprintf("progress message, sent to read, %d each way in turn", progressCalls*progressSteps), same, progressSteps, 0, progressCalls},
	} {
		say("%s", part.title)
		for _, revision := range part.revisions {
			direct, err := newToolCaller(ctx, servers[0].backend.server.URL+"/mcp", revision.backend, "work")
			if err != nil {
				return nil, err
			}
			callers := []*toolCaller{direct}
			for _, s := range servers {
				over, err := newToolCaller(ctx, s.url+"/mcp", revision.client, "b"+revision.backend[2:4]+"_work")
				if err != nil {
					return nil, err
				}
				callers = append(callers, over)
			}
			took := make([][]time.Duration, len(callers))
			for n := range part.warm + part.calls {
				for k := range callers {
					i := (k + n) % len(callers)
					some, err := callers[i].call(ctx, part.steps)
					if err != nil {
						return nil, err
					}
					if n >= part.warm {
						took[i] = append(took[i], some...)
					}
				}
				if n >= part.warm {
					done.Add(1)
				}
			}
			for i, s := range servers {
				label := fmt.Sprintf("  client %s, backend %s", revision.client, revision.backend)
				if s.name != "" {
					label = "    " + s.name
				}
				say("%-45s%s", label, compared(took[0], took[i+1]))
			}
		}
	}
	for _, s := range servers {
		if err := changes(ctx, s, &done, say); err != nil {
			return nil, err
		}
	}
	return report, nil
}

// compared returns a text with the percentiles of two lists of times, and with their differences. The parameter direct has the times of
// direct calls, and over has the times of calls through the gateway.
func compared(direct, over []time.Duration) string {
	slices.Sort(direct)
	slices.Sort(over)
	p := func(sorted []time.Duration, p float64) time.Duration {
		return percentile(sorted, p).Round(time.Microsecond)
	}
	return fmt.Sprintf("%9s %9s    %9s %9s    %9s %9s", p(direct, 50), p(direct, 99), p(over, 50), p(over, 99),
		p(over, 50)-p(direct, 50), p(over, 99)-p(direct, 99))
}

type toolCaller struct {
	url, tool string
	header    http.Header
	stateless bool
	last      int
}

func newToolCaller(ctx context.Context, url, version, tool string) (*toolCaller, error) {
	c := &toolCaller{url: url, tool: tool, header: http.Header{}, stateless: version >= "2026-07-28"}
	c.header.Set("Content-Type", "application/json")
	c.header.Set("Accept", "application/json, text/event-stream")
	if c.stateless {
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

func (c *toolCaller) post(ctx context.Context, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header = c.header.Clone()
	resp, err := gatewayClient.Do(req)
	return resp, fault.Wrap(fault.Unavailable, err, "call %s", c.url)
}

// call calls the tool once. If steps is 0, it returns how long the call took. Otherwise the call has that many progress messages, and
// call returns how long each of them took to arrive.
func (c *toolCaller) call(ctx context.Context, steps int) (took []time.Duration, err error) {
	c.last++
	meta := `"progressToken":1`
	if c.stateless {
		meta += `,"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}`
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":{"steps":%d},"_meta":{%s}}}`, c.last, c.tool, steps, meta)
	began := time.Now()
	resp, err := c.post(ctx, body)
	if err != nil {
		return nil, err
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
				took = append(took, at.Sub(time.Unix(0, sent)))
			}
		}
		if err != nil {
			break
		}
	}
	whole := time.Since(began)
	if !bytes.Contains(all.Bytes(), []byte(`"done"`)) || len(took) != steps {
		return nil, fault.New(fault.Unavailable, "%s answered with %d of %d progress messages: %.300s", c.url, len(took), steps, all.Bytes())
	}
	if steps == 0 {
		took = []time.Duration{whole}
	}
	return took, nil
}

const (
	changeRounds  = 10
	changeStreams = 1000
)

var gatewayClient = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}, Timeout: callTimeout}

// changes measures how long it takes until many open streams have received the notification that the backend's list of tools has changed.
func changes(ctx context.Context, s through, done *atomic.Int64, say func(string, ...any)) error {
	arrived, end, err := listens(ctx, s.url, changeStreams, "notifications/tools/list_changed", func(int) string { return `{"toolsListChanged":true}` }, new(atomic.Int64))
	defer end()
	if err != nil {
		return err
	}
	var medians, slowest []time.Duration
	for range changeRounds {
		sent := time.Now()
		told := s.backend.changed() // two streams, because the gateway has this backend twice, see bothRevisions
		each := make([]time.Duration, 0, told*changeStreams)
		for range told * changeStreams {
			select {
			case at := <-arrived:
				each = append(each, at.Sub(sent))
			case <-ctx.Done():
				return fault.New(fault.Unavailable, "a change did not reach every stream in time")
			}
		}
		slices.Sort(each)
		medians, slowest = append(medians, each[len(each)/2]), append(slowest, each[len(each)-1])
		done.Add(1)
	}
	slices.Sort(medians)
	slices.Sort(slowest)
	ms := func(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
	say("list_changed of two backends at once to %d streams each, %d rounds  %s", changeStreams, changeRounds, s.name)
	say("  middle stream: median %s, slowest round %s; last stream: median %s, slowest round %s",
		ms(medians[len(medians)/2]), ms(medians[len(medians)-1]), ms(slowest[len(slowest)/2]), ms(slowest[len(slowest)-1]))
	return nil
}

const (
	eventsPrefix = "events_"
	eventName    = "bench.tick"
	// warmEvents is the number of events before the measured ones, because the first events are slower.
	warmEvents = 50
)

// backendEvents compares how long events of a backend take to reach a stream of the backend itself, and a stream of the gateway.
func (o Options) backendEvents(ctx context.Context, backend *server, gateway string, count int) (string, error) {
	direct, end, err := openStream(ctx, backend.url, eventName)
	if err != nil {
		return "", err
	}
	defer end()
	over, end, err := openStream(ctx, gateway, eventsPrefix+eventName)
	if err != nil {
		return "", err
	}
	defer end()
	p := o.newPublisher(backend)
	defer p.caller.close()
	var done atomic.Int64
	defer progress.Count(o.Progress, "events of a backend", int64(count), done.Load)()
	var before, after []time.Duration
	for n := range warmEvents + count {
		began := time.Now()
		if err := p.publish(n); err != nil {
			return "", err
		}
		var took [2]time.Duration
		for i, arrived := range []<-chan time.Time{direct, over} {
			select {
			case at := <-arrived:
				took[i] = at.Sub(began)
			case <-ctx.Done():
				return "", fault.New(fault.Unavailable, "event %d did not arrive in time", n)
			}
		}
		if n >= warmEvents {
			before, after = append(before, took[0]), append(after, took[1])
			done.Add(1)
		}
	}
	return fmt.Sprintf("events of a backend, one at a time, %d\n  stream of 2026-07-28                           %s", count, compared(before, after)), nil
}

// openStream opens a stream for an event type, as soon as the server lists the event type.
func openStream(ctx context.Context, server, name string) (arrived <-chan time.Time, end func(), err error) {
	c, err := client.Connect(ctx, server, client.Options{Agent: "bench/1", Revision: "2026-07-28"})
	if err != nil {
		return nil, nil, err
	}
	for {
		types, err := c.EventTypes(ctx)
		if err != nil {
			return nil, nil, err
		}
		if slices.ContainsFunc(types, func(t client.EventType) bool { return t.Name == name }) {
			break
		}
		if err := until(ctx, time.Now().Add(20*time.Millisecond)); err != nil {
			return nil, nil, err
		}
	}
	times := make(chan time.Time, 1)
	_, err = c.Subscribe(ctx, client.SubscribeOptions{
		Name: name, Arguments: map[string]string{"n": "0"}, Mode: client.ModePush,
		Event: func(context.Context, client.Event) error { times <- time.Now(); return nil },
	})
	return times, func() { _ = c.Close() }, err
}

// idleSessions measures how much memory idle sessions of revision 2025-11-25 of MCP need. It returns a line for the report.
func (o Options) idleSessions(ctx context.Context, s *server, count int) (string, error) {
	if count == 0 {
		return "", nil
	}
	collect := func() int64 {
		s.debugPage(ctx, "/debug/pprof/heap?gc=1")
		return memory(s.pid, "VmRSS")
	}
	before := collect()
	var begun atomic.Int64
	defer progress.Count(o.Progress, "sessions begun", int64(count), begun.Load)()
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(8)
	for range count {
		all.Go(func() error {
			c, err := newToolCaller(ctx, s.url+"/mcp", "2025-11-25", "b25_work")
			if err == nil {
				_, err = c.call(ctx, 0)
			}
			begun.Add(1)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return "", err
	}
	grown := collect() - before
	return fmt.Sprintf("%d idle sessions of 2025-11-25, after a call each: %.1f KiB a session (resident, over %.0f MiB without)",
		count, float64(grown)/1024/float64(count), float64(before)/(1<<20)), nil
}

//go:build unix

package soak

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/harness"
)

// client is a client of either generation. It follows resources of all backends and the lists, reads changed resources, and
// makes calls that it may cancel and whose questions it answers.
type client struct {
	*harness.Client
	run  *run
	name string
	rand *rand.Rand // of the goroutine that makes calls
	uris []string

	mu    sync.Mutex
	seen  map[string]int // by URI: the version that it has read
	dirty map[string]bool
	wake  chan struct{}
}

// statelessName begins the names of stateless clients.
const statelessName = "L"

func (c *client) stateless() bool { return c.Version == harness.V20260728 }

func newClient(r *run, n int) *client {
	c := &client{
		Client: &harness.Client{URL: r.server.MCP, Key: r.server.Keys[fmt.Sprint("p", n%principals)], Version: harness.V20251125},
		run:    r, name: fmt.Sprintf("S%d", n), rand: rand.New(rand.NewPCG(r.seed, uint64(100+n))),
		seen: map[string]int{}, dirty: map[string]bool{}, wake: make(chan struct{}, 1),
	}
	if n%2 == 1 {
		c.Version, c.name = harness.V20260728, fmt.Sprint(statelessName, n)
	}
	c.Capabilities = map[string]any{"elicitation": map[string]any{}}
	for _, b := range r.backends {
		c.uris = append(c.uris, b.uri(fmt.Sprint("r", n/2%5)))
		switch n / 2 {
		case 0:
			c.uris = append(c.uris, b.uri("slow"))
		case 1:
			c.uris = append(c.uris, b.uri("refused"))
		}
	}
	return c
}

// begin makes the client's session and its subscriptions.
func (c *client) begin(ctx context.Context) error {
	if c.stateless() {
		return nil
	}
	if _, err := c.TryInitialize(ctx); err != nil {
		return err
	}
	for _, uri := range c.uris {
		for {
			a, err := c.Try(ctx, "resources/subscribe", map[string]any{"uri": uri})
			if err == nil && (a.Error == nil || strings.HasSuffix(uri, "/refused")) {
				break
			}
			if !harness.Sleep(ctx, 500*time.Millisecond) {
				return fmt.Errorf("subscribe to %s: %v %+v", uri, err, a)
			}
		}
	}
	return nil
}

// follow keeps the client's stream open until ctx ends, and sometimes reopens it.
func (c *client) follow(ctx context.Context, r *rand.Rand) {
	last := ""
	for first := true; ctx.Err() == nil; first = false {
		stream, err := c.open(ctx, last)
		if err != nil {
			if ctx.Err() == nil {
				c.run.account.fault("%s: a stream does not open: %v", c.name, err)
				harness.Sleep(ctx, time.Second)
			}
			continue
		}
		c.run.account.count("streams opened")
		if first || c.stateless() {
			// A session's stream resumes where it was. A listen does not, so the client has to look itself.
			c.touch(append([]string{listURI}, c.uris...)...)
		}
		keep, cancel := context.WithTimeout(ctx, harness.About(r, c.run.reopen))
		for n := 0; ; {
			for _, m := range stream.From(n) {
				n++
				c.notified(m)
				if m.EventID != "" {
					last = m.EventID
				}
			}
			if !stream.Await(keep, n+1) {
				break
			}
		}
		if keep.Err() == nil {
			c.run.account.count("streams that the server ended")
		}
		cancel()
		stream.Close()
	}
}

// listURI stands for the list of tools.
const listURI = "list"

func (c *client) open(ctx context.Context, last string) (*harness.Stream, error) {
	if !c.stateless() {
		return c.TryOpen(ctx, last)
	}
	return c.TryListen(ctx, "listen", map[string]any{"toolsListChanged": true, "resourceSubscriptions": c.uris}, nil)
}

func (c *client) notified(m *harness.Message) {
	switch m.Method {
	case "notifications/resources/updated":
		u, err := m.Update()
		if err != nil {
			c.run.account.fault("%s got %s", c.name, m.Raw)
			return
		}
		c.run.account.count("updates received")
		c.touch(u.URI)
	case "notifications/tools/list_changed":
		c.run.account.count("list changes received")
		c.touch(listURI)
	}
}

// touch has the reader read URIs.
func (c *client) touch(uris ...string) {
	c.mu.Lock()
	for _, uri := range uris {
		c.dirty[uri] = true
	}
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// read reads the announced resources until ctx ends.
func (c *client) read(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		}
		c.mu.Lock()
		dirty := c.dirty
		c.dirty = map[string]bool{}
		c.mu.Unlock()
		for uri := range dirty {
			if err := c.readOne(ctx, uri); err != nil && ctx.Err() == nil {
				c.run.account.count("reads that failed and were repeated")
				if !harness.Sleep(ctx, time.Second) {
					return
				}
				c.touch(uri)
			}
		}
	}
}

func (c *client) readOne(ctx context.Context, uri string) error {
	if uri == listURI {
		return c.readLists(ctx)
	}
	a, err := c.Try(ctx, "resources/read", map[string]any{"uri": uri})
	if err != nil {
		return err
	}
	if a.Error != nil {
		return a.Error
	}
	var result struct{ Contents []struct{ Text string } }
	if err := json.Unmarshal(a.Result, &result); err != nil || len(result.Contents) != 1 {
		return fmt.Errorf("%v: %s", err, a.Result)
	}
	version, err := strconv.Atoi(result.Contents[0].Text)
	if err != nil {
		return err
	}
	c.has(uri, version)
	return nil
}

// readLists reads the list of tools and takes the versions of all backends out of it.
func (c *client) readLists(ctx context.Context) error {
	a, err := c.Try(ctx, "tools/list", nil)
	if err != nil {
		return err
	}
	if a.Error != nil {
		return a.Error
	}
	var result struct{ Tools []struct{ Name string } }
	if err := json.Unmarshal(a.Result, &result); err != nil {
		return err
	}
	for _, tool := range result.Tools {
		backend, version, ok := strings.Cut(tool.Name, "_version_")
		if n, err := strconv.Atoi(version); ok && err == nil {
			c.has("soak://"+backend+"/list", n)
		}
	}
	return nil
}

// has notes a version that the client has read.
func (c *client) has(uri string, version int) {
	now := time.Now()
	c.mu.Lock()
	before := c.seen[uri]
	c.seen[uri] = max(before, version)
	c.mu.Unlock()
	if before > 0 && version > before && !strings.HasSuffix(uri, "/refused") { // only a listen that reopens reads that again
		c.run.account.has(c.name, uri, before, version, now)
	}
}

// behind returns the URIs of which the client has not read the current version.
func (c *client) behind() (uris []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	check := func(uri string) {
		if latest := c.run.account.latest(uri); c.seen[uri] < latest {
			uris = append(uris, fmt.Sprintf("%s has read version %d of %s, want %d", c.name, c.seen[uri], uri, latest))
		}
	}
	for _, uri := range c.uris {
		if !strings.HasSuffix(uri, "/refused") {
			check(uri)
		}
	}
	for _, b := range c.run.backends {
		check(b.uri("list"))
	}
	return uris
}

// longest is when a call is taken to hang.
const longest = 45 * time.Second

// work makes one call after the other until ctx ends.
func (c *client) work(ctx context.Context) {
	for n := 0; harness.Sleep(ctx, harness.About(c.rand, c.run.pause)); n++ {
		b := c.run.backends[c.rand.IntN(len(c.run.backends))]
		mark := fmt.Sprintf("%s-%d", c.name, n)
		began := time.Now()
		c.run.account.with(mark, func(k *call) { k.backend, k.client, k.began = b.name, c.name, began })
		bounded, stop := context.WithTimeout(c.run.t.Context(), longest)
		kind := "work"
		switch c.rand.IntN(6) {
		case 0:
			kind = "cancelled work"
			c.cancel(bounded, b, mark)
		case 1, 2:
			kind = "ask"
			c.ask(bounded, b, mark)
		default:
			c.end(mark, c.call(bounded, b, "work", arguments{mark, c.rand.IntN(300)}, nil))
		}
		if bounded.Err() != nil {
			c.run.account.with(mark, func(k *call) { k.hung = true })
			c.run.account.fault("%s, %s at %s, has not ended after %v", mark, kind, b.name, longest)
		}
		stop()
		now := time.Now()
		restarted := b.wasDown(began, now)
		c.run.account.with(mark, func(k *call) { k.ended, k.restarted = now, restarted })
	}
}

// outcome is how a call ended at the client.
type outcome struct {
	text string // of the result
	err  error  // of the connection, or the error of the response
	got  int    // responses
}

// end notes how a call ended that was not cancelled.
func (c *client) end(mark string, o outcome) {
	c.run.account.with(mark, func(k *call) {
		k.responses = o.got
		if o.err != nil {
			k.failed = o.err.Error()
		} else if !strings.Contains(o.text, mark) && k.given == "" && !strings.Contains(o.text, "decline") && !k.refused && !k.withdrawn {
			k.failed = "its result is " + o.text
		}
	})
}

// cancel makes a call that takes a minute and cancels it immediately after it was sent, or soon.
func (c *client) cancel(ctx context.Context, b *backend, mark string) {
	calling, leave := context.WithCancel(ctx)
	defer leave()
	sent, ended := make(chan struct{}), make(chan struct{})
	written := sync.OnceFunc(func() { close(sent) }) // a request may be written again
	traced := httptrace.WithClientTrace(calling, &httptrace.ClientTrace{WroteRequest: func(httptrace.WroteRequestInfo) { written() }})
	c.run.account.with(mark, func(k *call) { k.cancelled = true })
	go func() {
		defer close(ended)
		c.call(traced, b, "work", arguments{mark, 60_000}, nil)
	}()
	select {
	case <-sent:
	case <-ended:
	}
	harness.Sleep(ctx, time.Duration(c.rand.IntN(3))*time.Duration(c.rand.IntN(300))*time.Millisecond)
	c.run.account.count("cancellations sent")
	c.run.account.with(mark, func(k *call) { k.cancelledAt = time.Now() })
	if c.stateless() {
		leave()
	} else if status, err := c.TryNotify(ctx, "notifications/cancelled", map[string]any{"requestId": mark}); err != nil || status != http.StatusAccepted {
		c.run.account.fault("%s: the cancellation got status %d, %v", mark, status, err)
	}
	<-ended
}

// ask makes a call that asks, and answers immediately, late, after the question is withdrawn, or declines.
func (c *client) ask(ctx context.Context, b *backend, mark string) {
	patience := 8 * time.Second
	delay := time.Duration(0)
	action := "accept"
	switch c.rand.IntN(6) {
	case 0:
		delay = harness.About(c.rand, 3*time.Second)
	case 1:
		patience, delay = 2*time.Second, 3*time.Second
	case 2:
		patience, delay = 2*time.Second, harness.About(c.rand, 2*time.Second) // close to the withdrawal
	case 3:
		action = "decline"
	}
	value := "value of " + mark
	c.end(mark, c.call(ctx, b, "ask", arguments{mark, int(patience.Milliseconds())}, func(ctx context.Context, message string, id json.RawMessage) map[string]any {
		if message != mark {
			c.run.account.fault("%s is asked %s", mark, message)
		}
		c.run.account.count("questions received")
		c.run.account.with(mark, func(k *call) { k.questions++ })
		harness.Sleep(ctx, delay)
		result := map[string]any{"action": action}
		if action == "accept" {
			result["content"] = map[string]any{"value": value}
		}
		accepted := func() {
			if action == "accept" {
				c.run.account.count("answers given")
				c.run.account.with(mark, func(k *call) { k.given = value })
			}
		}
		if id == nil { // it goes with the next round
			accepted()
			return result
		}
		status, err := c.TryAnswer(ctx, map[string]any{"jsonrpc": "2.0", "id": id, "result": result})
		switch {
		case err != nil:
			c.run.account.fault("%s: answer: %v", mark, err)
		case status == http.StatusAccepted:
			accepted()
		default:
			c.run.account.with(mark, func(k *call) { k.refused = true })
		}
		return nil
	}))
}

// answering answers a question. It posts the answer itself if the question has an id; otherwise it returns the result.
type answering func(ctx context.Context, message string, id json.RawMessage) map[string]any

// call calls a tool until its final result.
func (c *client) call(ctx context.Context, b *backend, tool string, a arguments, answer answering) outcome {
	params := map[string]any{"name": b.name + "_" + tool, "arguments": a}
	for {
		text, got, err := c.exchange(ctx, a.Mark, params, answer)
		if err != nil || got != 1 {
			return outcome{err: err, got: got}
		}
		var result struct {
			ResultType    string
			RequestState  *string
			InputRequests map[string]struct {
				Params struct{ Message string }
			}
			Content []struct{ Text string }
		}
		if err := json.Unmarshal(text, &result); err != nil {
			return outcome{err: err, got: got}
		}
		if result.ResultType == "input_required" {
			responses := map[string]any{}
			for key, q := range result.InputRequests {
				responses[key] = answer(ctx, q.Params.Message, nil)
			}
			params["inputResponses"] = responses
			delete(params, "requestState")
			if result.RequestState != nil {
				params["requestState"] = *result.RequestState
			}
			continue
		}
		if len(result.Content) != 1 {
			return outcome{err: fmt.Errorf("the result is %s", text), got: got}
		}
		return outcome{text: result.Content[0].Text, got: got}
	}
}

// exchange sends a request and reads its stream to the end, so that a second response would be seen.
func (c *client) exchange(ctx context.Context, id string, params map[string]any, answer answering) (result json.RawMessage, responses int, err error) {
	req, err := c.Request(ctx, "tools/call", params, id)
	if err != nil {
		return nil, 0, err
	}
	resp, err := c.run.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	defer resp.Body.Close()
	response := func(text []byte) error {
		var m harness.Message
		if err := json.Unmarshal(text, &m); err != nil {
			return fmt.Errorf("status %d: %.300s", resp.StatusCode, text)
		}
		if m.Method == "elicitation/create" {
			var p struct{ Message string }
			if err := json.Unmarshal(m.Params, &p); err != nil {
				return err
			}
			answer(ctx, p.Message, m.ID)
			return nil
		}
		if m.Method != "" {
			return nil
		}
		if string(m.ID) != strconv.Quote(id) {
			return fmt.Errorf("a response has the id %s: %.300s", m.ID, text)
		}
		responses++
		if m.Error != nil {
			return fmt.Errorf("status %d: %w", resp.StatusCode, m.Error)
		}
		result = m.Result
		return nil
	}
	if !strings.HasPrefix(resp.Header.Get("Content-Type"), sse.ContentType) {
		text, err := io.ReadAll(resp.Body)
		if err == nil {
			err = response(text)
		}
		return result, responses, err
	}
	events := sse.NewReader(resp.Body, 1<<20)
	var failed error
	for {
		e, err := events.Next()
		if err != nil {
			if responses == 0 {
				failed = fmt.Errorf("the stream ended without a response: %w", err)
			}
			return result, responses, failed
		}
		if len(e.Data) == 0 {
			continue
		}
		if err := response(e.Data); err != nil && failed == nil {
			failed = err
		}
	}
}

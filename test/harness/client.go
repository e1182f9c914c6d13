//go:build unix

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// The protocol revisions that tests name.
const (
	V20260728 = "2026-07-28"
	V20251125 = "2025-11-25"
	V20250618 = "2025-06-18"
	V20250326 = "2025-03-26"
)

// Our own names on the wire, repeated here as a client would.
const (
	Prefix    = "io.github.mcp-events/"
	Extension = Prefix + "subscriptions"
	// SubscriptionID is the _meta key of the published revision 2026-07-28.
	SubscriptionID = "io.modelcontextprotocol/subscriptionId"
)

// Client is an MCP client over HTTP that shows everything: status, headers,
// members that a library would drop. It is safe for concurrent calls.
type Client struct {
	URL, Key string
	// Version is the protocol revision that requests are sent with.
	Version string
	// Session is the session id of a session-based client.
	Session string
	// Capabilities are the capabilities that the client declares. nil means an empty object.
	Capabilities map[string]any

	seq atomic.Int64
}

// Stateless returns a client of revision 2026-07-28.
func (t *Target) Stateless(principal string) *Client {
	return &Client{URL: t.MCP, Key: t.Keys[principal], Version: V20260728}
}

// SessionBased returns a client of an earlier revision with an initialized session.
func (t *Target) SessionBased(tb testing.TB, principal, version string) *Client {
	tb.Helper()
	c := &Client{URL: t.MCP, Key: t.Keys[principal], Version: version}
	c.Initialize(tb)
	return c
}

// RPCError is a JSON-RPC error.
type RPCError struct {
	Code    int
	Message string
	Data    json.RawMessage
}

func (e *RPCError) Error() string { return fmt.Sprintf("%d %s %s", e.Code, e.Message, e.Data) }

// Answer is the answer to a request.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
	// ID, Result and Error are the members of the JSON-RPC response, if the body is one.
	ID     json.RawMessage
	Result json.RawMessage
	Error  *RPCError
}

// callers is shared by all clients; streams have connections of their own.
var callers = &http.Client{
	Timeout:   Patience,
	Transport: &http.Transport{MaxIdleConnsPerHost: 64},
}

// Initialize opens a session, and returns the result of initialize.
func (c *Client) Initialize(tb testing.TB) json.RawMessage {
	tb.Helper()
	result, err := c.TryInitialize(tb.Context())
	expect.OK(tb, err)
	return result
}

// TryInitialize works like [Client.Initialize], but returns an error if the server is down.
func (c *Client) TryInitialize(ctx context.Context) (json.RawMessage, error) {
	c.Session = ""
	a, err := c.Try(ctx, "initialize", map[string]any{
		"protocolVersion": c.Version, "capabilities": c.capabilities(),
		"clientInfo": map[string]any{"name": "harness", "version": "1"},
	})
	if err != nil {
		return nil, fmt.Errorf("initialize: %w", err)
	}
	if a.Error != nil || a.Status != http.StatusOK {
		return nil, fmt.Errorf("initialize: status %d, error %v: %.300s", a.Status, a.Error, a.Body)
	}
	if c.Session = a.Header.Get("Mcp-Session-Id"); c.Session == "" {
		return nil, errors.New("initialize: no Mcp-Session-Id")
	}
	status, err := c.TryNotify(ctx, "notifications/initialized", nil)
	if err == nil && status != http.StatusAccepted {
		err = fmt.Errorf("notifications/initialized: status %d", status)
	}
	return a.Result, err
}

func (c *Client) capabilities() map[string]any {
	if c.Capabilities == nil {
		return map[string]any{}
	}
	return c.Capabilities
}

func (c *Client) stateless() bool { return c.Version >= V20260728 }

// Do sends a request and returns the answer, whatever it is.
func (c *Client) Do(tb testing.TB, method string, params map[string]any) *Answer {
	tb.Helper()
	a, err := c.Try(tb.Context(), method, params)
	if err != nil {
		tb.Fatalf("%s: %v", method, err)
	}
	return a
}

// Call sends a request that must succeed, and decodes its result; result may be nil.
func (c *Client) Call(tb testing.TB, method string, params map[string]any, result any) {
	tb.Helper()
	a := c.Do(tb, method, params)
	if a.Error != nil || a.Status != http.StatusOK || a.Result == nil {
		tb.Fatalf("%s: status %d, error %v: %.500s", method, a.Status, a.Error, a.Body)
	}
	if result == nil {
		return
	}
	if err := json.Unmarshal(a.Result, result); err != nil {
		tb.Fatalf("%s: decode the result: %v: %.500s", method, err, a.Result)
	}
}

// Refused sends a request that must be answered with an error of the code.
func (c *Client) Refused(tb testing.TB, code int, method string, params map[string]any) *RPCError {
	tb.Helper()
	a := c.Do(tb, method, params)
	if a.Error == nil || a.Error.Code != code {
		tb.Fatalf("%s %v: got status %d, %.500s, want error %d", method, params, a.Status, a.Body, code)
	}
	if a.Error.Message == "" {
		tb.Errorf("%s: error %d has no message", method, code)
	}
	return a.Error
}

// Try sends a request. The error is one of the connection.
func (c *Client) Try(ctx context.Context, method string, params map[string]any) (*Answer, error) {
	req, err := c.Request(ctx, method, params, c.seq.Add(1))
	if err != nil {
		return nil, err
	}
	return send(req)
}

// Request makes the HTTP request of a JSON-RPC request. A nil id makes a notification.
func (c *Client) Request(ctx context.Context, method string, params map[string]any, id any) (*http.Request, error) {
	params = maps.Clone(params)
	if params == nil {
		params = map[string]any{}
	}
	if c.stateless() {
		meta := map[string]any{
			"io.modelcontextprotocol/protocolVersion":    c.Version,
			"io.modelcontextprotocol/clientInfo":         map[string]any{"name": "harness", "version": "1"},
			"io.modelcontextprotocol/clientCapabilities": c.capabilities(),
		}
		if more, ok := params["_meta"].(map[string]any); ok {
			maps.Copy(meta, more)
		}
		params["_meta"] = meta
	}
	message := map[string]any{"jsonrpc": "2.0", "method": method, "params": params}
	if id != nil {
		message["id"] = id
	}
	req, err := c.newPost(ctx, message)
	if err != nil {
		return nil, err
	}
	if c.stateless() {
		req.Header.Set("Mcp-Method", method)
		switch method {
		case "resources/read":
			req.Header.Set("Mcp-Name", fmt.Sprint(params["uri"]))
		case "tools/call", "prompts/get":
			req.Header.Set("Mcp-Name", fmt.Sprint(params["name"]))
		case "tasks/get", "tasks/update", "tasks/cancel":
			req.Header.Set("Mcp-Name", fmt.Sprint(params["taskId"]))
		}
	}
	return req, nil
}

func (c *Client) newPost(ctx context.Context, message map[string]any) (*http.Request, error) {
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	c.header(req.Header)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	return req, nil
}

func (c *Client) header(h http.Header) {
	if c.Key != "" {
		h.Set("Authorization", "Bearer "+c.Key)
	}
	if c.stateless() || c.Session != "" && c.Version != "" { // the dialect has no version
		h.Set("Mcp-Protocol-Version", c.Version)
	}
	if c.Session != "" {
		h.Set("Mcp-Session-Id", c.Session)
	}
}

// Notify sends a notification and returns the status of the answer.
func (c *Client) Notify(tb testing.TB, method string, params map[string]any) int {
	tb.Helper()
	status, err := c.TryNotify(tb.Context(), method, params)
	if err != nil {
		tb.Fatalf("%s: %v", method, err)
	}
	return status
}

// TryNotify works like [Client.Notify], but returns an error if the server is down.
func (c *Client) TryNotify(ctx context.Context, method string, params map[string]any) (int, error) {
	req, err := c.Request(ctx, method, params, nil)
	if err != nil {
		return 0, err
	}
	return sendForStatus(req)
}

// TryAnswer sends the answer to a request of the server, and returns the status of the answer to this.
func (c *Client) TryAnswer(ctx context.Context, answer map[string]any) (int, error) {
	req, err := c.newPost(ctx, answer)
	if err != nil {
		return 0, err
	}
	return sendForStatus(req)
}

func sendForStatus(req *http.Request) (int, error) {
	resp, err := callers.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, nil
}

// Raw sends a body as it is, with the client's headers and those given in pairs;
// an empty value removes a header.
func (c *Client) Raw(tb testing.TB, httpMethod, body string, header ...string) *Answer {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), httpMethod, c.URL, strings.NewReader(body))
	expect.OK(tb, err)
	c.header(req.Header)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("Accept", "application/json, text/event-stream")
	for i := 0; i+1 < len(header); i += 2 {
		if header[i+1] == "" {
			req.Header.Del(header[i])
		} else {
			req.Header.Set(header[i], header[i+1])
		}
	}
	a, err := send(req)
	expect.OK(tb, err)
	return a
}

func send(req *http.Request) (*Answer, error) {
	resp, err := callers.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	a := &Answer{Status: resp.StatusCode, Header: resp.Header}
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		err = a.fromStream(resp.Body)
	} else {
		a.Body, err = io.ReadAll(resp.Body)
	}
	if err != nil {
		return nil, err
	}
	var m Message
	if json.Unmarshal(a.Body, &m) == nil {
		a.ID, a.Result, a.Error = m.ID, m.Result, m.Error
	}
	return a, nil
}

// fromStream takes the response out of a stream that ends with it.
func (a *Answer) fromStream(r io.Reader) error {
	events := newEventReader(r)
	for {
		ev, err := events.next()
		if err != nil {
			return fmt.Errorf("a stream ended without a response: %w", err)
		}
		var m Message
		if json.Unmarshal(ev.data, &m) == nil && m.Method == "" && len(m.ID) > 0 {
			a.Body = ev.data
			return nil
		}
	}
}

// All calls a paginated list method until its end, and returns the items of all pages.
func (c *Client) All(tb testing.TB, method, member string) (items []map[string]any) {
	tb.Helper()
	params := map[string]any{}
	for range 1000 {
		var page map[string]json.RawMessage
		c.Call(tb, method, params, &page)
		var some []map[string]any
		if err := json.Unmarshal(page[member], &some); err != nil {
			tb.Fatalf("%s: member %s: %v", method, member, err)
		}
		items = append(items, some...)
		next := page["nextCursor"]
		if next == nil || string(next) == "null" {
			return items
		}
		cursor, err := strconv.Unquote(string(next))
		if err != nil {
			tb.Fatalf("%s: nextCursor is %s", method, next)
		}
		params = map[string]any{"cursor": cursor}
	}
	tb.Fatalf("%s: more than 1000 pages", method)
	return nil
}

//go:build unix

package standalone_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestMain runs the command with events if the test binary was started as one: with the variable EVENTS.
func TestMain(m *testing.M) {
	if path := os.Getenv("EVENTS"); path != "" {
		(&eventsCommand{path: path, streams: map[string]bool{}}).serve()
		return
	}
	os.Exit(m.Run())
}

// eventsCommand is an MCP server over stdio with events (SEP-3415). Its events are the lines of a file, and the cursor is the number of a
// line, so that a new process can continue.
type eventsCommand struct {
	path string

	mu      sync.Mutex
	streams map[string]bool // by the id of the request
}

func (c *eventsCommand) write(message string) {
	fmt.Println(message)
}

// after returns the events after a cursor, as EventOccurrences, and the new cursor.
func (c *eventsCommand) after(cursor int) (events []string, next int) {
	text, _ := os.ReadFile(c.path)
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	if len(bytes.TrimSpace(text)) == 0 {
		lines = nil
	}
	for i := cursor; i >= 0 && i < len(lines); i++ {
		events = append(events, fmt.Sprintf(`{"eventId":"e%d","name":"file.changed","timestamp":"2026-11-28T00:00:00Z","data":%s,"cursor":"%d"`, i, lines[i], i+1))
	}
	return events, len(lines)
}

func (c *eventsCommand) serve() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var m struct {
			ID     json.RawMessage
			Method string
			Params struct {
				Name      string
				Cursor    *string
				RequestID json.RawMessage
				Arguments struct{ Data json.RawMessage }
			}
		}
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			os.Exit(9)
		}
		result := func(body string) {
			c.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete",%s}}`, m.ID, body))
		}
		cursor := -1
		if m.Params.Cursor != nil {
			fmt.Sscan(*m.Params.Cursor, &cursor)
		}
		c.mu.Lock()
		switch m.Method {
		case "server/discover", "initialize":
			if before := os.Getenv("REVISION") == "2025-11-25"; before && m.Method == "server/discover" {
				c.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown method"}}`, m.ID))
				break
			}
			result(`"supportedVersions":["2026-07-28"],"protocolVersion":"2025-11-25","serverInfo":{"name":"files","version":"1"},` +
				`"capabilities":{"tools":{},"extensions":{"io.modelcontextprotocol/events":{}}}`)
		case "tools/list":
			var tools []string
			for _, name := range []string{"emit", "exit", "flood"} {
				tools = append(tools, fmt.Sprintf(`{"name":%q,"inputSchema":{"type":"object"}}`, name))
			}
			result(fmt.Sprintf(`"tools":[%s]`, strings.Join(tools, ",")))
		case "events/list":
			result(`"events":[{"name":"file.changed","description":"A file has changed.","delivery":["` + os.Getenv("MODE") + `","webhook"]},` +
				`{"name":"file.posted","description":"Only by webhook.","delivery":["webhook"]}]`)
		case "events/poll":
			events, next := c.after(cursor)
			for i := range events {
				events[i] += "}"
			}
			result(fmt.Sprintf(`"events":[%s],"cursor":"%d","truncated":false,"hasMore":false,"nextPollMs":1000`, strings.Join(events, ","), next))
		case "events/stream":
			c.streams[string(m.ID)] = true
			events, next := c.after(cursor)
			c.note(string(m.ID), "active", fmt.Sprintf(`{"cursor":"%d"`, next-len(events)))
			for _, e := range events {
				c.note(string(m.ID), "event", e)
			}
		case "notifications/cancelled":
			delete(c.streams, string(m.Params.RequestID))
		case "tools/call":
			for id := range c.streams {
				if m.Params.Name != "flood" {
					break
				}
				for range 500 {
					c.note("4711", "event", `{"eventId":"stray","name":"file.changed","data":{"n":0}`) // there is no such request
					c.note(id, "event", `{"name":"file.changed","data":{"n":0}`)                       // it has no id
				}
				c.note(id, "event", fmt.Sprintf(`{"eventId":"long","name":"file.changed","data":{"n":0,"text":%q}`, strings.Repeat("x", 9<<20)))
			}
			_, line := c.after(0)
			file, _ := os.OpenFile(c.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			fmt.Fprintf(file, "%s\n", m.Params.Arguments.Data)
			file.Close()
			if m.Params.Name == "exit" {
				os.Exit(3) // before the event is sent
			}
			events, _ := c.after(line)
			for id := range c.streams {
				c.note(id, "event", events[0])
			}
			result(`"content":[]`)
		}
		c.mu.Unlock()
	}
}

// note writes a notification to a stream. params is an object without its last brace.
func (c *eventsCommand) note(stream, name, params string) {
	c.write(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/events/%s","params":%s,"_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, name, params, stream))
}

// startCommandGateway starts a server in front of the command, whose events are in the file at path.
func startCommandGateway(t *testing.T, path, mode, revision string, change func(*standalone.Options)) *standalone.Server {
	t.Helper()
	o := servertest.Options(t, nil)
	o.Auth = "keys"
	o.Config = servertest.Config(t, callers, fmt.Sprintf(
		"backends:\n  - {name: files, command: [%q], env: {EVENTS: %q, MODE: %s, REVISION: %q}, prefix: files_, memoryMiB: 1048576}\n", os.Args[0], path, mode, revision))
	if change != nil {
		change(&o)
	}
	return servertest.Start(t, o)
}

// TestEventsOfACommand: GWN-20, GWN-21, GWN-22 and GWN-26. A command can offer events with streams and with polls. They pass like the
// events of other backends, also if its process fails.
func TestEventsOfACommand(t *testing.T) {
	for _, c := range []struct{ mode, revision string }{{"push", "2026-07-28"}, {"poll", "2026-07-28"}, {"poll", "2025-11-25"}} {
		t.Run(c.mode+" "+c.revision, func(t *testing.T) {
			t.Parallel()
			gateway := startCommandGateway(t, filepath.Join(t.TempDir(), "events"), c.mode, c.revision, nil)
			alice := connect(t, gateway, "alice", "2026-07-28")
			awaitType(t, alice, "files_file.changed")
			types := expect.Value(alice.EventTypes(t.Context()))(t)
			if slices.ContainsFunc(types, func(e client.EventType) bool { return e.Name == "files_file.posted" }) {
				t.Error("GWN-26: an event type is listed that the command delivers by webhook only")
			}
			streamed := subscribe(t, alice, "push", "files_file.changed", map[string]any{})
			call := func(tool string, n int) error {
				return alice.Call(t.Context(), "tools/call", map[string]any{"name": tool, "arguments": map[string]any{"data": map[string]int{"n": n}}}, nil)
			}
			expect.OK(t, call("files_emit", 1))
			streamed.await(t, func() bool { return len(streamed.events) == 1 })
			expect.Error(t, "the call of a process that fails", call("files_exit", 2))
			streamed.await(t, func() bool { return len(streamed.events) == 2 })
			for end := time.Now().Add(servertest.Patience); call("files_emit", 3) != nil && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
			}
			streamed.await(t, func() bool { return len(streamed.events) == 3 })
			if got := fmt.Sprintf("%s %s %s", streamed.events[0].Data, streamed.events[1].Data, streamed.events[2].Data); got != `{"n":1} {"n":2} {"n":3}` || streamed.gaps != 0 {
				t.Errorf("GWN-22: got %s and %d gaps", got, streamed.gaps)
			}
		})
	}
}

// TestAHostileCommand: GWN-22 and GWN-26. The relay drops many events without an id, events of no stream, and one that is too large. The
// command's other events and its calls are not affected.
func TestAHostileCommand(t *testing.T) {
	t.Parallel()
	gateway := startCommandGateway(t, filepath.Join(t.TempDir(), "events"), "push", "2026-07-28", nil)
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "files_file.changed")
	streamed := subscribe(t, alice, "push", "files_file.changed", map[string]any{})
	for i, tool := range []string{"files_emit", "files_flood"} { // a flood ends with an event, too
		expect.OK(t, alice.Call(t.Context(), "tools/call", map[string]any{"name": tool, "arguments": map[string]any{"data": map[string]int{"n": i + 1}}}, nil))
		streamed.await(t, func() bool { return len(streamed.events) > i })
	}
	expect.Equal(t, "the events", fmt.Sprintf("%s %s", streamed.events[0].Data, streamed.events[1].Data), `{"n":1} {"n":2}`)
	expect.Equal(t, "the gaps", streamed.gaps, 0)
}

// TestAWantedCommandStarts: GWN-26. After a restart of the server, a command whose events a webhook subscription wants starts although no
// client calls it.
func TestAWantedCommandStarts(t *testing.T) {
	path, data := filepath.Join(t.TempDir(), "events"), t.TempDir()
	keep := func(o *standalone.Options) { o.Data = data }
	gateway := startCommandGateway(t, path, "push", "2026-07-28", keep)
	alice := connect(t, gateway, "alice", "2026-07-28")
	awaitType(t, alice, "files_file.changed")
	url, posted := startEndpoint(t)
	servertest.SubscribeEvents(t, gateway.URL, "alice", url, "files_file.changed", map[string]any{})
	expect.OK(t, alice.Call(t.Context(), "tools/call", map[string]any{"name": "files_emit", "arguments": map[string]any{"data": map[string]int{"n": 1}}}, nil))
	expect.Contains(t, "the webhook", expect.Receive(t, "the first webhook", posted), `"data":{"n":1}`)
	_ = alice.Close()
	servertest.End(t, gateway)
	file := expect.Value(os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0))(t)
	expect.OK(t, expect.ErrOf(file.WriteString(`{"n":2}`+"\n")))
	expect.OK(t, file.Close())
	startCommandGateway(t, path, "push", "2026-07-28", keep)
	expect.Contains(t, "the webhook", expect.Receive(t, "the second webhook", posted), `"data":{"n":2}`)
}

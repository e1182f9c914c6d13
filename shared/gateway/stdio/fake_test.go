//go:build unix

package stdio

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestMain runs the fake server if the test binary was started as one: with the variable FAKE.
func TestMain(m *testing.M) {
	if kind := os.Getenv("FAKE"); kind != "" {
		(&fake{kind: strings.Fields(kind), waits: map[string]chan json.RawMessage{}}).serve()
		return
	}
	os.Exit(m.Run())
}

// fake is an MCP server over stdio. Its kind has words for how it behaves: modern (2026-07-28) or legacy, and oddities.
type fake struct {
	kind     []string
	discover json.RawMessage // the id of an unanswered server/discover

	mu        sync.Mutex
	cancelled []string
	waits     map[string]chan json.RawMessage // for answers, by id
}

type fakeMessage struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
	Params struct {
		Name      string          `json:"name"`
		RequestID json.RawMessage `json:"requestId"`
		Meta      struct {
			Token json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
		Arguments map[string]any `json:"arguments"`
	} `json:"params"`
}

func (f *fake) is(word string) bool { return slices.Contains(f.kind, word) }

func (f *fake) write(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fmt.Printf(format+"\n", args...)
}

func (f *fake) result(id json.RawMessage, text string) {
	quoted, _ := json.Marshal(text)
	f.write(`{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete","content":[{"type":"text","text":%s}]}}`, id, quoted)
}

func (f *fake) discovered(id json.RawMessage) {
	f.write(`{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"tools":{"listChanged":true}}}}`, id)
}

func (f *fake) serve() {
	if path := os.Getenv("STARTS"); path != "" {
		file, _ := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		fmt.Fprintln(file, os.Getpid())
		file.Close()
	}
	if f.is("dies") {
		os.Exit(3)
	}
	if f.is("stubborn") {
		signal.Ignore(syscall.SIGTERM)
		defer func() { select {} }()
	}
	if f.is("garbage") {
		f.write("Server started\n\n{\"jsonrpc\":\"2.0\"}\n[]\n\xff\xfe")
	}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 32<<20)
	for lines.Scan() {
		var m fakeMessage
		if json.Unmarshal(lines.Bytes(), &m) != nil {
			f.write(`{"jsonrpc":"2.0","error":{"code":-32700,"message":"not one message in a line"}}`)
			continue
		}
		f.handle(m)
	}
}

func (f *fake) handle(m fakeMessage) {
	switch m.Method {
	case "":
		f.mu.Lock()
		c := f.waits[string(m.ID)]
		f.mu.Unlock()
		if c != nil {
			c <- append(append([]byte{}, m.Result...), m.Error...)
		}
	case "server/discover":
		switch {
		case f.is("silent"):
		case f.is("slow") && f.discover == nil: // it answers when it has refused initialize
			f.discover = m.ID
		case f.is("fragile"):
			os.Exit(4)
		case f.is("modern"):
			f.discovered(m.ID)
			if f.is("quits") {
				os.Exit(6)
			}
		default:
			f.write(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown"}}`, m.ID)
		}
	case "initialize":
		if f.is("quits") { // it is asked if the transport has not read the answer to server/discover before the exit
			os.Exit(6)
		}
		if f.is("slow") {
			f.write(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32022,"message":"2025-11-25 is not supported"}}`, m.ID)
			if f.is("modern") {
				f.discovered(f.discover)
			} else {
				f.write(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"unknown"}}`, f.discover)
			}
			return
		}
		version := "2025-11-25"
		if f.is("old") {
			version = "2024-11-05"
		}
		f.write(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"%s","capabilities":{"tools":{}},"serverInfo":{"name":"fake","version":"1"}}}`, m.ID, version)
	case "notifications/initialized":
		if f.is("roots") {
			f.write(`{"jsonrpc":"2.0","id":"r1","method":"roots/list"}`)
		}
	case "notifications/cancelled":
		f.mu.Lock()
		f.cancelled = append(f.cancelled, string(m.Params.RequestID))
		f.mu.Unlock()
	case "subscriptions/listen":
		f.write(`{"jsonrpc":"2.0","method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":%s},"notifications":{}}}`, m.ID)
	case "events/stream":
		for _, id := range []string{string(m.ID), "999"} { // there is no request 999
			f.write(`{"jsonrpc":"2.0","method":"notifications/events/active","params":{"cursor":"1","_meta":{"io.modelcontextprotocol/subscriptionId":%s}}}`, id)
		}
	case "tools/call":
		go f.call(m)
	}
}

// call runs a tool.
func (f *fake) call(m fakeMessage) {
	number := func(name string) int { n, _ := m.Params.Arguments[name].(float64); return int(n) }
	switch m.Params.Name {
	case "pid":
		f.result(m.ID, strconv.Itoa(os.Getpid()))
	case "env":
		f.result(m.ID, strings.Join(os.Environ(), "\n"))
	case "tell":
		fmt.Fprintln(os.Stderr, "the token is", os.Getenv("TOKEN"))
		f.result(m.ID, "done")
	case "progress":
		f.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1}}`, m.Params.Meta.Token)
		f.result(m.ID, "done")
	case "log":
		f.write(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":"said"}}`)
		f.result(m.ID, "done")
	case "ask", "asksLate":
		if m.Params.Name == "asksLate" {
			time.Sleep(time.Duration(number("ms")) * time.Millisecond)
		}
		c := make(chan json.RawMessage, 1)
		f.mu.Lock()
		f.waits["7.5"] = c
		f.mu.Unlock()
		f.write(`{"jsonrpc":"2.0","id":7.5,"method":"elicitation/create","params":{"message":"sure?"}}`)
		f.result(m.ID, string(<-c))
	case "hang":
	case "cancelled":
		f.mu.Lock()
		text := strings.Join(f.cancelled, " ")
		f.mu.Unlock()
		f.result(m.ID, text)
	case "crash":
		os.Exit(5)
	case "long":
		f.result(m.ID, strings.Repeat("x", number("bytes")))
	case "endless":
		for {
			f.mu.Lock()
			if _, err := os.Stdout.WriteString(strings.Repeat("x", 1<<20)); err != nil {
				return
			}
			f.mu.Unlock()
		}
	case "flood":
		for i := range number("lines") {
			fmt.Fprintln(os.Stderr, "line", i, strings.Repeat("y", 10_000))
		}
		f.result(m.ID, "done")
	case "notify":
		for range number("times") {
			f.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":1,"message":"%s"}}`, m.Params.Meta.Token, strings.Repeat("z", 1<<20))
		}
		f.result(m.ID, "done")
	case "fork":
		child := exec.Command("sh", "-c", "trap '' TERM; while :; do sleep 1; done")
		if err := child.Start(); err != nil {
			f.result(m.ID, err.Error())
			return
		}
		f.result(m.ID, strconv.Itoa(child.Process.Pid))
	case "twice":
		f.result(m.ID, "first")
		f.result(m.ID, "second")
	case "closes":
		os.Stdout.Close()
	case "changed":
		f.write(`{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}`)
		f.result(m.ID, "done")
	}
}

// GWN-26: whatever a process writes, a request gets only complete messages, and one response at most.
func FuzzOutput(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{}}` + "\n", `[{"jsonrpc":"2.0","id":1.0,"error":{}},{"jsonrpc":"2.0","id":1,"result":{}}]` + "\r\n",
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"gw_1"}}` + "\n", "\n\r\n{\n}\n\xff",
		`{"jsonrpc":"2.0","id":9,"method":"roots/list"}` + "\n" + `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":9}}`,
	} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, output string, stateless bool) {
		p := newProcess(&server{t: &Transport{}, backend: api.Backend{Name: "fake"}}, "")
		p.stateless = stateless
		if !stateless {
			p.holder = "default/a"
		}
		x := &exchange{p: p, ctx: t.Context(), id: []byte("1"), method: "tools/call", wake: make(chan struct{}, 1), token: []byte("1"), sent: []byte(`"gw_1"`)}
		expect.OK(t, p.open(x, nil))
		p.stop("the test ends it")
		p.read(iotest.HalfReader(strings.NewReader(output)))
		responses := 0
		for _, m := range x.queue {
			if _, _, bad := jsonrpc.Split(m); bad != nil || bytes.ContainsAny(m, "\r\n") {
				t.Errorf("got %q", m)
			}
			if methodOf(m) == "" {
				responses++
			}
		}
		expect.AtMost(t, "the responses", responses, 1)
		expect.Equal(t, "the queued bytes", p.queued, x.size)
	})
}

//go:build unix

package soak

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// backend is a server on an official SDK, as a process. The comment of test/interop/js/backend.js describes its arguments
// and its lines. Versions are files, so that they survive a restart.
type backend struct {
	name    string // ts, py or go; with "_" it is the prefix of its tools
	addr    string
	dir     string
	command func(args ...string) *exec.Cmd
	account *account

	mu    sync.Mutex
	in    io.WriteCloser // nil while it is down
	cmd   *exec.Cmd
	read  chan struct{} // closed when all that the process wrote is read
	epoch int           // counts the starts
	down  []downtime
}

// downtime is a time in which calls may fail because the backend restarts.
type downtime struct{ from, until time.Time }

// restartGrace is how long after a restart calls may still fail, because sessions and connections are made again.
const restartGrace = 10 * time.Second

var resources = []string{"r0", "r1", "r2", "r3", "r4", "slow", "refused"}

func newBackend(tb testing.TB, name string, a *account, command func(args ...string) *exec.Cmd) *backend {
	b := &backend{name: name, addr: harness.FreeAddr(tb), dir: tb.TempDir(), command: command, account: a}
	for _, r := range append([]string{"list"}, resources...) {
		expect.OK(tb, b.write(r, 1))
	}
	expect.OK(tb, b.start())
	tb.Cleanup(func() { b.stop(syscall.SIGKILL) })
	return b
}

func (b *backend) uri(resource string) string { return "soak://" + b.name + "/" + resource }

func (b *backend) config() string {
	return fmt.Sprintf("  - {name: %[1]s, url: \"http://%[2]s/mcp\", prefix: %[1]s_}\n", b.name, b.addr)
}

// write stores a version so that a reader never sees half of it.
func (b *backend) write(name string, version int) error {
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path+".new", fmt.Append(nil, version), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// start starts the process and returns when it serves.
func (b *backend) start() error {
	host, port, _ := strings.Cut(b.addr, ":")
	cmd := b.command(host, port, b.dir)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.epoch++
	b.cmd, b.read = cmd, make(chan struct{})
	serving := make(chan struct{})
	go func(epoch int, read chan struct{}) {
		defer close(read)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var l line
			if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
				continue
			}
			if l.Serving {
				close(serving)
				continue
			}
			b.account.backendSaw(b.name, epoch, l)
		}
	}(b.epoch, b.read)
	select {
	case <-serving:
	case <-b.read:
		return fmt.Errorf("the %s backend ended: %w", b.name, cmd.Wait())
	case <-time.After(harness.Patience):
		return fmt.Errorf("the %s backend does not serve", b.name)
	}
	b.in = in
	if n := len(b.down); n > 0 {
		b.down[n-1].until = time.Now().Add(restartGrace)
	}
	return nil
}

// stop ends the process, with SIGKILL if it does not end by itself.
func (b *backend) stop(sig syscall.Signal) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.in == nil {
		return
	}
	b.down = append(b.down, downtime{from: time.Now(), until: time.Now().Add(time.Hour)})
	_ = b.cmd.Process.Signal(sig)
	select {
	case <-b.read:
	case <-time.After(3 * time.Second):
		_ = b.cmd.Process.Kill()
		<-b.read
	}
	b.in.Close()
	b.in = nil
	_ = b.cmd.Wait()
	b.account.died(b.name, b.epoch)
}

// restart ends the process and starts its next version, whose list of tools differs.
func (b *backend) restart(sig syscall.Signal, away time.Duration) error {
	b.stop(sig)
	time.Sleep(away)
	if err := b.change("list"); err != nil {
		return err
	}
	return b.start()
}

// change stores the next version of a resource or of the list, and has the process announce it if it runs.
func (b *backend) change(name string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	at := time.Now()
	if err := b.account.changes(b.uri(name), at, func(version int) error { return b.write(name, version) }); err != nil {
		return err
	}
	if b.in == nil {
		return nil
	}
	text := `{"listed":true}`
	if name != "list" {
		text = fmt.Sprintf(`{"updated":%q}`, b.uri(name))
	}
	_, _ = io.WriteString(b.in, text+"\n") // fails if it was killed, and its successor announces the change
	return nil
}

// wasDown reports whether the backend was down or had just started at some time between.
func (b *backend) wasDown(from, until time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, d := range b.down {
		if d.from.Before(until) && d.until.After(from) {
			return true
		}
	}
	return false
}

// connections counts the connections that are open at the backend's end.
func (b *backend) connections() int {
	_, port, _ := net.SplitHostPort(b.addr)
	var n int
	if _, err := fmt.Sscan(port, &n); err != nil {
		return 0
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0
	}
	local, count := fmt.Sprintf(":%04X", n), 0
	for row := range strings.Lines(string(table)) {
		if f := strings.Fields(row); len(f) > 3 && strings.HasSuffix(f[1], local) && f[3] == "01" {
			count++
		}
	}
	return count
}

// goBackend makes the test's own program a backend, see [TestMain].
const goBackend = "SOAK_GO_BACKEND"

// serveGo serves a session-based backend that uses the official Go SDK.
func serveGo(host, port, dir string) error {
	var mu sync.Mutex
	say := func(l line) {
		text, _ := json.Marshal(l)
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf("%s\n", text)
	}
	version := func(name string) string {
		text, _ := os.ReadFile(filepath.Join(dir, name))
		return string(text)
	}
	server := mcp.NewServer(&mcp.Implementation{Name: "soak", Version: "1"}, &mcp.ServerOptions{
		SubscribeHandler: func(_ context.Context, req *mcp.SubscribeRequest) error {
			switch filepath.Base(req.Params.URI) {
			case "slow":
				time.Sleep(3 * time.Second)
			case "refused":
				return errors.New("this resource cannot be subscribed to")
			}
			return nil
		},
		UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
	})
	tool := func(name string, run func(context.Context, *mcp.CallToolRequest, arguments) string) {
		server.AddTool(&mcp.Tool{Name: name, InputSchema: json.RawMessage(`{"type":"object"}`)}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			var a arguments
			if err := json.Unmarshal(req.Params.Arguments, &a); err != nil {
				return nil, err
			}
			say(line{Called: a.Mark})
			text := run(ctx, req, a)
			if ctx.Err() != nil {
				say(line{Cancelled: a.Mark})
				return nil, ctx.Err()
			}
			say(line{Done: a.Mark})
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}, nil
		})
	}
	tool("work", func(ctx context.Context, _ *mcp.CallToolRequest, a arguments) string {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(a.MS) * time.Millisecond):
		}
		return a.Mark
	})
	tool("ask", func(ctx context.Context, req *mcp.CallToolRequest, a arguments) string {
		limited, cancel := context.WithTimeout(ctx, time.Duration(a.MS)*time.Millisecond)
		defer cancel()
		answer, err := req.Session.Elicit(limited, &mcp.ElicitParams{Message: a.Mark, RequestedSchema: json.RawMessage(`{"type":"object","properties":{"value":{"type":"string"}}}`)})
		if err != nil {
			if ctx.Err() == nil {
				say(line{Withdrawn: a.Mark})
			}
			return err.Error()
		}
		value, _ := answer.Content["value"].(string)
		if answer.Content != nil {
			say(line{Answered: a.Mark, Value: value})
		}
		return answer.Action + " " + value
	})
	listed := ""
	list := func() {
		server.AddTool(&mcp.Tool{Name: "version_" + version("list"), InputSchema: json.RawMessage(`{"type":"object"}`)}, func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return &mcp.CallToolResult{}, nil
		})
		if listed != "" {
			server.RemoveTools("version_" + listed)
		}
		listed = version("list")
	}
	list()
	for _, name := range resources {
		uri := "soak://go/" + name
		server.AddResource(&mcp.Resource{Name: name, URI: uri}, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, Text: version(name)}}}, nil
		})
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if err != nil {
		return err
	}
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, &mcp.StreamableHTTPOptions{PropagateRequestCancellation: true})
	mux := http.NewServeMux()
	mux.Handle("/mcp", handler)
	go func() { _ = (&http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}).Serve(l) }()
	say(line{Serving: true})
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		var c struct{ Updated string }
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			return err
		}
		if c.Updated == "" {
			list()
			continue
		}
		_ = server.ResourceUpdated(context.Background(), &mcp.ResourceUpdatedNotificationParams{URI: c.Updated})
	}
	return in.Err()
}

// arguments are the arguments of the tools work and ask.
type arguments struct {
	Mark string `json:"mark"`
	// MS is how long work takes, or how long ask waits for its answer.
	MS int `json:"ms"`
}

//go:build unix

package standalone

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// TestConnectionsBelowTheLimit opens more connections than the server may have descriptors. The server still responds on the
// accepted connections, and keeps descriptors for its database and its webhooks.
func TestConnectionsBelowTheLimit(t *testing.T) {
	const child, files = "MCPEVENTS_TEST_SERVE", 128
	if os.Getenv(child) != "" {
		expect.OK(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: files, Max: files}))
		serveUntilAsked(t)
		return
	}
	server := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	server.Env = append(os.Environ(), child+"=1")
	server.Stderr = os.Stderr
	out := expect.Value(server.StdoutPipe())(t)
	ask := expect.Value(server.StdinPipe())(t)
	expect.OK(t, server.Start())
	lines := bufio.NewScanner(out)
	lines.Scan()
	addr := strings.TrimPrefix(lines.Text(), "http://")

	var all []net.Conn
	for range 2 * files {
		all = append(all, expect.Value(net.DialTimeout("tcp", addr, 5*time.Second))(t))
	}
	last := all[len(all)-1] // older ones may have been closed to make room, because they send nothing
	_ = last.SetDeadline(time.Now().Add(20 * time.Second))
	expect.OK(t, expect.ErrOf(io.WriteString(last, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")))
	answer := expect.Value(http.ReadResponse(bufio.NewReader(last), nil))(t)
	expect.Equal(t, "WHK-17 the status code", answer.StatusCode, http.StatusOK)
	expect.OK(t, expect.ErrOf(io.WriteString(ask, "count\n")))
	lines.Scan()
	var free int
	if _, err := fmt.Sscanf(lines.Text(), "free %d", &free); err != nil || free < files/4 {
		t.Errorf("WHK-17 %q: of %d descriptors with %d connections", lines.Text(), files, 2*files)
	}
	for _, c := range all {
		_ = c.Close()
	}
	expect.OK(t, server.Wait())
}

// serveUntilAsked runs a server in a process of its own. When it reads a line from stdin, it prints how many more files the
// process can open.
func serveUntilAsked(t *testing.T) {
	fmt.Println(serve(t, nil).URL)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	var opened []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		opened = append(opened, f)
	}
	for _, f := range opened {
		_ = f.Close()
	}
	fmt.Printf("free %d\n", len(opened))
}

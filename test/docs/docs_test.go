//go:build unix

// Package docs_test runs the commands of pages such as README.md and the tutorial. Like a reader, it runs them in a copy of
// the files under version control, in one shell per page, against a server that the page starts.
//
// The words after a block's language say how the block is used:
//
//	sh             run it and wait for its end
//	sh background  run it concurrently with the following blocks, until the end of the page
//	sh dry-run     print the commands that make would run, without running them
//	sh install     provide the packages that the block would install, from the tests' own
//	ts program     write the block into the file that its first line names, as a reader does by hand (also yaml catalog)
//	text output    (or json output) compare it with the output of the commands so far; … stands for any text
package docs_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/tools/docs/page"
)

// patience bounds every step, of which some compile, and patienceToPrint what has only to arrive.
const (
	patience        = 3 * time.Minute
	patienceToPrint = 30 * time.Second
)

func TestTheCommandsOfThePagesWork(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		numbers, name string
		install       func(*testing.T, *shell) // instead of the page's own block
		after         func(*testing.T, *shell)
	}{
		{"", "README.md", nil, nil},
		{"", "docs/tutorial.md", nil, nil},
		{"SRC-07 ", "docs/how-to/github-to-an-agent.md", nil, nil},
		{"SRC-01 SRC-02 SRC-04 ", "docs/how-to/write-a-mapping.md", nil, nil},
		{"SRC-01 SRC-03 ", "docs/how-to/aws-events.md", nil, nil},
		{"RCH-08 ", "docs/how-to/add-events-to-a-typescript-server.md", installNode, clientGetsEvents},
		{"RCH-08 ", "docs/how-to/add-events-to-a-python-server.md", installPython, clientGetsEvents},
		{"", "docs/how-to/add-events-to-a-go-server.md", beginProgram("orders"), nil},
		{"GWN-26 ", "docs/how-to/run-a-stdio-server.md", installNode, nil},
		{"RCH-01 ", "docs/how-to/receive-events-in-go.md", startServer("receiver"), nil},
		{"RCH-01 ", "docs/how-to/publish-from-go.md", startServer("publisher"), nil},
	} {
		name := c.name
		t.Run(c.numbers+name, func(t *testing.T) {
			t.Parallel()
			p := expect.Value(page.Read(filepath.Join(harness.Root(t), name)))(t)
			s := openShell(t, clone(t))
			ran := 0
			for _, b := range p.Blocks {
				at := fmt.Sprintf("%s:%d", name, b.Line)
				switch {
				case b.Is("output"):
					s.expect(at, b.Text)
				case b.Is("program"), b.Is("catalog"):
					s.write(at, b)
				case b.Is("install"):
					c.install(t, s)
					ran++
				case b.Language() != "sh":
				case b.Is("background"):
					s.background(at, b)
					ran++
				case b.Is("dry-run"):
					s.run(at, strings.ReplaceAll(b.Text, "make ", "make -n "))
				default:
					s.run(at, b.Text)
					ran++
				}
			}
			expect.AtLeast(t, "the blocks of commands in "+name, ran, 3)
			if c.after != nil {
				c.after(t, s)
			}
		})
	}
}

// clone copies what is under version control, as it is in the working tree.
func clone(t *testing.T) string {
	root, dir := harness.Root(t), t.TempDir()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	names := expect.Value(list.Output())(t)
	for name := range strings.SplitSeq(strings.TrimRight(string(names), "\x00"), "\x00") {
		b, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not committed yet
		}
		expect.OK(t, err)
		to := filepath.Join(dir, name)
		expect.OK(t, os.MkdirAll(filepath.Dir(to), 0o755))
		expect.OK(t, os.WriteFile(to, b, 0o755))
	}
	return dir
}

// shell is a bash that runs the blocks of a page.
type shell struct {
	t     *testing.T
	in    io.Writer
	dir   string      // where it starts
	bin   string      // the first directory in PATH
	done  chan string // the marks behind the blocks
	out   *transcript
	ports *strings.Replacer
	steps int
}

// openShell starts it, with the installed binary first in PATH.
func openShell(t *testing.T, dir string) *shell {
	t.Helper()
	main, second, receiver, backend := freePort(t), freePort(t), freePort(t), freePort(t)
	bin := t.TempDir()
	cmd := exec.Command("bash", "-eu", "-o", "pipefail")
	cmd.Dir = dir
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "MCPEVENTS_") && !strings.HasPrefix(kv, "AWS_") && !strings.HasPrefix(kv, "MAKE") {
			cmd.Env = append(cmd.Env, kv)
		}
	}
	// The pages name the default port, which may be taken here.
	address := "127.0.0.1:" + main
	cmd.Env = append(cmd.Env, "CGO_ENABLED=0" /* as everything that is shipped is built */, "GOBIN="+bin, "PATH="+bin+":"+os.Getenv("PATH"), "ADDR="+address,
		"MCPEVENTS_ADDR="+address, "MCPEVENTS_SERVER=http://"+address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its child processes can be ended with it
	in := expect.Value(cmd.StdinPipe())(t)
	out := expect.Value(cmd.StdoutPipe())(t)
	cmd.Stderr = cmd.Stdout
	expect.OK(t, cmd.Start())
	s := &shell{
		t: t, in: in, dir: dir, bin: bin, done: make(chan string), out: &transcript{},
		ports: strings.NewReplacer("127.0.0.1:8080", address, "127.0.0.1:8081", "127.0.0.1:"+second, "127.0.0.1:9999", "127.0.0.1:"+receiver,
			"127.0.0.1:9000", "127.0.0.1:"+backend, "listen(9000", "listen("+backend, "port=9000", "port="+backend),
	}
	stopped := make(chan struct{})
	go func() {
		defer close(s.done)
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadString('\n')
			if before, number, marked := strings.Cut(line, mark); marked {
				s.out.add(before)
				select {
				case s.done <- strings.TrimSpace(number):
				case <-stopped:
				}
			} else {
				s.out.add(line)
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(stopped)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		expect.Receive(t, "the end of the page's commands after SIGTERM", ended)
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("printed:\n%s", s.out.text())
		}
	})
	return s
}

const mark = "\x01end of step "

// run runs a block and waits for its end.
func (s *shell) run(at, commands string) {
	s.t.Helper()
	s.steps++
	fmt.Fprintf(s.in, "%s\nprintf '\\001end of step %d\\n'\n", s.ports.Replace(commands), s.steps)
	select {
	case number, open := <-s.done:
		if !open {
			s.t.Fatalf("%s: a command failed", at)
		}
		if number != fmt.Sprint(s.steps) {
			s.t.Fatalf("%s: got the end of step %s, want %d", at, number, s.steps)
		}
	case <-time.After(patience):
		s.t.Fatalf("%s: not done within %s", at, patience)
	}
}

// These log lines show that a block in the background is ready. The sample agent logs text.
var (
	serving    = regexp.MustCompile(`"msg":"serving"`)
	subscribed = regexp.MustCompile(`"msg":"(receiving webhooks|following)"|msg=following|waiting for events by|listening on port|Uvicorn running on`)
)

// background starts a block and waits until it works: a server listens, a listener has said
// that its subscription stands.
func (s *shell) background(at string, b page.Block) {
	s.t.Helper()
	ready := subscribed
	if strings.Contains(b.Text, "make run") || strings.Contains(b.Text, "mcpevents serve") {
		ready = serving
	}
	count := func(text string) int { return len(ready.FindAllString(text, -1)) }
	before := count(s.out.text())
	s.run(at, "{\n"+strings.TrimRight(b.Text, "\n")+"\n} </dev/null &")
	s.await(at, ready.String(), patience, func(text string) bool { return count(text) > before })
}

// write writes a program or another file, as a reader would with an editor. The first line names the file.
func (s *shell) write(at string, b page.Block) {
	s.t.Helper()
	first, _, _ := strings.Cut(b.Text, "\n")
	s.run(at, "cat > "+strings.TrimLeft(first, "/# ")+" <<'END OF FILE'\n"+b.Text+"END OF FILE")
}

// expect waits until the output of a page has been printed. Programs in the background may print between its lines.
func (s *shell) expect(at, want string) {
	s.t.Helper()
	var parts []string
	for part := range strings.SplitSeq(s.ports.Replace(want), "…") {
		var lines []string
		for line := range strings.Lines(part) {
			words := strings.Fields(line)
			for i, w := range words {
				words[i] = regexp.QuoteMeta(w)
			}
			if len(words) > 0 {
				lines = append(lines, strings.Join(words, `\s+`))
			}
		}
		parts = append(parts, strings.Join(lines, `\s.*?`))
	}
	pattern := regexp.MustCompile(`(?s)` + strings.Join(parts, `.*?`))
	s.await(at, want, patienceToPrint, pattern.MatchString)
}

func (s *shell) await(at, want string, within time.Duration, printed func(string) bool) {
	s.t.Helper()
	deadline := time.Now().Add(within)
	for !printed(s.out.text()) {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: not printed within %s:\n%s", at, within, want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// transcript collects the printed output.
type transcript struct {
	mu sync.Mutex
	b  strings.Builder
}

func (o *transcript) add(text string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.b.WriteString(text)
}

func (o *transcript) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

func freePort(t *testing.T) string {
	t.Helper()
	_, port, err := net.SplitHostPort(harness.FreeAddr(t))
	expect.OK(t, err)
	return port
}

//go:build unix

package docs_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
	"github.com/mcp-events/mcpevents/tools/docs/page"
)

// shown returns a page's only code block of a language after a word.
func shown(t *testing.T, name, language, word string) string {
	t.Helper()
	p := expect.Value(page.Read(filepath.Join(harness.Root(t), name)))(t)
	for _, b := range p.Blocks {
		if b.Language() == language && b.Is(word) {
			return b.Text
		}
	}
	t.Fatalf("%s has no %s %s", name, language, word)
	return ""
}

func TestTheGoServerOfThePage(t *testing.T) {
	t.Parallel()
	address := "127.0.0.1:" + freePort(t)
	dir := t.TempDir()
	source, bin := filepath.Join(dir, "main.go"), filepath.Join(dir, "orders")
	text := strings.ReplaceAll(shown(t, "docs/how-to/add-events-to-a-go-server.md", "go", "program"), "127.0.0.1:8080", address)
	expect.OK(t, os.WriteFile(source, []byte(text), 0o600))
	t.Run("RCH-07 it builds, and vet finds nothing", func(t *testing.T) {
		for _, arguments := range [][]string{{"vet", source}, {"build", "-o", bin, source}} {
			cmd := exec.CommandContext(t.Context(), "go", arguments...)
			cmd.Dir = harness.Root(t) // whose go.mod it uses
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("go %s: %v\n%s", arguments[0], err, out)
			}
		}
	})
	cmd := exec.Command(bin)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	expect.OK(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	listening(t, address)
	t.Run("RCH-07 a client of an event gets what a tool publishes", func(t *testing.T) { getsWhatAToolPublishes(t, "http://"+address+"/mcp", "") })
	t.Run("RCH-07 it ends gracefully", func(t *testing.T) {
		expect.OK(t, cmd.Process.Signal(syscall.SIGTERM))
		expect.OK(t, expect.Receive(t, "the end of the program", ended))
	})
}

// installCommand makes the command line available to a page that assumes it.
func installCommand(t *testing.T, s *shell) {
	t.Helper()
	expect.OK(t, os.Symlink(harness.Binary(t, "./cmd/mcpevents", false), filepath.Join(s.bin, "mcpevents")))
}

// installNode provides the packages of the tests instead of installing them with npm, and a Node.js that runs TypeScript.
func installNode(t *testing.T, s *shell) {
	installCommand(t, s)
	js := harness.Node(t)
	s.run("npm", "ln -s '"+js.Path("node_modules")+"' node_modules\necho '{\"type\": \"module\"}' > package.json\n"+
		"export PATH='"+filepath.Dir(js.Program())+"':$PATH NODE_OPTIONS='--experimental-strip-types --disable-warning=ExperimentalWarning'")
}

// installPython provides the packages of the tests instead of installing them with pip.
func installPython(t *testing.T, s *shell) {
	installCommand(t, s)
	s.run("pip", "export PATH='"+filepath.Dir(harness.NewPython(t).Command(t.Context(), "").Path)+"':$PATH PYTHONDONTWRITEBYTECODE=1")
}

// beginProgram begins a program in the module of the tests.
func beginProgram(name string) func(*testing.T, *shell) {
	return func(t *testing.T, s *shell) {
		installCommand(t, s)
		s.run("install", "mkdir "+name+"\ncd "+name)
	}
}

// startServer begins a program, and starts the server that the reader of a page has already.
func startServer(program string) func(*testing.T, *shell) {
	return func(t *testing.T, s *shell) {
		beginProgram(program)(t, s)
		s.background("make run", page.Block{Text: "mcpevents serve --catalog ../catalog.yaml --data :memory:"})
	}
}

// clientGetsEvents connects the client of an SDK to the servers of a page.
func clientGetsEvents(t *testing.T, s *shell) {
	secrets := expect.Value(os.ReadFile(filepath.Join(s.dir, "orders", "secrets")))(t)
	_, rest, _ := strings.Cut(string(secrets), "CHATGPT_KEY=")
	key, _, _ := strings.Cut(rest, "\n")
	getsWhatAToolPublishes(t, s.ports.Replace("http://127.0.0.1:8080/mcp"), key)
}

// bearer adds a key to each request, if there is one.
type bearer string

func (b bearer) RoundTrip(req *http.Request) (*http.Response, error) {
	if b != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+string(b))
	}
	return http.DefaultTransport.RoundTrip(req)
}

// listening waits until a server accepts connections.
func listening(t *testing.T, address string) {
	t.Helper()
	harness.Eventually(t, patience, "server at "+address, func() bool {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// getsWhatAToolPublishes subscribes to an order's events, has the tool ship it, and waits for the event.
func getsWhatAToolPublishes(t *testing.T, url, key string) {
	t.Helper()
	updated := make(chan string, 10)
	client := sdk.NewClient(&sdk.Implementation{Name: "agent", Version: "1"}, &sdk.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, r *sdk.ResourceUpdatedNotificationRequest) { updated <- r.Params.URI },
	})
	session, err := client.Connect(t.Context(), &sdk.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer(key)}},
		&sdk.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	expect.OK(t, err)
	defer session.Close()
	expect.OK(t, session.Subscribe(t.Context(), &sdk.SubscribeParams{URI: "event://orders/42"}))
	result := expect.Value(session.CallTool(t.Context(), &sdk.CallToolParams{Name: "ship", Arguments: map[string]string{"id": "42"}}))(t)
	if result.IsError {
		t.Fatalf("the tool fails: %s", result.Content[0].(*sdk.TextContent).Text)
	}
	expect.Equal(t, "the updated resource", expect.Receive(t, "the notification", updated), "event://orders/42/shipped")
}

// TestBashCanReadTheCommands checks the syntax of all command blocks. Some of them need an AWS account and do not run in a test.
func TestBashCanReadTheCommands(t *testing.T) {
	t.Parallel()
	root := harness.Root(t)
	commands := regexp.MustCompile(`(?m)^(aws|mcpevents|make|sam|curl|export|journalctl|cloudflared|docker|eval|\.) `)
	checked := 0
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(path string, _ os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".md" {
			return err
		}
		p, err := page.Read(path)
		if err != nil {
			return err
		}
		for _, b := range p.Blocks {
			if b.Language() != "sh" && (b.Language() != "" || !commands.MatchString(b.Text)) {
				continue
			}
			checked++
			cmd := exec.CommandContext(t.Context(), "bash", "-n")
			cmd.Stdin = strings.NewReader(b.Text)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%s:%d: %v\n%s", path, b.Line, err, out)
			}
		}
		return nil
	})
	expect.OK(t, err)
	expect.AtLeast(t, "the number of blocks", checked, 100)
}

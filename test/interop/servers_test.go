//go:build unix

package interop

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mcpevents "github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// theirs is a server that others made, as a process.
type theirs struct {
	t *testing.T
	// command returns the command that starts the server, and key is the caller's key there.
	command func() *exec.Cmd
	key     string
	// hooks are where the client receives its webhooks.
	hooks *httptest.Server
	url   string
	cmd   *exec.Cmd
	in    io.Writer
	out   *bufio.Reader
}

// startTheirs starts a server on the Python SDK, in one of the modes of server.py.
func startTheirs(t *testing.T, mode string) *theirs {
	t.Helper()
	python, args := harness.NewPython(t), place(t)
	s := &theirs{t: t, hooks: httptest.NewServer(nil), command: func() *exec.Cmd {
		return python.Command(context.Background(), "server.py", append([]string{mode}, args...)...)
	}}
	return s.started()
}

// startHandler starts one on mcp-handler, which takes https alone.
func startHandler(t *testing.T) *theirs {
	t.Helper()
	js, args := harness.Node(t), place(t)
	s := &theirs{t: t, key: "agent", hooks: httptest.NewTLSServer(nil)}
	authority := filepath.Join(t.TempDir(), "ca.pem")
	expect.OK(t, os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.hooks.Certificate().Raw}), 0o600))
	s.command = func() *exec.Cmd {
		cmd := js.Command(context.Background(), "mcp-handler.js", args...)
		cmd.Env = append(cmd.Env, "NODE_EXTRA_CA_CERTS="+authority)
		return cmd
	}
	return s.started()
}

// place returns a free address and a file. The server gets the same ones whenever it is started.
func place(t *testing.T) []string {
	t.Helper()
	host, port, err := net.SplitHostPort(harness.FreeAddr(t))
	expect.OK(t, err)
	return []string{host, port, filepath.Join(t.TempDir(), "store")}
}

func (s *theirs) started() *theirs {
	s.t.Helper()
	s.t.Cleanup(s.hooks.Close)
	s.start()
	s.t.Cleanup(s.kill)
	return s
}

// receiver returns the client's webhook handler, at an address that the server accepts.
func (s *theirs) receiver() *mcpevents.Handler {
	hooks := &mcpevents.Handler{URL: s.hooks.URL}
	s.hooks.Config.Handler = hooks
	return hooks
}

func (s *theirs) start() {
	s.t.Helper()
	s.cmd = s.command()
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		s.t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	expect.OK(s.t, err)
	var stderr strings.Builder
	s.cmd.Stderr = &stderr
	expect.OK(s.t, s.cmd.Start())
	s.out = bufio.NewReader(out)
	line, err := s.out.ReadBytes('\n')
	var serving struct{ Serving string }
	if err != nil || json.Unmarshal(line, &serving) != nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.t.Fatalf("the server does not start: %v\n%s%s", err, line, &stderr)
	}
	s.url = serving.Serving
}

func (s *theirs) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// publish returns when the server has published the events.
func (s *theirs) publish(ids ...string) {
	s.t.Helper()
	for _, id := range ids {
		ticket, _, _ := strings.Cut(id, "-")
		b, _ := json.Marshal(object{"id": id, "data": object{"ticket": ticket}})
		expect.OK(s.t, expect.ErrOf(s.in.Write(append(b, '\n'))))
		var said struct{ Published string }
		if line, err := s.out.ReadBytes('\n'); err != nil || json.Unmarshal(line, &said) != nil || said.Published != id {
			s.t.Fatalf("%s is not published: %v %s", id, err, line)
		}
	}
}

// subscribed is a program that uses package client at a server.
type subscribed struct {
	t     *testing.T
	begun chan *mcpevents.Subscription
	ids   chan string
	ended chan error
	stop  context.CancelFunc
}

func subscribe(t *testing.T, c *mcpevents.Client, mode string) *subscribed {
	t.Helper()
	s := &subscribed{t: t, begun: make(chan *mcpevents.Subscription, 1), ids: make(chan string, 100), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	s.stop = cancel
	t.Cleanup(cancel)
	go func() {
		sub, err := c.Subscribe(ctx, mcpevents.SubscribeOptions{
			Name: "ticket.updated", Arguments: map[string]string{"ticket": "T1"}, Mode: mode,
			Event: func(_ context.Context, e mcpevents.Event) error { s.ids <- e.ID; return nil },
		})
		if err == nil {
			s.begun <- sub
			<-sub.Done()
			err = sub.Err()
		}
		s.ended <- err
	}()
	return s
}

func (s *subscribed) begins(mode string) {
	s.t.Helper()
	select {
	case b := <-s.begun:
		if b.Mode() != mode {
			s.t.Errorf("began by %s, want %s", b.Mode(), mode)
		}
	case err := <-s.ended:
		s.t.Fatalf("ended by %v", err)
	case <-time.After(harness.Patience):
		s.t.Fatal("it does not begin")
	}
}

func (s *subscribed) has(ids ...string) {
	s.t.Helper()
	for _, want := range ids {
		select {
		case got := <-s.ids:
			if got != want {
				s.t.Fatalf("got %s, want %s", got, want)
			}
		case err := <-s.ended:
			s.t.Fatalf("ended by %v", err)
		case <-time.After(harness.Patience):
			s.t.Fatalf("%s does not come", want)
		}
	}
}

func (s *subscribed) ends() {
	s.t.Helper()
	s.stop()
	if err := <-s.ended; err != nil {
		s.t.Error(err)
	}
	if len(s.ids) > 0 {
		s.t.Errorf("%d more events came", len(s.ids))
	}
}

func (s *theirs) connect(o mcpevents.Options) *mcpevents.Client {
	s.t.Helper()
	o.Key = s.key
	c, err := mcpevents.Connect(s.t.Context(), s.url, o)
	expect.OK(s.t, err)
	return c
}

// TestOurClientAtServersOfOthers runs the package client against servers on the official Python and TypeScript SDKs. Two
// implementations of MCP Events are published: mcp-webhook-events, and mcp-handler, which leaves the store and the sender
// to the application. The third server uses the SDK's transport, session and checks, and this test's methods for polls.
func TestOurClientAtServersOfOthers(t *testing.T) {
	t.Parallel()
	t.Run("mcp-webhook-events", func(t *testing.T) { webhooksOf(t, func(t *testing.T) *theirs { return startTheirs(t, "webhook") }) })
	t.Run("mcp-handler", func(t *testing.T) {
		webhooksOf(t, startHandler)
		t.Run("RCH-01 who may not gets an error", func(t *testing.T) {
			t.Parallel()
			s := startHandler(t)
			_, err := s.connect(mcpevents.Options{Webhooks: s.receiver()}).Subscribe(t.Context(), mcpevents.SubscribeOptions{
				Name: "ticket.updated", Arguments: map[string]string{"ticket": "secret"}, Event: func(context.Context, mcpevents.Event) error { return nil },
			})
			expect.Fault(t, "the error", err, fault.Forbidden)
			s.key = "stranger"
			_, err = mcpevents.Connect(t.Context(), s.url, mcpevents.Options{Key: s.key})
			expect.Fault(t, "the error", err, fault.Unauthenticated)
		})
	})
	t.Run("polls of the Python SDK", pollsOf)
}

// webhooksOf runs the stories of a server with webhooks only.
func webhooksOf(t *testing.T, start func(t *testing.T) *theirs) {
	t.Run("RCH-01 verified, filtered, received once, across a kill of the server and a new secret", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		c := s.connect(mcpevents.Options{Webhooks: s.receiver()})
		p := subscribe(t, c, "")
		p.begins(mcpevents.ModeWebhook)
		s.publish("T2-1", "T1-1", "T1-2")
		p.has("T1-1", "T1-2")
		s.kill()
		s.start()
		s.publish("T1-3")
		p.has("T1-3")
		p.ends()
		s.publish("T1-4") // while there is no subscription
		p = subscribe(t, c, mcpevents.ModeWebhook)
		p.begins(mcpevents.ModeWebhook)
		s.publish("T1-5")
		p.has("T1-5")
		p.ends()
	})
	t.Run("RCH-01 who cannot be reached is notified of it", func(t *testing.T) {
		t.Parallel()
		s := start(t)
		c := s.connect(mcpevents.Options{})
		_, err := c.Subscribe(t.Context(), mcpevents.SubscribeOptions{Name: "ticket.updated", Event: func(context.Context, mcpevents.Event) error { return nil }})
		expect.Fault(t, "the error", err, fault.Unsupported)
		hooks := s.receiver()
		s.hooks.Close()
		c = s.connect(mcpevents.Options{Webhooks: hooks})
		_, err = c.Subscribe(t.Context(), mcpevents.SubscribeOptions{
			Name: "ticket.updated", Arguments: map[string]string{"ticket": "T1"}, Event: func(context.Context, mcpevents.Event) error { return nil },
		})
		if err == nil || errors.As(err, new(*mcpevents.Terminated)) || !strings.Contains(err.Error(), "Callback ") {
			t.Errorf("got %v", err)
		}
	})
}

func pollsOf(t *testing.T) {
	t.Run("RCH-01 every page, across kills of the server and of the program", func(t *testing.T) {
		t.Parallel()
		s := startTheirs(t, "poll")
		o := mcpevents.Options{Store: mcpevents.Dir(t.TempDir()), MinPoll: 50 * time.Millisecond}
		p := subscribe(t, s.connect(o), "")
		p.begins(mcpevents.ModePoll)
		s.publish("T1-1", "T2-1", "T1-2", "T1-3", "T2-2")
		p.has("T1-1", "T1-2", "T1-3")
		s.kill()
		s.start()
		s.publish("T1-4")
		p.has("T1-4")
		p.ends()
		s.publish("T1-5")
		p = subscribe(t, s.connect(o), "")
		p.has("T1-5")
		p.ends()
	})
}

// Package process runs a server as a process of its own.
package process

import (
	"context"
	"net"
	"net/http"
	"os/exec"
	"syscall"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Server is a server that runs as a process.
type Server struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts a server with the command cmd, and waits until the server is healthy. The parameter url must be the URL at which this
// server listens, for example http://127.0.0.1:8080. If ctx ends before the server is healthy, Start ends the server.
func Start(ctx context.Context, cmd *exec.Cmd, url string) (*Server, error) {
	if err := cmd.Start(); err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "start the server")
	}
	s := &Server{cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // an error is no problem, because cmd.ProcessState has the exit code
		close(s.ended)
	}()
	for {
		resp, err := http.Get(url + "/healthz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		select {
		case <-s.ended:
			return nil, fault.New(fault.Unavailable, "the server did not start: %s", cmd.ProcessState)
		case <-ctx.Done():
			s.Stop()
			return nil, ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// PID returns the id of the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Stop ends the server with SIGTERM and waits for its end.
func (s *Server) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	<-s.ended
}

// Kill ends the server with SIGKILL, so that it cannot finish or write anything.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill() // an error means that it has ended
	<-s.ended
}

// FreeAddresses returns n different addresses of this machine on which no program listens.
func FreeAddresses(n int) ([]string, error) {
	addrs := make([]string, n)
	for i := range addrs {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "find a free port")
		}
		defer func() { _ = l.Close() }()
		addrs[i] = l.Addr().String()
	}
	return addrs, nil
}

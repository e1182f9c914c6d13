package runner

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/furl"
)

// URL returns the base URL of the front, without a slash at the end.
func (s *Stack) URL() string { return "http://" + s.front.String() }

// FunctionURL returns the Function URL of the function with a logical id, with a slash at the end. It returns ""
// if the function does not have a URL.
func (s *Stack) FunctionURL(id string) string { return s.URLs()[id] }

// URLs returns the Function URLs by logical id.
func (s *Stack) URLs() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return over(s.urls, nil)
}

// serve starts a server that ends with the stack.
func (s *Stack) serve(addr string, h http.Handler) (net.Addr, error) {
	at, _, err := s.listen(addr, h)
	return at, err
}

// listen starts a server that ends with the stack, or earlier.
func (s *Stack) listen(addr string, h http.Handler) (net.Addr, *http.Server, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 30 * time.Second, ErrorLog: slog.NewLogLogger(s.opts.Log.Handler(), slog.LevelWarn)}
	s.servers = append(s.servers, srv)
	s.serving.Go(func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.opts.Log.Error("a server ended", "address", l.Addr().String(), "error", err)
		}
	})
	return l.Addr(), srv, nil
}

// serveURL gives a function its URL. Function URLs rename some headers, and a front on AWS must restore them. Our
// front instead calls the function without renaming.
func (s *Stack) serveURL(fn *function, h furl.Handler) (string, error) {
	addr := "127.0.0.1:0"
	if s.opts.PortBase > 0 {
		addr = fmt.Sprintf("127.0.0.1:%d", s.opts.PortBase+s.ports)
		s.ports++
	}
	renaming := h
	renaming.Remap = !s.opts.KeepHeaders
	at, srv, err := s.listen(addr, renaming)
	if err != nil {
		return "", err
	}
	url := "http://" + at.String() + "/"
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urls[fn.id], s.handlers[fn.id], fn.server = url, h, srv
	return url, nil
}

// serveFront serves the Function URLs at one host.
func (s *Stack) serveFront() error {
	mux := http.NewServeMux()
	routes := s.opts.Routes
	if routes == nil {
		routes = defaultRoutes()
	}
	for prefix, id := range routes {
		h := s.handlers[id]
		if h == nil {
			if s.opts.Routes == nil {
				continue
			}
			return fmt.Errorf("route %s: function %s has no URL", prefix, id)
		}
		prefix = strings.TrimSuffix(prefix, "/")
		mux.Handle(prefix+"/", h)
		if prefix != "" {
			mux.Handle(prefix, h)
		}
	}
	var err error
	s.front, err = s.serve(s.opts.Front, mux)
	return err
}

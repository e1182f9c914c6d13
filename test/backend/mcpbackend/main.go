// Command mcpbackend runs a backend of package backend as a process.
//
//	go run ./test/backend/mcpbackend --kind stateful --addr 127.0.0.1:9000
//
// It ends at SIGTERM. It is for tests: it lets anybody in.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/mcp-events/mcpevents/test/backend"
)

func main() {
	kind := flag.String("kind", string(backend.Stateful), fmt.Sprintf("one of %v", backend.Kinds()))
	addr := flag.String("addr", "127.0.0.1:9000", "where to listen")
	stdio := flag.Bool("stdio", false, "serve over standard input and output instead")
	flag.Parse()
	serve := func() error { return run(backend.Kind(*kind), *addr) }
	if *stdio {
		serve = func() error { return backend.Run(context.Background(), backend.Kind(*kind)) }
	}
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, "mcpbackend:", err)
		os.Exit(1)
	}
}

func run(kind backend.Kind, addr string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	handler, err := backend.New(kind)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Printf("http://%s/mcp\n", l.Addr())
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	server.Close() // streams would not end by themselves
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestAnInterruptedCommandIsNotDone(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		says string
	}{
		"alone":          {context.Canceled, "mcpevents: interrupted\n"},
		"with its cause": {fault.Wrap(fault.Internal, context.Canceled, "100 events were accepted before this"), "mcpevents: interrupted: 100 events were accepted before this\n"},
		"among others":   {errors.Join(context.Canceled, errors.New("second")), "mcpevents: interrupted: context canceled\nsecond\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if code := report(&out, tt.err); code != exitInterrupted || out.String() != tt.says {
				t.Errorf("got exit code %d and %q, want %d and %q", code, out.String(), exitInterrupted, tt.says)
			}
		})
	}
}

func TestPublishIsInterruptedWhileItsProducerIsQuiet(t *testing.T) {
	accepted := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		accept(w, body)
		close(accepted)
	}))
	defer s.Close()
	data, producer := io.Pipe() // stays open
	go func() {
		for i := range 150 {
			fmt.Fprintln(producer, i)
		}
		<-accepted
		_ = syscall.Kill(syscall.Getpid(), syscall.SIGTERM)
	}()
	var out, errs bytes.Buffer
	code := run([]string{"publish", "-q", "--server", s.URL, "--uri", "event://x", "--data", "-"}, data, &out, &errs)
	expect.Equal(t, "the exit code", code, exitInterrupted)
	expect.Equal(t, "the error output", errs.String(), "mcpevents: interrupted: 100 events were accepted before this\n")
}

func TestCheckIsInterrupted(t *testing.T) {
	stop := syscall.SIGTERM
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		switch {
		case bytes.Contains(body, []byte("server/discover")):
			fmt.Fprint(w, `{"jsonrpc":"2.0","id":1,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"io.modelcontextprotocol/events":{}}}}}`)
		default:
			_ = syscall.Kill(syscall.Getpid(), stop)
			<-r.Context().Done()
		}
	}))
	defer s.Close()
	code, out, errs := command(t, "", "check", s.URL+"/mcp")
	if code != exitInterrupted || out != "" || !strings.Contains(errs, "mcpevents: interrupted") {
		t.Errorf("got exit code %d, %q and %q, want %d and no report", code, out, errs, exitInterrupted)
	}
}

func TestARemovedFlagNamesItsReplacement(t *testing.T) {
	for flag, want := range map[string]string{
		"--webhook-id=message":           "use --profile (MCPEVENTS_PROFILE) instead",
		"--event-codes=sep3415":          "use --profile (MCPEVENTS_PROFILE) instead",
		"--unknown-unsubscribe=notfound": "use --profile (MCPEVENTS_PROFILE) instead",
		"--poll-min=5s":                  "the setting poll-min was removed; it is always 1s",
	} {
		var out, errs bytes.Buffer
		code := run([]string{"serve", flag}, nil, &out, &errs)
		if code != exitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("EVX-25: serve %s: exit code %d and %q, want %d and %q", flag, code, errs.String(), exitUsage, want)
		}
	}
}

func TestAnEmptyAddressIsRefused(t *testing.T) {
	t.Setenv("MCPEVENTS_ADDR", "")
	var out, errs bytes.Buffer
	code := run([]string{"serve", "--data", ":memory:", "--catalog", "../../catalog.yaml"}, nil, &out, &errs)
	if code != exitRefused || !strings.Contains(errs.String(), "--addr is empty: give HOST:PORT") {
		t.Errorf("got exit code %d and %q, want %d and the reason", code, errs.String(), exitRefused)
	}
}

// hanging is a server whose shutdown takes longer than allowed.
type hanging struct{}

func (hanging) Shutdown(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("deliveries: %w", ctx.Err())
}

// A shutdown that takes too long is no failure: TestCloseCutsOffWhatTakesTooLong of package standalone shows that the
// deliveries that it cuts off are repeated.
func TestAShutdownThatIsCutShortIsLogged(t *testing.T) {
	var out bytes.Buffer
	expect.OK(t, shutDown(hanging{}, time.Millisecond, slog.New(slog.NewTextHandler(&out, nil))))
	expect.Contains(t, "the log", out.String(), `msg="drain timed out" error="deliveries: context deadline exceeded"`)
}

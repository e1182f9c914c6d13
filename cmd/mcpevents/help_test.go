package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTheProgramAloneShowsItsCommandsInGroups(t *testing.T) {
	code, help, errs := command(t, "")
	expect.MustEqual(t, "the exit code", code, exitDone)
	expect.MustEqual(t, "the error output", errs, "")
	for _, group := range []string{
		"Start here:\n  demo ", "Connect agents:\n  mcp ", "Configure, check and measure:\n  catalog ", "Operate a server:\n  subscriptions ",
		"Maintain a stand-alone server:\n  keys ", "This program:\n  completion ",
	} {
		expect.Contains(t, "the help", help, "\n"+group)
	}
	expect.Lacks(t, "the help", help, "subscriptions list")
	for line := range strings.Lines(help) {
		expect.AtMost(t, "the length of the line "+line, len(line), 101)
	}
	for _, spelling := range []string{"--help", "-h", "help"} {
		code, same, _ := command(t, "", spelling)
		expect.Equal(t, spelling+": the exit code", code, exitDone)
		expect.Equal(t, spelling+": the help", same, help)
	}
}

func TestHelpOfACommand(t *testing.T) {
	for _, of := range []string{"publish", "subscriptions", "subscriptions end", "catalog check"} {
		code, got, _ := command(t, "", append([]string{"help"}, strings.Fields(of)...)...)
		_, want, _ := command(t, "", append(strings.Fields(of), "--help")...)
		if code != exitDone || got != want || !strings.HasPrefix(got, "Usage: mcpevents "+of+" ") {
			t.Errorf("help %s: exit code %d and\n%s\nwant\n%s", of, code, got, want)
		}
	}
	if _, help, _ := command(t, "", "help", "subscriptions"); !strings.Contains(help, "\nCommands:\n  list ") && !strings.Contains(help, "\nCommands:\n  subscriptions list ") {
		t.Errorf("help subscriptions lists no commands:\n%s", help)
	}
	fails(t, "help nonsense", exitUsage, "nonsense is not a command")
}

func TestCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"mcpevents sub":                        {"subscriptions"},
		"mcpevents subscriptions e":            {"end"},
		"mcpevents subscriptions list --st":    {"--state"},
		"mcpevents serve --auth ":              {"jwt", "keys", "none"},
		"mcpevents completion ":                {"bash", "fish", "zsh"},
		"mcpevents subscriptions -o ":          {"json", "name", "yaml"},
		"mcpevents nonsense --no-such-flag-at": nil,
	} {
		t.Setenv("COMP_LINE", line)
		code, out, errs := command(t, "")
		got := strings.Fields(out)
		for _, w := range want {
			expect.Contains(t, line, " "+strings.Join(got, " ")+" ", " "+w+" ")
		}
		if code != exitDone || errs != "" || want == nil && len(got) > 0 {
			t.Errorf("%q: exit code %d, %q: %s", line, code, got, errs)
		}
	}
}

func TestTheCodeOfShells(t *testing.T) {
	for shell, want := range map[string]string{
		"bash": `^complete -o default -C "'/.*'" mcpevents\n$`,
		"zsh":  `^autoload -U \+X bashcompinit && bashcompinit\ncomplete -o default -C "'/.*'" mcpevents\n$`,
		"fish": `(?s)^function __complete_mcpevents\n.*\n    '/.*'\nend\ncomplete -f -c mcpevents -a "\(__complete_mcpevents\)"\n$`,
	} {
		if code, out, _ := command(t, "", "completion", shell); code != exitDone || !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("%s: exit code %d and %s, want %s", shell, code, out, want)
		}
	}
}

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
			expect.Equal(t, "the exit code", report(&out, tt.err), exitInterrupted)
			expect.Equal(t, "the output", out.String(), tt.says)
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

// full is a standard output whose disk is full.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &fs.PathError{Op: "write", Path: os.Stdout.Name(), Err: syscall.ENOSPC}
}

func TestAnOutputThatCannotBeWritten(t *testing.T) {
	for _, line := range []string{"--help", "help events", "version", "catalog check ../../catalog.yaml", "completion bash"} {
		var errs strings.Builder
		code := run(strings.Fields(line), nil, full{}, &errs)
		expect.Equal(t, "the exit code of "+line, code, exitUnavailable)
		expect.Contains(t, "the error of "+line, errs.String(), "no space left on device\n")
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

// An unset variable of the shell, as in --data=$DATA, makes such values.
func TestEmptyValuesAreRefused(t *testing.T) {
	for line, want := range map[string]string{
		"serve --addr= --data :memory:":                                  "--addr is empty (see mcpevents serve --help)",
		"serve --data=":                                                  "--data is empty",
		"serve --data :memory: --catalog=":                               "--catalog is empty",
		"keys drop --data=":                                              "--data is empty",
		"source check --config= --source a --request r":                  "--config is empty",
		"source check --config c.yaml --catalog= --source a --request r": "--catalog is empty",
		"publish --uri event://a/b --data=":                              "--data is empty",
		"subscriptions list --server=":                                   "--server is empty",
	} {
		fails(t, line, exitUsage, want)
	}
	code, _, errs := command(t, "", "catalog", "check", "")
	expect.Equal(t, "the exit code", code, exitUsage)
	expect.Contains(t, "the error", errs, "<file> is empty")
}

// The variables of all flags of serve are set but empty, as if by a compose file with MCPEVENTS_QUOTA=${QUOTA}.
func TestEmptyVariablesCountAsUnset(t *testing.T) {
	for name := range config.Names() {
		if name != "auth" {
			t.Setenv(config.EnvName(name), "")
		}
	}
	for _, name := range []string{"ALLOW_BREAKING", "WORKSPACE_CATALOG", "LOG_LEVEL", "LOG_FORMAT"} {
		t.Setenv("MCPEVENTS_"+name, "")
	}
	code, _, errs := command(t, "", "serve", "--addr=")
	expect.Equal(t, "the exit code", code, exitUsage)
	expect.Contains(t, "the error, which is not about a variable", errs, "--addr is empty")
	t.Setenv(config.EnvName("auth"), "") // the default would switch authentication off
	fails(t, "serve --addr 127.0.0.1:0 --data :memory:", exitUsage, "--auth must be one of")
}

func TestHealthSaysWhyAServerIsNotHealthy(t *testing.T) {
	for body, want := range map[string]string{
		`{"status":"unavailable","reason":"the database is damaged"}`: "/healthz is not healthy: the database is damaged\n",
		`<html>Service Unavailable</html>`:                            "/healthz is not healthy: HTTP 503\n",
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, body)
		}))
		fails(t, "health --server "+s.URL, exitUnavailable, want)
		s.Close()
	}
}

func TestHealthOfAServerThatDoesNotAnswer(t *testing.T) {
	ended := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-ended }))
	defer s.Close()
	defer close(ended)
	fails(t, "health --timeout 50ms --server "+s.URL, exitUnavailable, s.URL+"/healthz did not answer within 50ms\n")
}

func TestErrorsOfServersCannotChangeTheTerminal(t *testing.T) {
	var out bytes.Buffer
	err := &fault.Error{Kind: fault.Invalid, Message: "two\nlines \x1b]0;title\x07\u009b31m\u202e ü", Data: map[string]string{"a": "\u009bm"}}
	expect.Equal(t, "the exit code", report(&out, err), exitRefused)
	want := "mcpevents: two\nlines \\x1b]0;title\\a\\u009b31m\\u202e ü\n  {\"a\":\"\\u009bm\"}\n"
	expect.Equal(t, "the error", out.String(), want)
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

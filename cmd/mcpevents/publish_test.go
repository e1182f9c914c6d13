package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/test/expect"
)

// eventsServer answers POST /events with each of its answers in turn, and after the last one accepts all events. It keeps the
// requests.
type eventsServer struct {
	*httptest.Server
	answers []func(http.ResponseWriter)

	mu     sync.Mutex
	bodies []string
	header []http.Header
}

func newEventsServer(t *testing.T, answers ...func(http.ResponseWriter)) *eventsServer {
	s := &eventsServer{answers: answers}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.bodies, s.header = append(s.bodies, string(body)), append(s.header, r.Header)
		if n := len(s.bodies); n <= len(s.answers) {
			s.answers[n-1](w)
			return
		}
		accept(w, body)
	}))
	t.Cleanup(s.Close)
	return s
}

func accept(w http.ResponseWriter, body []byte) {
	var events []map[string]any
	if json.Unmarshal(body, &events) != nil {
		events = []map[string]any{{}}
		_ = json.Unmarshal(body, &events[0])
	}
	var accepted []map[string]any
	for _, e := range events {
		accepted = append(accepted, map[string]any{"id": e["id"], "uri": e["uri"]})
	}
	w.WriteHeader(http.StatusAccepted)
	_ = json.NewEncoder(w).Encode(map[string]any{"accepted": accepted})
}

func answer(status int, body string) func(http.ResponseWriter) {
	return func(w http.ResponseWriter) {
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

// command runs the program and returns its exit code and output.
func command(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

// succeeds runs the program with the words of a command line, and returns its output. The program must succeed and print the parts.
func succeeds(t *testing.T, line string, parts ...string) string {
	t.Helper()
	code, out, errs := command(t, "", strings.Fields(line)...)
	expect.MustEqual(t, "the exit code of "+line+" with the output "+out+errs, code, exitDone)
	expect.Contains(t, "the output of "+line, out, parts...)
	return out
}

// fails runs the program with the words of a command line, and returns its output. The program must exit with the code and print the
// parts to standard error.
func fails(t *testing.T, line string, code int, parts ...string) string {
	t.Helper()
	got, out, errs := command(t, "", strings.Fields(line)...)
	expect.Equal(t, "the exit code of "+line, got, code)
	expect.Contains(t, "the error of "+line, errs, parts...)
	return out
}

func TestPublishSendsEvents(t *testing.T) {
	file := writeFile(t, filepath.Join(t.TempDir(), "events.ndjson"), `{"uri":"event://ci/build-finished","data":{"n":1}}
[{"uri":"event://ci/build-finished","data":{"n":2}},{"uri":"event://x/y","id":"mine","data":null}]
{"specversion":"1.0","source":"s","type":"t","id":"ce","subject":"event://x/y","data":1}
`)
	tests := []struct {
		name   string
		stdin  string
		args   []string
		bodies []string // with every generated id as ID
		lines  int
	}{
		{
			name: "one_payload", args: []string{"--uri", "event://a/b", "--data", `{"x":1}`, "--id", "i-1", "--time", "2026-01-02T03:04:05Z"},
			bodies: []string{`{"data":{"x":1},"id":"i-1","time":"2026-01-02T03:04:05Z","uri":"event://a/b"}`}, lines: 1,
		},
		{
			name: "large_integers_stay_as_they_are_and_quietly", args: []string{"--uri", "event://a/b", "--data", `90071992547409930001`, "--id", "i", "-q"},
			bodies: []string{`{"data":90071992547409930001,"id":"i","uri":"event://a/b"}`},
		},
		{
			name: "several_payloads_from_standard_input_in_batches", stdin: "1\n2 3", args: []string{"--uri", "event://a/b", "--data", "-", "--batch", "2"},
			bodies: []string{
				`[{"data":1,"id":"ID","uri":"event://a/b"},{"data":2,"id":"ID","uri":"event://a/b"}]`,
				`{"data":3,"id":"ID","uri":"event://a/b"}`,
			}, lines: 3,
		},
		{
			name: "whole_events_from_a_file", args: []string{"--data", "@" + file},
			bodies: []string{`[{"data":{"n":1},"id":"ID","uri":"event://ci/build-finished"},` +
				`{"data":{"n":2},"id":"ID","uri":"event://ci/build-finished"},{"data":null,"id":"mine","uri":"event://x/y"},` +
				`{"data":1,"id":"ce","source":"s","specversion":"1.0","subject":"event://x/y","type":"t"}]`}, lines: 4,
		},
		{
			name:   "id_and_time_that_are_null_count_as_absent",
			args:   []string{"--data", `{"uri":"event://a/b","id":null,"time":null,"data":1}`, "--time", "2026-01-02T03:04:05Z"},
			bodies: []string{`{"data":1,"id":"ID","time":"2026-01-02T03:04:05Z","uri":"event://a/b"}`}, lines: 1,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newEventsServer(t)
			code, out, errs := command(t, tt.stdin, append([]string{"publish", "--server", s.URL}, tt.args...)...)
			expect.MustEqual(t, "the exit code with the output "+errs, code, exitDone)
			if got, want := strings.Join(s.bodies, "\n"), strings.Join(tt.bodies, "\n"); hideIDs(got) != want {
				t.Errorf("sent\n%s\nwant\n%s", hideIDs(got), want)
			}
			expect.Equal(t, "the lines of "+out, strings.Count(out, "\n"), tt.lines)
		})
	}
}

// writeFile writes a file of a test and returns its path.
func writeFile(t *testing.T, path, text string) string {
	t.Helper()
	expect.OK(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// hideIDs replaces ids that the program chose by ID.
func hideIDs(s string) string {
	parts := strings.Split(s, `"evt_`)
	for i := 1; i < len(parts); i++ {
		_, rest, _ := strings.Cut(parts[i], `"`)
		parts[i] = rest
	}
	return strings.Join(parts, `"ID"`)
}

func TestPublishPrintsTheServersError(t *testing.T) {
	t.Parallel()
	const (
		missing = `{"error":{"kind":"unprocessable","message":"/data: number is missing","faults":[{"pointer":"/data","message":"number is missing"}%s]}}`
		refused = "mcpevents: the server refused (422): /data: number is missing\n  /data: number is missing\n  /data/x: is not a string\n"
	)
	for name, tt := range map[string]struct {
		status  int
		answer  string
		code    int
		message string // a part of standard error; $ is its end
	}{
		"a payload that breaks its schema": {422, fmt.Sprintf(missing, `,{"pointer":"/data/x","message":"is not a string"}`), exitRefused, refused},
		"one fault is said once":           {422, fmt.Sprintf(missing, ""), exitRefused, "mcpevents: the server refused (422): /data: number is missing\n$"},
		"an unknown URI":                   {404, `{"error":{"kind":"not found","message":"belongs to no event type","uri":"event://a/b"}}`, exitRefused, "belongs to no event type (event://a/b)"},
		"a missing key":                    {401, `{"error":{"kind":"unauthenticated","message":"authentication is required"}}`, exitDenied, "refused (401): authentication is required: set --key or MCPEVENTS_KEY\n$"},
		"a refusal of another program":     {400, "<html>proxy says no</html>", exitRefused, "answered 400 Bad Request with text/html, which no server of mcp-events does; is the server's URL right?\n"},
		"a page of another program":        {200, "<html>welcome</html>", exitRefused, "answered 200 OK with text/html"},
		"an MCP endpoint":                  {400, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"jsonrpc must be \"2.0\""}}`, exitRefused, "/events is an MCP endpoint; publish needs the URL of /events\n"},
		"a server that stays unavailable":  {503, "", exitUnavailable, "refused (503): service unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEventsServer(t, answer(tt.status, tt.answer))
			code, out, errs := command(t, "", "publish", "--server", s.URL, "--uri", "event://a/b", "--data", "{}", "--tries", "1")
			if code != tt.code || !strings.Contains(errs+"$", tt.message) || out != "" {
				t.Errorf("got exit code %d, the error %q and the output %q, want %d, an error with %q and no output", code, errs, out, tt.code, tt.message)
			}
		})
	}
}

func TestPublishSendsNoInvalidEvents(t *testing.T) {
	for name, tt := range map[string]struct {
		args    []string
		code    int
		message string
	}{
		"the URL of the MCP endpoint": {
			[]string{"--server", "https://x.example/a/mcp", "--uri", "event://a/b", "--data", `{}`},
			exitRefused,
			"the server's URL ends with /mcp, but this command needs the URL of /events: https://x.example/a/events\n",
		},
		"a payload without URI":   {[]string{"--data", `{"x":1}`}, exitRefused, `without "uri" (if it is the data of an event, give its URI)`},
		"a missing file":          {[]string{"--data", "@/does/not/exist"}, exitRefused, "there is no data at /does/not/exist: give its path"},
		"a server without scheme": {[]string{"--server", "localhost:1", "--data", "1"}, exitRefused, "is not the URL of a server"},
		"nothing to publish":      {nil, exitUsage, "--data"},
		"a batch of 0 events":     {[]string{"--data", "1", "--batch", "0"}, exitUsage, "--batch"},
		"a flag without value":    {[]string{"--data"}, exitUsage, "--data: a value is missing (see mcpevents publish --help)\n$"},
		"a flag for a value":      {[]string{"--data", "--uri", "event://a/b"}, exitUsage, "--data: a value is missing; if it is \"--uri\", put = before it (see mcpevents publish --help)\n$"},
		"a directory":             {[]string{"--data", "@/"}, exitRefused, "/ is a directory: give the path of the data in it\n$"},
		"a batch that is text":    {[]string{"--data", "1", "--batch", "x"}, exitUsage, "--batch: \"x\" is not a whole number, or is too large (see mcpevents publish --help)\n$"},
		"an invalid time": {
			[]string{"--data", "1", "--time", "x"},
			exitUsage,
			"--time: \"x\" is not a time (RFC 3339, such as 2026-11-22T12:00:00Z) (see mcpevents publish --help)\n$",
		},
		"an unknown flag": {[]string{"--nonsense"}, exitUsage, "unknown flag --nonsense (see mcpevents publish --help)\n$"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEventsServer(t)
			code, out, errs := command(t, "", append([]string{"publish", "--server", s.URL}, tt.args...)...)
			if code != tt.code || !strings.Contains(errs+"$", tt.message) || out != "" {
				t.Errorf("got exit code %d, the error %q and the output %q, want %d, an error with %q and no output", code, errs, out, tt.code, tt.message)
			}
			expect.Len(t, "the requests", s.bodies, 0)
		})
	}
}

// A user who has to wait sees the reason immediately.
func TestPublishSaysThatItTriesAgain(t *testing.T) {
	t.Parallel()
	stopped := httptest.NewServer(nil)
	stopped.Close()
	start := time.Now()
	code, _, errs := command(t, "", "publish", "--server", stopped.URL, "--uri", "event://a/b", "--data", "1", "--tries", "2")
	if code != exitUnavailable || !strings.Contains(errs, "connection refused; trying again (try 2 of 2)\n") {
		t.Errorf("exit code %d after %v: %s", code, time.Since(start), errs)
	}
	said := new(expect.Buffer)
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		for said.String() == "" {
			time.Sleep(time.Millisecond)
		}
		accept(w, body)
	}))
	defer slow.Close()
	code = run([]string{"publish", "--server", slow.URL, "--uri", "event://a/b", "--data", "1"}, strings.NewReader(""), io.Discard, said)
	expect.Equal(t, "the exit code", code, exitDone)
	expect.Equal(t, "the output", said.String(), "mcpevents: waiting for "+slow.URL+" to answer\n")
}

func TestPublishTriesAgainWithTheSameIDs(t *testing.T) {
	t.Parallel()
	s := newEventsServer(t, answer(503, "busy"))
	code, out, errs := command(t, "", "publish", "--server", s.URL, "--uri", "event://a/b", "--data", "1")
	if code != exitDone || len(s.bodies) != 2 {
		t.Fatalf("exit code %d after %d requests: %s", code, len(s.bodies), errs)
	}
	expect.Equal(t, "the second request", s.bodies[0], s.bodies[1])
	expect.Contains(t, "the output", out, `"uri":"event://a/b"`)
}

func TestPublishReportsAcceptedEvents(t *testing.T) {
	s := newEventsServer(t)
	s.answers = []func(http.ResponseWriter){
		func(w http.ResponseWriter) { accept(w, []byte(s.bodies[0])) },
		answer(422, `{"error":{"message":"no"}}`),
	}
	code, out, errs := command(t, "1 2 3", "publish", "--server", s.URL, "--uri", "event://a/b", "--data", "-", "--batch", "1")
	if code != exitRefused || !strings.Contains(errs, "1 events were accepted before this") || strings.Count(out, "\n") != 1 {
		t.Errorf("got exit code %d, %q and %q, want %d, one accepted event and a message that says so", code, out, errs, exitRefused)
	}
}

func TestPublishPrintsOneDocument(t *testing.T) {
	for _, tt := range []struct {
		name, stdin string
		answers     []func(http.ResponseWriter)
		want        string
		code        int
	}{
		{"several_batches", "1 2 3", nil, `{"accepted":[{"id":"ID","uri":"event://a/b"},{"id":"ID","uri":"event://a/b"},{"id":"ID","uri":"event://a/b"}]}`, exitDone},
		{"no_events", "", nil, `{"accepted":[]}`, exitRefused},
		{"a_refusal", "1", []func(http.ResponseWriter){answer(422, `{"error":{"message":"no"}}`)}, `{"accepted":[]}`, exitRefused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newEventsServer(t, tt.answers...)
			code, out, errs := command(t, tt.stdin, "publish", "--json", "--server", s.URL, "--uri", "event://a/b", "--data", "-", "--batch", "2")
			if code != tt.code || hideIDs(out) != tt.want+"\n" {
				t.Errorf("got exit code %d and %s%s, want %d and %s", code, hideIDs(out), errs, tt.code, tt.want)
			}
		})
	}
}

func TestAKeyIsSentAndNotPrinted(t *testing.T) {
	t.Setenv("MCPEVENTS_KEY", "very-secret")
	s := newEventsServer(t, answer(403, `{"error":{"message":"no"}}`))
	_, out, errs := command(t, "", "publish", "--server", s.URL, "--uri", "event://a/b", "--data", "1")
	expect.Equal(t, "the header Authorization", s.header[0].Get("Authorization"), "Bearer very-secret")
	_, help, _ := command(t, "", "publish", "--help")
	expect.Lacks(t, "the output", out+errs+help, "very-secret")
}

func TestEveryFlagHasAVariable(t *testing.T) {
	for _, cmd := range []string{"serve", "publish", "listen", "catalog check", "catalog apply", "demo", "bench"} {
		code, help, _ := command(t, "", append(strings.Fields(cmd), "--help")...)
		expect.MustEqual(t, "the exit code of "+cmd, code, exitDone)
		_, flags, ok := strings.Cut(help, "\nFlags:\n")
		if !ok {
			t.Fatalf("%s --help lists no flags:\n%s", cmd, help)
		}
		got := strings.Count(flags, "($MCPEVENTS_")
		want := 0
		for line := range strings.Lines(flags) {
			if strings.HasPrefix(line, "      --") || strings.HasPrefix(line, "  -") {
				want++
			}
		}
		if want-1 != got { // --help has no variable
			t.Errorf("%s: got %d variables, want %d, one per flag:\n%s", cmd, got, want-1, flags)
		}
	}
}

func TestTheVersionIsPrinted(t *testing.T) {
	for _, spelling := range []string{"version", "--version"} {
		code, out, _ := command(t, "", spelling)
		if want := fmt.Sprintf("mcpevents %s", app.Version); code != exitDone || !strings.HasPrefix(out, want) {
			t.Errorf("%s: exit code %d, got %q, want %q…", spelling, code, out, want)
		}
	}
}

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
)

// eventsServer answers POST /events with what its answers say, in turn, and
// keeps what was posted. After the last answer it accepts.
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

// command runs the program and returns its exit code and what it wrote.
func command(t *testing.T, stdin string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(args, strings.NewReader(stdin), &out, &errs)
	return code, out.String(), errs.String()
}

func TestPublishSendsEvents(t *testing.T) {
	file := filepath.Join(t.TempDir(), "events.ndjson")
	if err := os.WriteFile(file, []byte(`{"uri":"event://ci/build-finished","data":{"n":1}}
[{"uri":"event://ci/build-finished","data":{"n":2}},{"uri":"event://x/y","id":"mine","data":null}]
{"specversion":"1.0","source":"s","type":"t","id":"ce","subject":"event://x/y","data":1}
`), 0o600); err != nil {
		t.Fatal(err)
	}
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
			name: "large_integers_stay_as_they_are", args: []string{"--uri", "event://a/b", "--data", `90071992547409930001`, "--id", "i"},
			bodies: []string{`{"data":90071992547409930001,"id":"i","uri":"event://a/b"}`}, lines: 1,
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
			name: "quietly", args: []string{"--uri", "event://a/b", "--data", "1", "--id", "i", "-q"},
			bodies: []string{`{"data":1,"id":"i","uri":"event://a/b"}`},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newEventsServer(t)
			code, out, errs := command(t, tt.stdin, append([]string{"publish", "--server", s.URL}, tt.args...)...)
			if code != exitDone {
				t.Fatalf("exit code %d: %s", code, errs)
			}
			if got, want := strings.Join(s.bodies, "\n"), strings.Join(tt.bodies, "\n"); generated(got) != want {
				t.Errorf("sent\n%s\nwant\n%s", generated(got), want)
			}
			if got := strings.Count(out, "\n"); got != tt.lines {
				t.Errorf("printed %d lines, want %d: %s", got, tt.lines, out)
			}
		})
	}
}

// generated replaces ids that the program chose.
func generated(s string) string {
	parts := strings.Split(s, `"evt_`)
	for i := 1; i < len(parts); i++ {
		_, rest, _ := strings.Cut(parts[i], `"`)
		parts[i] = rest
	}
	return strings.Join(parts, `"ID"`)
}

func TestPublishSaysWhatIsWrong(t *testing.T) {
	tests := []struct {
		name    string
		args    []string
		answer  func(http.ResponseWriter)
		code    int
		message string
	}{
		{
			name: "a_payload_that_breaks_its_schema", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(422, `{"error":{"kind":"unprocessable","message":"/data: number is missing","faults":[{"pointer":"/data","message":"number is missing"},{"pointer":"/data/x","message":"is not a string"}]}}`),
			code:   exitRefused, message: "mcpevents: the server refused (422): /data: number is missing\n  /data: number is missing\n  /data/x: is not a string\n",
		},
		{
			name: "one_fault_is_said_once", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(422, `{"error":{"kind":"unprocessable","message":"/data: number is missing","faults":[{"pointer":"/data","message":"number is missing"}]}}`),
			code:   exitRefused, message: "mcpevents: the server refused (422): /data: number is missing\n$",
		},
		{
			name: "an_unknown_uri", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(404, `{"error":{"kind":"not found","message":"belongs to no event type","uri":"event://a/b"}}`),
			code:   exitRefused, message: "belongs to no event type (event://a/b)",
		},
		{
			name: "a_missing_key", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(401, `{"error":{"kind":"unauthenticated","message":"authentication is required"}}`),
			code:   exitDenied, message: "refused (401): authentication is required",
		},
		{
			name: "a_missing_scope", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(403, `{"error":{"message":"the scope events:publish is needed"}}`),
			code:   exitDenied, message: "the scope events:publish is needed",
		},
		{
			name: "an_answer_of_somebody_else", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(400, "<html>proxy says no</html>"), code: exitRefused,
			message: "answered 400 Bad Request with text/html, which no server of mcp-events does; is --server right?\n",
		},
		{
			name: "a_text_of_somebody_else", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(404, "404 page not found"), code: exitRefused, message: "answered 404 Not Found with text/plain",
		},
		{
			name: "a_page_of_somebody_else", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(200, "<html>welcome</html>"), code: exitRefused, message: "answered 200 OK with text/html",
		},
		{
			name: "an_MCP_endpoint", args: []string{"--uri", "event://a/b", "--data", `{}`},
			answer: answer(400, `{"jsonrpc":"2.0","error":{"code":-32600,"message":"jsonrpc must be \"2.0\""}}`), code: exitRefused,
			message: "/events is an MCP endpoint; publish needs the URL of /events\n",
		},
		{
			name: "the_URL_of_the_MCP_endpoint", args: []string{"--server", "https://x.example/a/mcp", "--uri", "event://a/b", "--data", `{}`}, code: exitRefused,
			message: "the server's URL ends with /mcp, but this needs that of /events: https://x.example/a/events\n",
		},
		{
			name: "a_server_that_stays_unavailable", args: []string{"--uri", "event://a/b", "--data", `{}`, "--tries", "1"},
			answer: answer(503, ""), code: exitUnavailable, message: "refused (503): service unavailable",
		},
		{name: "data_that_is_not_json", args: []string{"--uri", "event://a/b", "--data", `{"x"`}, code: exitRefused, message: "value 1 of the data is not JSON"},
		{name: "no_data", args: []string{"--uri", "event://a/b", "--data", ` `}, code: exitRefused, message: "the data is empty"},
		{name: "a_payload_without_uri", args: []string{"--data", `{"x":1}`}, code: exitRefused, message: `without "uri"; give --uri`},
		{name: "a_number_without_uri", args: []string{"--data", `1`}, code: exitRefused, message: "give --uri"},
		{name: "one_id_for_two_events", args: []string{"--uri", "event://a/b", "--data", `1 2`, "--id", "x"}, code: exitRefused, message: "--id is for one event"},
		{name: "a_missing_file", args: []string{"--data", "@/does/not/exist"}, code: exitRefused, message: "there is no data at /does/not/exist: give its path"},
		{name: "a_server_that_is_no_url", args: []string{"--server", "localhost:1", "--data", "1"}, code: exitRefused, message: "is not the URL of a server"},
		{name: "nothing_to_publish", args: nil, code: exitUsage, message: "--data"},
		{name: "a_batch_of_nothing", args: []string{"--data", "1", "--batch", "0"}, code: exitUsage, message: "--batch"},
		{name: "an_unknown_flag", args: []string{"--nonsense"}, code: exitUsage, message: "unknown flag --nonsense (see mcpevents publish --help)\n$"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newEventsServer(t)
			if tt.answer != nil {
				s.answers = []func(http.ResponseWriter){tt.answer}
			}
			args := append([]string{"publish", "--server", s.URL}, tt.args...)
			code, out, errs := command(t, "", args...)
			if code != tt.code || !strings.Contains(errs+"$", tt.message) { // $ is the end of what it says
				t.Errorf("exit code %d, want %d:\n%s\nwant it to say %q", code, tt.code, errs, tt.message)
			}
			if out != "" {
				t.Errorf("printed %q", out)
			}
			if tt.answer == nil && len(s.bodies) > 0 {
				t.Errorf("sent %q", s.bodies)
			}
		})
	}
}

// A caller who waits is shown the reason at once.
func TestPublishTellsThatItTriesAgain(t *testing.T) {
	stopped := httptest.NewServer(nil)
	stopped.Close()
	start := time.Now()
	code, _, errs := command(t, "", "publish", "--server", stopped.URL, "--uri", "event://a/b", "--data", "1", "--tries", "2")
	if code != exitUnavailable || !strings.Contains(errs, "connection refused; trying again (try 2 of 2)\n") {
		t.Errorf("exit code %d after %v: %s", code, time.Since(start), errs)
	}
	said := &notice{written: make(chan struct{})}
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		<-said.written
		accept(w, body)
	}))
	defer slow.Close()
	code = run([]string{"publish", "--server", slow.URL, "--uri", "event://a/b", "--data", "1"}, strings.NewReader(""), io.Discard, said)
	if got := said.String(); code != exitDone || got != "mcpevents: waiting for an answer of "+slow.URL+"\n" {
		t.Errorf("exit code %d: %s", code, got)
	}
}

// notice is a text that tells when it has begun.
type notice struct {
	strings.Builder
	once    sync.Once
	written chan struct{}
}

func (n *notice) Write(p []byte) (int, error) {
	defer n.once.Do(func() { close(n.written) })
	return n.Builder.Write(p)
}

func TestPublishTriesAgainWithTheSameIDs(t *testing.T) {
	s := newEventsServer(t, answer(503, "busy"))
	code, out, errs := command(t, "", "publish", "--server", s.URL, "--uri", "event://a/b", "--data", "1")
	if code != exitDone || len(s.bodies) != 2 {
		t.Fatalf("exit code %d after %d requests: %s", code, len(s.bodies), errs)
	}
	if s.bodies[0] != s.bodies[1] {
		t.Errorf("repeated %s as %s", s.bodies[0], s.bodies[1])
	}
	if !strings.Contains(out, `"uri":"event://a/b"`) {
		t.Errorf("printed %q", out)
	}
}

func TestPublishTellsHowFarItCame(t *testing.T) {
	s := newEventsServer(t)
	s.answers = []func(http.ResponseWriter){
		func(w http.ResponseWriter) { accept(w, []byte(s.bodies[0])) },
		answer(422, `{"error":{"message":"no"}}`),
	}
	code, out, errs := command(t, "1 2 3", "publish", "--server", s.URL, "--uri", "event://a/b", "--data", "-", "--batch", "1")
	if code != exitRefused || !strings.Contains(errs, "1 events were accepted before this") || strings.Count(out, "\n") != 1 {
		t.Errorf("exit code %d, printed %q, told %q", code, out, errs)
	}
}

func TestAKeyIsSentAndNotShown(t *testing.T) {
	t.Setenv("MCPEVENTS_KEY", "very-secret")
	s := newEventsServer(t, answer(403, `{"error":{"message":"no"}}`))
	_, out, errs := command(t, "", "publish", "--server", s.URL, "--uri", "event://a/b", "--data", "1")
	if got := s.header[0].Get("Authorization"); got != "Bearer very-secret" {
		t.Errorf("sent Authorization %q", got)
	}
	_, help, _ := command(t, "", "publish", "--help")
	if strings.Contains(out+errs+help, "very-secret") {
		t.Error("the key is shown")
	}
}

func TestEveryFlagHasAVariable(t *testing.T) {
	for _, cmd := range []string{"serve", "publish", "listen", "catalog check", "catalog apply", "demo", "bench"} {
		code, help, _ := command(t, "", append(strings.Fields(cmd), "--help")...)
		if code != exitDone {
			t.Fatalf("%s --help: exit code %d", cmd, code)
		}
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
		if want-1 != got { // --help has none
			t.Errorf("%s: %d variables for %d flags:\n%s", cmd, got, want-1, flags)
		}
	}
}

func TestTheVersionIsPrinted(t *testing.T) {
	code, out, _ := command(t, "", "version")
	if want := fmt.Sprintf("mcpevents %s", app.Version); code != exitDone || !strings.HasPrefix(out, want) {
		t.Errorf("exit code %d, got %q, want %q…", code, out, want)
	}
}

package operate

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/test/expect"
)

const (
	aSubscription = "sub_0198c1d27a447c3e9d115b6f0a8e2c47"
	someAttempts  = `{"items":[` +
		`{"at":"2026-11-22T12:00:00Z","outcome":"delivered","event":"evt_0198c1d2-7a44-7c3e-9d11-5b6f0a8e2c47","name":"github.pull_request","subscription":"` + aSubscription + `","attempt":1,"status":"2xx","durationMs":12},` +
		`{"at":"2026-11-22T12:00:01Z","outcome":"failed","event":"evt_mine","name":"github.pull_request","subscription":"` + aSubscription + `","attempt":3,"status":"5xx","category":"http_5xx","durationMs":34,"nextAttempt":"2026-11-22T12:05:00Z"}]}`
	someSubscriptions = `{"items":[{"id":"` + aSubscription + `","principal":"alice","state":"active","events":["github.pull_request"],"target":"https://hooks.example.com/a/long/path","delivery":{"last":"2026-11-22T12:00:00Z","lastError":"http_5xx","lastStatusCode":503}},` +
		`{"id":"sub_2","principal":"bob","state":"active","events":["ci.build_finished"],"target":"https://hooks.example.com/b","delivery":{"lastError":"timeout"}}]}`
)

func TestTablesFitTheTerminal(t *testing.T) {
	attempts := map[string]string{"GET /admin/v1/deliveries?limit=100": someAttempts}
	subscriptions := map[string]string{"GET /admin/v1/subscriptions?limit=100": someSubscriptions}
	const every = "AT OUTCOME EVENT NAME SUBSCRIPTION ATTEMPT STATUS CATEGORY DURATION MS NEXT ATTEMPT"
	hides := func(columns string) string {
		return "Not shown, because the terminal is narrow: " + columns + " (--wide shows everything).\n"
	}
	for _, x := range []struct {
		name    string
		width   int
		answers map[string]string
		command string
		heads   string
		has     []string
		notes   string
	}{
		{"without a terminal everything is printed", 0, attempts, "deliveries", every, []string{"evt_0198c1d2-7a44-7c3e-9d11-5b6f0a8e2c47", aSubscription}, ""},
		{"ids are shortened first", 170, attempts, "deliveries", every, []string{"evt_0198…2c47", "sub_0198…2c47", "evt_mine"}, ""},
		{
			"then columns are hidden", 80, attempts, "deliveries", "AT OUTCOME EVENT SUBSCRIPTION STATUS",
			[]string{"evt_0198…2c47", "sub_0198…2c47"},
			hides("DURATION MS, NEXT ATTEMPT, ATTEMPT, CATEGORY, NAME"),
		},
		{"--wide prints everything", 80, attempts, "deliveries --wide", every, []string{aSubscription}, ""},
		{
			"an id that other commands need is whole", 80, subscriptions, "subscriptions", "ID STATE EVENTS LAST ERROR",
			[]string{aSubscription, "github.pull_request  503\n", "ci.build_finished    timeout\n"},
			hides("LAST, TARGET, PRINCIPAL"),
		},
		{
			"two columns are always shown", 10, subscriptions, "subscriptions", "ID STATE",
			[]string{aSubscription},
			hides("LAST, TARGET, PRINCIPAL, LAST ERROR, EVENTS"),
		},
		{"programs get everything", 10, attempts, "deliveries -o json", "", []string{aSubscription}, ""},
	} {
		t.Run("OPS-10 "+x.name, func(t *testing.T) {
			out, errs, err := runs(t, Terminal{Width: x.width}, x.answers, strings.Fields(x.command)...)
			expect.OK(t, err)
			head, _, _ := strings.Cut(out, "\n")
			if got := strings.Join(strings.Fields(head), " "); x.heads != "" && got != x.heads {
				t.Errorf("the columns are %s, want %s", got, x.heads)
			}
			expect.Contains(t, "the output", out, x.has...)
			expect.Equal(t, "the notes", errs, x.notes)
			for line := range strings.Lines(out) {
				if n := utf8.RuneCountInString(strings.TrimRight(line, " \n")); x.width > 20 && x.notes != "" && n > x.width {
					t.Errorf("a line has %d characters, want at most %d: %s", n, x.width, line)
				}
			}
		})
	}
}

func TestDocumentsForProgramsHaveExactTimes(t *testing.T) {
	answers := map[string]string{"GET /admin/v1/dead-letters/dl_1": `{"id":"dl_1","dead":"2026-11-22T12:00:00.123456Z"}`}
	out, _, err := runs(t, Terminal{}, answers, "deadletters", "show", "dl_1", "-o", "yaml")
	expect.OK(t, err)
	expect.Equal(t, "OPS-10: the output", out, "id: dl_1\ndead: \"2026-11-22T12:00:00.123456Z\"\n")
}

func TestEventWithMoreOutcomesThanItsPage(t *testing.T) {
	answers := map[string]string{
		"GET /admin/v1/events/evt_1":                    `{"id":"evt_1"}`,
		"GET /admin/v1/events/evt_1/outcomes?limit=100": `{"items":[` + strings.Repeat(`{"outcome":"delivered"},`, 99) + `{"outcome":"dead"}],"next":"abc"}`,
	}
	_, errs, err := runs(t, Terminal{}, answers, "events", "show", "evt_1")
	expect.OK(t, err)
	expect.Equal(t, "OPS-10: the note", errs, "There are more than 100. To see all: mcpevents events outcomes evt_1 --limit 0\n")
}

func TestNamesOfEventsWithLargeNumbers(t *testing.T) {
	answers := map[string]string{"GET /admin/v1/events?limit=100&name=a": `{"items":[{"id":"evt_1","data":{"n":1e999999999999}}]}`}
	out, _, err := runs(t, Terminal{}, answers, "events", "list", "--name", "a", "-o", "name")
	expect.OK(t, err)
	expect.Equal(t, "OPS-10: the output", out, "evt_1\n")
}

func TestShortenedIDs(t *testing.T) {
	const (
		one, other = "sub_0198c1d27a447c3e9d115b6f0a8e2c47", "sub_0198ffffffffffffffffffffffff2c00"
		all        = `{"items":[{"id":"` + one + `"},{"id":"` + other + `","arguments":{"n":1e999}}]}`
		attempts   = `{"items":[{"event":"evt_0198-2c47"},{"event":"order_7"},{"event":"evt_0198-2c47"}]}`
		list       = "GET /admin/v1/subscriptions?limit=100"
		newest     = "GET /admin/v1/deliveries?limit=100"
		show       = "GET /admin/v1/subscriptions/"
	)
	for _, x := range []struct {
		args    string
		answers map[string]string
		refusal string
	}{
		{"subscriptions show sub_0198…2c47", map[string]string{list: all, show + one: "{}"}, ""},
		{"subscriptions show sub_0198c...", map[string]string{list: all, show + one: "{}"}, ""},
		{"subscriptions show sub_0198f", map[string]string{list: all, show + other: "{}"}, ""},
		{"subscriptions show " + one, map[string]string{show + one: "{}"}, ""},
		{"subscriptions show sub_1", map[string]string{show + "sub_1": "{}"}, ""},
		{"subscriptions end sub_01… --yes", map[string]string{list: all}, `"sub_01…" can mean ` + one + " or " + other + ": give more of the id"},
		{"subscriptions show sub_0777", map[string]string{list: all}, `no subscription has an id like "sub_0777": give the whole id`},
		{"events outcomes evt_0198…2c47 --subscription sub_0198…2c00", map[string]string{
			newest: attempts, list: all, "GET /admin/v1/events/evt_0198-2c47/outcomes?limit=100&subscription=" + other: `{"items":[]}`,
		}, ""},
		{"deliveries --event order_...", map[string]string{newest: attempts, "GET /admin/v1/deliveries?event=order_7&limit=100": attempts}, ""},
		{"subscriptions --event order_...", map[string]string{"GET /admin/v1/subscriptions?event=order_...&limit=100": all}, ""},
		{"subscriptions pause sub_1 --reason waiting...", map[string]string{"POST /admin/v1/subscriptions/sub_1/pause": "{}"}, ""},
	} {
		t.Run("OPS-10 "+x.args, func(t *testing.T) {
			_, _, err := runs(t, Terminal{}, x.answers, strings.Fields(x.args)...)
			refused(t, err, x.refusal)
		})
	}
}

// TestAJobIsFollowed: a replay is watched until it is over, through a server that is away for a moment.
func TestAJobIsFollowed(t *testing.T) {
	answers := []string{
		`{"id":"rpl_1","state":"running","total":9,"replayed":2,"skipped":0}`,
		"",
		`{"id":"rpl_1","state":"done","total":9,"replayed":8,"skipped":1}`,
	}
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = append(asked, fmt.Sprintf("%s %s %s", r.Method, r.URL.Path, body))
		now := answers[0]
		if answers = answers[1:]; now == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = io.WriteString(w, now)
	}))
	defer s.Close()
	var out, errs, bar bytes.Buffer
	c := Command{
		Terminal: Terminal{Out: &out, Err: &errs, Bar: &bar}, API: "POST replays", Follow: true,
		Values: map[string]any{"rate": 5, "dryRun": false, "origin": "https://a.example"},
	}
	expect.OK(t, c.Run(t.Context(), httpcall.Server{URL: s.URL}))
	want := `POST /admin/v1/replays {"dryRun":false,"rate":5,"select":{"origin":"https://a.example"}}` +
		"\nGET /admin/v1/replays/rpl_1 \nGET /admin/v1/replays/rpl_1 "
	expect.Equal(t, "OPS-10: the requests", strings.Join(asked, "\n"), want)
	if !strings.Contains(out.String(), "state: done\n") || !regexp.MustCompile(`replayed 9 / 9`).Match(bar.Bytes()) || errs.Len() > 0 {
		t.Errorf("OPS-10: prints %s%s, and shows %q", &out, &errs, &bar)
	}
}

// runs runs a command line against a server that answers requests from a table of methods and paths. It returns the output and the
// error.
func runs(t *testing.T, terminal Terminal, answers map[string]string, args ...string) (out, errs string, err error) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := answers[r.Method+" "+r.URL.RequestURI()]
		if !ok {
			t.Errorf("unexpected request %s %s", r.Method, r.URL.RequestURI())
		}
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	var commands Commands
	parser := expect.Value(kong.New(&commands))(t)
	parsed := expect.Value(parser.Parse(append(args, "--server", s.URL)))(t)
	var stdout, stderr bytes.Buffer
	terminal.Out, terminal.Err = &stdout, &stderr
	err = parsed.Run(terminal)
	return stdout.String(), stderr.String(), err
}

// question is a case of a command that asks before it does something that cannot be undone.
type question struct {
	name, stdin string
	interactive bool
	answers     map[string]string
	args        []string
	asks        string
	does        bool
	refusal     string
}

// asksFirst runs a command that asks for a confirmation. The command prints done after it has carried out the change.
func asksFirst(t *testing.T, numbers, done string, command []string, cases []question) {
	t.Helper()
	for _, x := range cases {
		t.Run(numbers+x.name, func(t *testing.T) {
			terminal := Terminal{In: strings.NewReader(x.stdin), Interactive: x.interactive}
			out, errs, err := runs(t, terminal, x.answers, slices.Concat(command, x.args)...)
			expect.Equal(t, "the questions", errs, x.asks)
			expect.Equal(t, "it is done", strings.Contains(out, done), x.does)
			refused(t, err, x.refusal)
		})
	}
}

func TestErasingAsksFirst(t *testing.T) {
	const path = "/admin/v1/principals/al%2Fice?dryRun="
	dry := map[string]string{"DELETE " + path + "true": `{"subscriptions":3}`}
	both := map[string]string{"DELETE " + path + "true": `{"subscriptions":3}`, "DELETE " + path + "false": `{"subscriptions":3,"done":true}`}
	const asked = "subscriptions: 3\nThis cannot be undone. Type al/ice to continue: "
	asksFirst(t, "OPS-07 OPS-10 ", "done: true", []string{"principals", "erase", "al/ice"}, []question{
		{"a dry run does not ask", "", true, dry, []string{"--dry-run"}, "", false, ""},
		{"the name is repeated", "al/ice\n", true, both, nil, asked, true, ""},
		{"another name erases nothing", "bob\n", true, dry, nil, asked, false, `canceled: "bob" is not "al/ice"`},
		{"no answer erases nothing", "", true, dry, nil, asked, false, "canceled"},
		{"--yes does not ask", "", true, map[string]string{"DELETE " + path + "false": `{"done":true}`}, []string{"--yes"}, "", true, ""},
		{"without a terminal it is refused, whatever the input says", "al/ice\n", false, nil, nil, "", false, "add --yes if you are sure"},
	})
}

func TestEndingASubscriptionAsksFirst(t *testing.T) {
	const path = "/admin/v1/subscriptions/sub_1"
	show := map[string]string{"GET " + path: `{"id":"sub_1","principal":"alice"}`}
	both := map[string]string{"GET " + path: `{"id":"sub_1","principal":"alice"}`, "DELETE " + path: `{"ended":true}`}
	const asked = "id: sub_1\nprincipal: alice\nThis cannot be undone. Type yes to continue: "
	asksFirst(t, "OPS-10 ", "ended: true", []string{"subscriptions", "end", "sub_1"}, []question{
		{"yes ends it", "yes\n", true, both, nil, asked, true, ""},
		{"any other answer does not", "y\n", true, show, nil, asked, false, `canceled: "y" is not "yes"`},
		{"--yes does not ask", "", true, map[string]string{"DELETE " + path: `{"ended":true}`}, []string{"--yes"}, "", true, ""},
		{"without a terminal it is refused", "yes\n", false, nil, nil, "", false, "add --yes if you are sure"},
	})
}

// refused checks that an error has a text, or that there is no error if the text is empty.
func refused(t *testing.T, err error, text string) {
	t.Helper()
	switch {
	case text == "" && err != nil:
		t.Errorf("got the error %v, want none", err)
	case text != "" && (!fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), text)):
		t.Errorf("got the error %v, want one with %q", err, text)
	}
}

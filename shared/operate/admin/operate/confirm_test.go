package operate

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

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
	parser, err := kong.New(&commands)
	expect.OK(t, err)
	parsed, err := parser.Parse(append(args, "--server", s.URL))
	expect.OK(t, err)
	var stdout, stderr bytes.Buffer
	terminal.Out, terminal.Err = &stdout, &stderr
	err = parsed.Run(terminal)
	return stdout.String(), stderr.String(), err
}

func TestErasingAsksFirst(t *testing.T) {
	const path = "/admin/v1/principals/al%2Fice?dryRun="
	dry := map[string]string{"DELETE " + path + "true": `{"subscriptions":3}`}
	both := map[string]string{"DELETE " + path + "true": `{"subscriptions":3}`, "DELETE " + path + "false": `{"subscriptions":3,"done":true}`}
	const question = "subscriptions: 3\nThis cannot be undone. Type al/ice to continue: "
	for _, x := range []struct {
		name, stdin string
		interactive bool
		answers     map[string]string
		args        []string
		asks        string
		erases      bool
		refusal     string
	}{
		{"a dry run does not ask", "", true, dry, []string{"--dry-run"}, "", false, ""},
		{"the name is repeated", "al/ice\n", true, both, nil, question, true, ""},
		{"another name erases nothing", "bob\n", true, dry, nil, question, false, `canceled: "bob" is not "al/ice"`},
		{"no answer erases nothing", "", true, dry, nil, question, false, "canceled"},
		{"--yes does not ask", "", true, map[string]string{"DELETE " + path + "false": `{"done":true}`}, []string{"--yes"}, "", true, ""},
		{"without a terminal it is refused, whatever the input says", "al/ice\n", false, nil, nil, "", false, "add --yes if you are sure"},
		{"without a terminal --yes erases", "", false, map[string]string{"DELETE " + path + "false": `{"done":true}`}, []string{"--yes"}, "", true, ""},
	} {
		t.Run("OPS-07 OPS-10 "+x.name, func(t *testing.T) {
			out, errs, err := runs(t, Terminal{In: strings.NewReader(x.stdin), Interactive: x.interactive}, x.answers, append([]string{"principals", "erase", "al/ice"}, x.args...)...)
			expect.Equal(t, "the questions", errs, x.asks)
			if strings.Contains(out, "done: true") != x.erases {
				t.Errorf("it prints %q, want an erasure: %v", out, x.erases)
			}
			refused(t, err, x.refusal)
		})
	}
}

func TestEndingASubscriptionAsksFirst(t *testing.T) {
	const path = "/admin/v1/subscriptions/sub_1"
	show := map[string]string{"GET " + path: `{"id":"sub_1","principal":"alice"}`}
	both := map[string]string{"GET " + path: `{"id":"sub_1","principal":"alice"}`, "DELETE " + path: `{"ended":true}`}
	const question = "id: sub_1\nprincipal: alice\nThis cannot be undone. Type yes to continue: "
	for _, x := range []struct {
		name, stdin string
		interactive bool
		answers     map[string]string
		args        []string
		asks        string
		ends        bool
		refusal     string
	}{
		{"yes ends it", "yes\n", true, both, nil, question, true, ""},
		{"any other answer does not", "y\n", true, show, nil, question, false, `canceled: "y" is not "yes"`},
		{"--yes does not ask", "", true, map[string]string{"DELETE " + path: `{"ended":true}`}, []string{"--yes"}, "", true, ""},
		{"without a terminal it is refused", "yes\n", false, nil, nil, "", false, "add --yes if you are sure"},
	} {
		t.Run("OPS-10 "+x.name, func(t *testing.T) {
			out, errs, err := runs(t, Terminal{In: strings.NewReader(x.stdin), Interactive: x.interactive}, x.answers, append([]string{"subscriptions", "end", "sub_1"}, x.args...)...)
			expect.Equal(t, "the questions", errs, x.asks)
			if strings.Contains(out, "ended: true") != x.ends {
				t.Errorf("it prints %q, want an end: %v", out, x.ends)
			}
			refused(t, err, x.refusal)
		})
	}
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

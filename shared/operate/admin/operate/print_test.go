package operate

import (
	"strings"
	"testing"
	"unicode/utf8"

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
	for _, x := range []struct {
		name    string
		width   int
		answers map[string]string
		args    []string
		heads   string
		has     []string
		notes   string
	}{
		{
			"without a terminal everything is printed", 0, attempts,
			[]string{"deliveries"},
			"AT OUTCOME EVENT NAME SUBSCRIPTION ATTEMPT STATUS CATEGORY DURATION MS NEXT ATTEMPT",
			[]string{"evt_0198c1d2-7a44-7c3e-9d11-5b6f0a8e2c47", aSubscription},
			"",
		},
		{
			"ids are shortened first", 170, attempts,
			[]string{"deliveries"},
			"AT OUTCOME EVENT NAME SUBSCRIPTION ATTEMPT STATUS CATEGORY DURATION MS NEXT ATTEMPT",
			[]string{"evt_0198…2c47", "sub_0198…2c47", "evt_mine"},
			"",
		},
		{
			"then columns are hidden", 80, attempts,
			[]string{"deliveries"},
			"AT OUTCOME EVENT SUBSCRIPTION STATUS",
			[]string{"evt_0198…2c47", "sub_0198…2c47"},
			"Not shown, because the terminal is narrow: DURATION MS, NEXT ATTEMPT, ATTEMPT, CATEGORY, NAME (--wide shows everything).\n",
		},
		{
			"--wide prints everything", 80, attempts,
			[]string{"deliveries", "--wide"},
			"AT OUTCOME EVENT NAME SUBSCRIPTION ATTEMPT STATUS CATEGORY DURATION MS NEXT ATTEMPT",
			[]string{aSubscription},
			"",
		},
		{
			"an id that other commands need is whole", 80, subscriptions,
			[]string{"subscriptions"},
			"ID STATE EVENTS LAST ERROR",
			[]string{aSubscription, "github.pull_request  503\n", "ci.build_finished    timeout\n"},
			"Not shown, because the terminal is narrow: LAST, TARGET, PRINCIPAL (--wide shows everything).\n",
		},
		{
			"two columns are always shown", 10, subscriptions,
			[]string{"subscriptions"},
			"ID STATE",
			[]string{aSubscription},
			"Not shown, because the terminal is narrow: LAST, TARGET, PRINCIPAL, LAST ERROR, EVENTS (--wide shows everything).\n",
		},
		{"programs get everything", 10, attempts, []string{"deliveries", "-o", "json"}, "", []string{aSubscription}, ""},
	} {
		t.Run("OPS-10 "+x.name, func(t *testing.T) {
			out, errs, err := runs(t, Terminal{Width: x.width}, x.answers, x.args...)
			expect.OK(t, err)
			head, _, _ := strings.Cut(out, "\n")
			if got := strings.Join(strings.Fields(head), " "); x.heads != "" && got != x.heads {
				t.Errorf("the columns are %s, want %s", got, x.heads)
			}
			for _, want := range x.has {
				if !strings.Contains(out, want) {
					t.Errorf("it prints\n%s\nwithout %s", out, want)
				}
			}
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
	if want := "id: dl_1\ndead: \"2026-11-22T12:00:00.123456Z\"\n"; err != nil || out != want {
		t.Errorf("OPS-10: got %q, %v, want %q", out, err, want)
	}
}

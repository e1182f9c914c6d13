package check_test

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/shared/app/standalone"
	"github.com/mcp-events/mcpevents/shared/app/standalone/servertest"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// ours is an embedded server with quick retries and heartbeats, and how to check it.
func ours(t *testing.T, change func(*standalone.Options)) check.Options {
	t.Helper()
	o := servertest.Options(t, map[string]servertest.Caller{"agent": {Workspace: "default", Scopes: "events:read, events:subscribe"}})
	o.Limits.Heartbeat, o.Limits.EventsSchedule = time.Second, []time.Duration{0, time.Second, time.Second}
	o.Limits.MinTTL = time.Second
	if change != nil {
		change(&o)
	}
	s := servertest.Start(t, o)
	return check.Options{
		URL: s.URL + "/mcp", Key: "agent", Agent: "check/1", Event: "ci.build_finished", Wait: 10 * time.Second, Progress: func(text string) { t.Log(text) },
		Publish: func(ctx context.Context) error {
			_, err := s.Publish(ctx, "default", standalone.Event{URI: "event://ci/build-finished", Data: json.RawMessage(`{"build":7,"status":"passed"}`)})
			return err
		},
	}
}

// outcome are the ids of the rules that came to a result.
func outcome(r *check.Report, result string) (ids []string) {
	for _, one := range r.Results {
		if one.Result == result {
			ids = append(ids, one.ID)
		}
	}
	return ids
}

func TestOurServerHoldsTheRules(t *testing.T) {
	t.Parallel()
	report, err := check.Run(t.Context(), ours(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Run("RCH-06 EVX-25 it fails no rule, in the released profile", func(t *testing.T) {
		if got := outcome(report, check.Failed); len(got) > 0 || report.Profile != "released" {
			t.Errorf("failed: %q in the profile %q %v, want none in released", got, report.Profile, report.ShownBy)
		}
	})
	t.Run("RCH-06 what is not testable is what the receiver and the operator are needed for", func(t *testing.T) {
		want := []string{"capability-absent", "error-mode", "webhook-https", "webhook-private", "terminated"}
		if got := outcome(report, check.NotTestable); !slices.Equal(got, want) {
			t.Errorf("not testable: %q, want %q", got, want)
		}
	})
	t.Run("RCH-06 the report is a table, JSON and JUnit", func(t *testing.T) { written(t, report) })
}

func written(t *testing.T, report *check.Report) {
	var table, text, junit bytes.Buffer
	for _, err := range []error{report.Table(&table), report.JSON(&text), report.JUnit(&junit)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if !strings.Contains(table.String(), "passed        MUST    push-active") || !strings.Contains(table.String(), "profile: released") {
		t.Error(table.String())
	}
	var again check.Report
	if err := json.Unmarshal(text.Bytes(), &again); err != nil || again.Passed != report.Passed || len(again.Results) != len(report.Results) {
		t.Errorf("%v: %s", err, text.String())
	}
	var suite struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
		Skipped  int `xml:"skipped,attr"`
		Cases    []struct {
			Skipped *struct{} `xml:"skipped"`
		} `xml:"testcase"`
	}
	if err := xml.Unmarshal(junit.Bytes(), &suite); err != nil || suite.Tests != len(report.Results) || len(suite.Cases) != suite.Tests || suite.Failures != 0 {
		t.Errorf("%v: %s", err, junit.String())
	}
	skipped := 0
	for _, c := range suite.Cases {
		if c.Skipped != nil {
			skipped++
		}
	}
	if skipped != suite.Skipped || skipped != report.NotTestable+report.Failed {
		t.Errorf("%d are skipped, %d by the count", skipped, suite.Skipped)
	}
}

func TestAServerSetToTheTextHoldsAllRules(t *testing.T) {
	t.Parallel()
	report, err := check.Run(t.Context(), ours(t, func(o *standalone.Options) {
		o.Limits.Profile = "final"
		o.Catalog = append(o.Catalog, "  - {name: poll.only, uri: event://poll/only, delivery: [poll]}\n"...)
	}))
	if err != nil {
		t.Fatal(err)
	}
	if got := outcome(report, check.Failed); len(got) > 0 || report.Profile != "final" {
		t.Errorf("RCH-06 EVX-25: failed: %q in the profile %q %v, want none in final", got, report.Profile, report.ShownBy)
	}
	if slices.Contains(outcome(report, check.NotTestable), "error-mode") {
		t.Error("RCH-06: a mode that an event type lacks was not asked for")
	}
}

// As in production: the receiver's URL is public, and here leads nowhere.
func TestAddressesThatAServerMustNotTake(t *testing.T) {
	t.Parallel()
	o := ours(t, func(o *standalone.Options) { o.Limits.AllowInsecureTargets = false })
	o.Receiver = "https://receiver.invalid"
	report, err := check.Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	got := outcome(report, check.Passed)
	for _, want := range []string{"webhook-https", "webhook-private", "webhook-url", "webhook-secret"} {
		if !slices.Contains(got, want) {
			t.Errorf("RCH-06: %s did not pass: %q", want, got)
		}
	}
	if got := outcome(report, check.Failed); !slices.Contains(got, "webhook-subscribe") {
		t.Errorf("a receiver that cannot be reached is no failure: %q", got)
	}
}

func TestAServerWithoutEventsIsSaidToHaveNone(t *testing.T) {
	t.Parallel()
	mine := sdk.NewServer(&sdk.Implementation{Name: "orders", Version: "1"}, nil)
	s := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return mine }, nil))
	defer s.Close()
	report, err := check.Run(t.Context(), check.Options{URL: s.URL, Agent: "check/1"})
	if !fault.Is(err, fault.Unsupported) || !strings.Contains(err.Error(), "does not offer MCP Events") {
		t.Fatal(err)
	}
	if got := outcome(report, check.Passed); !slices.Equal(got, []string{"capability-absent"}) {
		t.Errorf("RCH-06: passed: %q", got)
	}
	s.Close()
	if _, err := check.Run(t.Context(), check.Options{URL: s.URL, Agent: "check/1"}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("a server that is not there: %v", err)
	}
	secret := check.Options{URL: s.URL + "/mcp/u/the-key", Agent: "check/1"}
	if _, err := check.Run(t.Context(), secret); err == nil || strings.Contains(err.Error(), "the-key") {
		t.Errorf("RCH-05 a secret path is shown: %v", err)
	}
	for _, bad := range []string{"", "foo", "ftp://x/", "http://"} {
		if _, err := check.Run(t.Context(), check.Options{URL: bad, Agent: "check/1"}); !fault.Is(err, fault.Invalid) {
			t.Errorf("RCH-06 the URL %q: %v", bad, err)
		}
	}
}

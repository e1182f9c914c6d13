package operate

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/test/expect"
)

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

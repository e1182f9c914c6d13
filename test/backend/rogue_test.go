package backend

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
)

// raw is a client that sees bytes.
type raw struct {
	base, session, version string
}

func (c *raw) post(ctx context.Context, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	c.header(req.Header)
	return alone.Do(req)
}

func (c *raw) header(h http.Header) {
	h.Set("Content-Type", "application/json")
	h.Set("Mcp-Protocol-Version", c.version)
	if c.session != "" {
		h.Set("Mcp-Session-Id", c.session)
	}
}

// alone keeps no connection, so that one that was cut is not taken for the next request.
var alone = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// inSession opens a session with the misbehaving backend.
func inSession(t *testing.T, base string) *raw {
	t.Helper()
	c := &raw{base: base + "/mcp", version: "2025-11-25"}
	resp, err := c.post(t.Context(), `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}`)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if c.session = resp.Header.Get("Mcp-Session-Id"); c.session == "" {
		t.Fatal("no session")
	}
	return c
}

func callOf(tool string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":"call","method":"tools/call","params":{"name":%q,"arguments":{"mark":"our mark","bytes":2097152,"count":300},"_meta":{"progressToken":"t"},"big":9007199254740993}}`, tool)
}

// outcome describes a call's answer as text: the status, the content type, the first megabyte of the body, and how the body
// ended.
func (c *raw) outcome(t *testing.T, tool string, patience time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := c.post(ctx, callOf(tool))
	if err != nil {
		return ended(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && len(b) == 1<<20 {
		err = errors.New("more than a megabyte")
	}
	return fmt.Sprintf("%d %s\n%s\n%s", resp.StatusCode, resp.Header.Get("Content-Type"), b, ended(err))
}

func ended(err error) string {
	switch {
	case err == nil:
		return "ended"
	case errors.Is(err, context.DeadlineExceeded):
		return "did not end"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "was cut"
	}
	return err.Error()
}

// TestMisbehaviour shows on the wire that each tool misbehaves as its name says.
func TestMisbehaviour(t *testing.T) {
	const (
		answer   = `"id":"call","result":\{`
		progress = `"progressToken":"t"`
	)
	wants := map[string]string{
		"ok":                   `(?s)^200 application/json.*` + answer + `.*our mark.*ended$`,
		"echo":                 `(?s)"received":` + regexp.QuoteMeta(callOf("echo")) + `.*9007199254740993.*18446744073709551617.*ended$`,
		"chatter":              `(?s)"progress":0,.*our mark.*"progress":9,.*` + answer + `.*ended$`,
		"odd_but_legal":        `(?s): a comment.*\rdata:.*ended$`,
		"error_exact":          `(?s)9007199254740993,"f":1\.0,"e":1e2.*ended$`,
		"drop":                 `^was cut$`,
		"drop_mid_body":        `(?s)"res\nwas cut$`,
		"drop_mid_stream":      `(?s)^200 text/event-stream.*` + progress + `.*"res\nwas cut$`,
		"end_without_answer":   `(?s)^200 text/event-stream.*` + progress + `[^\n]*\n\n\nended$`,
		"hang":                 `^did not end$`,
		"hang_mid_stream":      `(?s)` + progress + `.*did not end$`,
		"drip":                 `(?s)^200 text/event-stream\nd[^}]*\ndid not end$`,
		"heartbeats_only":      `(?s): still here.*: still here.*did not end$`,
		"garbage_json":         `(?s)"id":\nended$`,
		"garbage_events":       `(?s)data: null.*after garbage.*ended$`,
		"wrong_type":           `(?s)^200 text/html\n<html>`,
		"json_as_html":         `(?s)^200 text/html\n.*` + answer,
		"stream_as_json":       `(?s)^200 text/event-stream\n\{"jsonrpc".*` + answer,
		"empty":                `^200 application/json\n\nended$`,
		"accepted":             `^202 `,
		"batch":                `(?s)\n\[\{.*` + answer + `.*\}\]\nended$`,
		"bad_result":           `"result":"a string"`,
		"no_result":            `\{"jsonrpc":"2.0","id":"call"\}`,
		"both_results":         answer + `.*"error":`,
		"invalid_utf8":         `"text":"\x{FFFD}{2}"`,
		"deep":                 `\[{300}\]{300}`,
		"huge_answer":          `more than a megabyte$`,
		"huge_event":           `more than a megabyte$`,
		"endless_line":         `more than a megabyte$`,
		"endless_body":         `more than a megabyte$`,
		"flood":                `(?s)"progress":299,.*` + answer + `.*ended$`,
		"wrong_id":             `"id":"another"`,
		"wrong_id_first":       `(?s)"id":"another".*` + answer,
		"null_id":              `"id":null`,
		"two_answers":          `(?s)` + answer + `.*first.*` + answer + `.*second.*ended$`,
		"reordered_progress":   `(?s)"progress":3,.*"progress":1,.*"progress":2,.*"progress":0,.*` + answer,
		"foreign_progress":     `(?s)"progressToken":"somebody-else".*` + answer,
		"late_progress":        `(?s)` + answer + `.*` + progress + `.*ended$`,
		"unknown_notification": `(?s)notifications/unheard_of.*` + answer,
		"unknown_request":      `(?s)"id":"unknown-\d+","method":"nobody/knows".*did not end$`,
		"request_in_stateless": `(?s)"method":"elicitation/create".*our mark.*` + answer,
		"no_patience":          `(?s)"method":"elicitation/create".*` + answer + `.*ended$`,
		"endless_questions":    `"resultType":"input_required","requestState":"state-\d+"`,
		"strange_questions":    `nobody/knows`,
		"strange_type":         `"resultType":"unheard_of"`,
		"same_id_twice":        `(?s)"id":("same-\d+").*"id":"same-\d+".*did not end$`,
		"odd_ids":              `(?s)"id":90071992547\d+,"method":"elicitation/create".*did not end$`,
		"lose_session":         `^404 `,
		"status_401":           `^401 `,
		"status_429":           `^429 `,
		"status_500":           `^500 `,
		"status_503":           `^503 `,
		"redirect":             `^307 `,
	}
	base := serve(t, Misbehaving)
	for name := range behaviours {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			want, ok := wants[name]
			if !ok {
				t.Fatal("nothing says what is wanted of it")
			}
			patience := 20 * time.Second
			if strings.HasSuffix(want, "did not end$") {
				patience = 500 * time.Millisecond
			}
			got := inSession(t, base).outcome(t, name, patience)
			for !regexp.MustCompile(want).MatchString(got) && patience < 5*time.Second { // a busy machine may need longer
				patience *= 4
				got = inSession(t, base).outcome(t, name, patience)
			}
			if !regexp.MustCompile(want).MatchString(got) {
				t.Errorf("got %.2000q, want %s", got, want)
			}
		})
	}
}

// TestLostSession shows that a lost session stays lost, and a new one works.
func TestLostSession(t *testing.T) {
	base := serve(t, Misbehaving)
	c := inSession(t, base)
	c.outcome(t, "lose_session", time.Minute)
	if got := c.outcome(t, "ok", time.Minute); !strings.HasPrefix(got, "404") {
		t.Errorf("the lost session answers %q", got)
	}
	if got := inSession(t, base).outcome(t, "ok", time.Minute); !strings.HasPrefix(got, "200") {
		t.Errorf("a new session answers %q", got)
	}
}

// TestOddIDs shows that ids count as exact when their bytes come back, and not when
// they went through a double.
func TestOddIDs(t *testing.T) {
	base := serve(t, Misbehaving)
	exact := func(id json.RawMessage) string { return string(id) }
	if got := answerAll(t, inSession(t, base), "odd_ids", exact); !strings.Contains(got, "9 of 9 came back exact") {
		t.Errorf("with exact ids: %s", got)
	}
	double := func(id json.RawMessage) string {
		var v any
		_ = json.Unmarshal(id, &v)
		b, _ := json.Marshal(v)
		return string(b)
	}
	c := inSession(t, base)
	resp, err := c.post(t.Context(), fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{}}`, double(json.RawMessage("9007199254740995"))))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest || state(t, base).Requests["answers to no question"] != 1 {
		t.Errorf("an answer to no question: status %d, state %v", resp.StatusCode, state(t, base).Requests)
	}
}

// answerAll calls a tool, answers each of its requests under the id that answered
// makes of it, and returns the result.
func answerAll(t *testing.T, c *raw, tool string, answered func(json.RawMessage) string) string {
	t.Helper()
	resp, err := c.post(t.Context(), callOf(tool))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		data, ok := bytes.CutPrefix(lines.Bytes(), []byte("data: "))
		if !ok {
			continue
		}
		var m message
		if err := json.Unmarshal(data, &m); err != nil {
			t.Fatalf("%v: %s", err, data)
		}
		if m.Method == "" {
			return string(data)
		}
		reply, err := c.post(t.Context(), fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"action":"accept","content":{}}}`, answered(m.ID)))
		if err != nil {
			t.Fatal(err)
		}
		reply.Body.Close()
	}
	t.Fatal("no result")
	return ""
}

// TestMisbehavingLists shows what the URL chooses.
func TestMisbehavingLists(t *testing.T) {
	base := serve(t, Misbehaving)
	c := inSession(t, base)
	for how, want := range map[string]string{
		"":          `"name":"ok"`,
		"loop":      `"nextCursor":"again"`,
		"duplicate": `(?s)"name":"ok".*"name":"ok"`,
		"garbage":   `\{"name":17\}`,
	} {
		c.base = base + "/mcp?list=" + how
		resp, err := c.post(t.Context(), `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if !regexp.MustCompile(want).Match(b) {
			t.Errorf("list=%s: %.500s, want %s", how, b, want)
		}
	}
}

// TestMisbehavingStreams shows what the URL chooses, on the streams with and without a session.
func TestMisbehavingStreams(t *testing.T) {
	base := serve(t, Misbehaving)
	for how, want := range map[string]string{
		"refuse":  `^405 |^404 .*-32601`,
		"drop":    `(?s)list_changed.*"meth\nwas cut$`,
		"garbage": `(?s)data: null.*list_changed.*did not end$`,
		"flood":   `(?s)(list_changed.*){100}`,
		"foreign": `(?s)nobody's.*never-asked-for.*did not end$`,
		"":        `(?s)^200 text/event-stream.*did not end$`,
	} {
		for _, version := range []string{"2025-11-25", v20260728} {
			t.Run(how+" "+version, func(t *testing.T) {
				t.Parallel()
				patience := 500 * time.Millisecond
				got := stream(t, base, how, version, patience)
				for !regexp.MustCompile(want).MatchString(got) && patience < 5*time.Second { // a busy machine may need longer
					patience *= 4
					got = stream(t, base, how, version, patience)
				}
				if !regexp.MustCompile(want).MatchString(got) {
					t.Errorf("got %.1000q, want %s", got, want)
				}
			})
		}
	}
}

// stream opens a revision's notification stream for the given time and describes the answer.
func stream(t *testing.T, base, how, version string, patience time.Duration) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c := inSession(t, base)
	c.version, c.base = version, base+"/mcp?stream="+how
	var resp *http.Response
	var err error
	if version == v20260728 {
		resp, err = c.post(ctx, `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{}}}`)
	} else {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, c.base, nil)
		c.header(req.Header)
		resp, err = alone.Do(req)
	}
	if err != nil {
		return ended(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return fmt.Sprintf("%d %s %s\n%s", resp.StatusCode, resp.Header.Get("Content-Type"), b, ended(err))
}

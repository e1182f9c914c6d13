//go:build unix

package fleet

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// behaviour is a backend's tool and the outcome that a client must see.
type behaviour struct {
	tool      string
	weight    int // calls per thousand
	arguments map[string]any
	// check returns an error that describes a wrong outcome. nil accepts any outcome.
	check func(c *caller, r request, o *outcome) error
	// sessionOnly reserves the tool for clients with a session of their own at the backend.
	sessionOnly bool
	// answerAll makes the client answer every question, because the backend waits for each answer.
	answerAll bool
}

// soundTools are tools of the well-behaved backends.
var soundTools = []behaviour{
	{tool: "test_echo", weight: 300, check: wantText("MARK")},
	{tool: "test_tool_with_progress", weight: 150, check: both(wantText("done"), wantProgress(0, 50, 100))},
	{tool: "test_elicitation", weight: 200, arguments: map[string]any{"message": "MARK"}, check: wantOneAnswer, answerAll: true},
	{tool: "test_sampling", weight: 100, arguments: map[string]any{"prompt": "MARK"}, check: unlessRefused(wantText("the model said: MARK")), answerAll: true},
	{tool: "test_input_required_result_multi_round", weight: 100, check: unlessRefused(wantText("MARK likes MARK")), answerAll: true},
	{tool: "test_input_required_result_list_roots", weight: 50, check: unlessRefused(wantText("file:///MARK")), answerAll: true},
	{tool: "test_wait", weight: 50, arguments: map[string]any{"milliseconds": 50}, check: wantText("waited")},
}

// rogueTools are tools of the misbehaving backend.
var rogueTools = []behaviour{
	{tool: "ok", weight: 200, check: wantText(`"ok"`)},
	{tool: "echo", weight: 50, check: both(wantText(`"n":9007199254740993,"f":1.0,"s":"\u00e9\/"`), wantText(`"example.com/n":18446744073709551617`))},
	{tool: "chatter", weight: 100, arguments: map[string]any{"count": 30}, check: both(wantText("chattered"), wantProgressUpTo(30))},
	{tool: "odd_ids", weight: 60, check: exactIDs, answerAll: true},
	{tool: "odd_but_legal", weight: 20, check: wantText("odd but legal")},
	{tool: "error_exact", weight: 20, check: wantErrorData(-31999, `{"n":9007199254740993,"f":1.0,"e":1e2}`)},
	{tool: "drop", weight: 20, check: wantError},
	{tool: "drop_mid_body", weight: 20, check: wantError},
	{tool: "drop_mid_stream", weight: 20, check: wantError},
	{tool: "end_without_answer", weight: 20, check: wantError},
	{tool: "hang", weight: 8, check: wantError},
	{tool: "hang_mid_stream", weight: 8, check: wantError},
	{tool: "heartbeats_only", weight: 8, check: wantError},
	{tool: "drip", weight: 8, check: wantText("dripped")},
	{tool: "garbage_json", weight: 20, check: wantError},
	{tool: "garbage_events", weight: 20, check: wantText("after garbage")},
	{tool: "wrong_type", weight: 20, check: wantError},
	{tool: "json_as_html", weight: 10, check: wantError},
	{tool: "stream_as_json", weight: 10, check: wantError},
	{tool: "empty", weight: 20, check: wantError},
	{tool: "accepted", weight: 20, check: wantError},
	{tool: "batch", weight: 10},
	{tool: "bad_result", weight: 10},
	{tool: "no_result", weight: 10, check: wantError},
	{tool: "both_results", weight: 10, check: wantError},
	{tool: "invalid_utf8", weight: 10},
	{tool: "deep", weight: 5, check: wantError},
	{tool: "huge_answer", weight: 5, arguments: map[string]any{"bytes": 1 << 20}, check: wantText("xxxx")},
	{tool: "huge_event", weight: 2, arguments: map[string]any{"bytes": 9 << 20}, check: wantError},
	{tool: "endless_line", weight: 2, check: wantError},
	{tool: "endless_body", weight: 2, check: wantError},
	{tool: "flood", weight: 10, arguments: map[string]any{"count": 500}, check: both(wantText("flooded"), wantProgressUpTo(500))},
	{tool: "wrong_id", weight: 20, check: wantError},
	{tool: "wrong_id_first", weight: 20, check: wantText("right")},
	{tool: "null_id", weight: 20, check: wantError},
	{tool: "two_answers", weight: 20, check: wantText("first")},
	{tool: "same_id_twice", weight: 10},
	{tool: "reordered_progress", weight: 30, check: both(wantText("reordered"), wantProgress(3, 1, 2, 2, 0, 4))},
	{tool: "foreign_progress", weight: 30, check: both(wantText("foreign"), wantProgress())},
	{tool: "late_progress", weight: 20, check: wantText("late")},
	{tool: "unknown_notification", weight: 20, check: wantText("unheard of")},
	{tool: "unknown_request", weight: 20, check: wantResult},
	{tool: "request_in_stateless", weight: 20, check: wantText("asked")},
	{tool: "no_patience", weight: 30, check: wantText("did not wait")},
	{tool: "endless_questions", weight: 5},
	{tool: "strange_questions", weight: 10},
	{tool: "strange_type", weight: 10},
	{tool: "lose_session", weight: 10, check: wantError, sessionOnly: true},
	{tool: "status_401", weight: 10, check: wantError},
	{tool: "status_429", weight: 10, check: wantError},
	{tool: "status_500", weight: 10, check: wantError},
	{tool: "status_503", weight: 10, check: wantError},
	{tool: "redirect", weight: 10, check: wantError},
}

// draw chooses a random behaviour according to the weights.
func draw(of []behaviour, sessionBased bool) behaviour {
	sum := 0
	for _, b := range of {
		sum += b.weight
	}
	for n := rand.IntN(sum); ; n = rand.IntN(sum) {
		for _, b := range of {
			if n -= b.weight; n < 0 {
				if b.sessionOnly && !sessionBased {
					break
				}
				return b
			}
		}
	}
}

type check = func(c *caller, r request, o *outcome) error

// wantText requires a result that contains the text. MARK in the text stands for the call's mark.
func wantText(text string) check {
	return func(_ *caller, r request, o *outcome) error {
		want := strings.ReplaceAll(text, "MARK", r.mark)
		if o.response.Error != nil || !strings.Contains(o.text(), want) {
			return fmt.Errorf("want a result with %q", want)
		}
		return nil
	}
}

func both(one, other check) check {
	return func(c *caller, r request, o *outcome) error {
		if err := one(c, r, o); err != nil {
			return err
		}
		return other(c, r, o)
	}
}

// wantResult requires a result, whatever it is.
func wantResult(_ *caller, _ request, o *outcome) error {
	if o.response.Error != nil {
		return fmt.Errorf("want a result")
	}
	return nil
}

// wantError requires an error, whatever it is.
func wantError(_ *caller, _ request, o *outcome) error {
	if o.response.Error == nil {
		return fmt.Errorf("want an error")
	}
	return nil
}

// wantErrorData requires an error with this code and exactly this data.
func wantErrorData(code int, data string) check {
	return func(_ *caller, _ request, o *outcome) error {
		if e := o.response.Error; e == nil || e.Code != code || string(e.Data) != data {
			return fmt.Errorf("want error %d with %s", code, data)
		}
		return nil
	}
}

// wantProgress requires these progress values, in this order, if the call had a progress token, and no progress otherwise.
func wantProgress(values ...float64) check {
	return func(_ *caller, r request, o *outcome) error {
		want := values
		if r.token == nil {
			want = nil
		}
		if got := o.progress(); !slices.Equal(got, want) {
			return fmt.Errorf("the progress is %v, want %v", got, want)
		}
		return nil
	}
}

// wantProgressUpTo requires progress from 0 to n-1.
func wantProgressUpTo(n int) check {
	values := make([]float64, n)
	for i := range values {
		values[i] = float64(i)
	}
	return wantProgress(values...)
}

// unlessRefused applies the check if the client accepted all questions. Otherwise the backend decides how the call ends.
func unlessRefused(want check) check {
	return func(c *caller, r request, o *outcome) error {
		if slices.ContainsFunc(o.answers, func(how string) bool { return how != accept }) {
			return nil
		}
		if len(o.answers) == 0 {
			return fmt.Errorf("the client was asked no question")
		}
		return want(c, r, o)
	}
}

// wantOneAnswer requires one question, and a result that repeats the client's answer to it.
func wantOneAnswer(c *caller, r request, o *outcome) error {
	if len(o.answers) != 1 {
		return fmt.Errorf("the client was asked %d questions, want 1", len(o.answers))
	}
	switch how := o.answers[0]; how {
	case failing: // the backend's SDK decides how the call ends
		return nil
	case accept:
		return wantText("action=accept, content={")(c, r, o)
	default:
		return wantText("action="+how)(c, r, o)
	}
}

// exactIDs requires that the backend got back all of its ids unchanged.
func exactIDs(c *caller, r request, o *outcome) error {
	if strings.Contains(o.text(), "there are no requests in this revision") {
		return nil
	}
	return wantText("9 of 9 came back exact")(c, r, o)
}

// sameToken reports whether the params have exactly this progress token.
func sameToken(params, token json.RawMessage) bool {
	var p struct {
		ProgressToken json.RawMessage `json:"progressToken"`
	}
	return json.Unmarshal(params, &p) == nil && string(p.ProgressToken) == string(token)
}

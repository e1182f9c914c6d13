//go:build unix

package fleet

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// behaviour is a tool of a backend and what a client gets of it.
type behaviour struct {
	tool string
	// often is how many of a thousand calls it is.
	often     int
	arguments map[string]any
	// check says what is wrong with an outcome; nil takes any that comes.
	check func(c *caller, r request, o *outcome) error
	// sessionOnly leaves it to clients with a session of their own at the backend.
	sessionOnly bool
	// answered has all questions answered: the backend waits for each.
	answered bool
}

// soundTools are called at the backends that behave.
var soundTools = []behaviour{
	{tool: "test_echo", often: 300, check: says("MARK")},
	{tool: "test_tool_with_progress", often: 150, check: both(says("done"), notified(0, 50, 100))},
	{tool: "test_elicitation", often: 200, arguments: map[string]any{"message": "MARK"}, check: repeats, answered: true},
	{tool: "test_sampling", often: 100, arguments: map[string]any{"prompt": "MARK"}, check: unlessRefused(says("the model said: MARK")), answered: true},
	{tool: "test_input_required_result_multi_round", often: 100, check: unlessRefused(says("MARK likes MARK")), answered: true},
	{tool: "test_input_required_result_list_roots", often: 50, check: unlessRefused(says("file:///MARK")), answered: true},
	{tool: "test_wait", often: 50, arguments: map[string]any{"milliseconds": 50}, check: says("waited")},
}

// rogueTools are called at the backend that misbehaves.
var rogueTools = []behaviour{
	{tool: "ok", often: 200, check: says(`"ok"`)},
	{tool: "echo", often: 50, check: both(says(`"n":9007199254740993,"f":1.0,"s":"\u00e9\/"`), says(`"example.com/n":18446744073709551617`))},
	{tool: "chatter", often: 100, arguments: map[string]any{"count": 30}, check: both(says("chattered"), chattered(30))},
	{tool: "odd_ids", often: 60, check: exactIDs, answered: true},
	{tool: "odd_but_legal", often: 20, check: says("odd but legal")},
	{tool: "error_exact", often: 20, check: fails(-31999, `{"n":9007199254740993,"f":1.0,"e":1e2}`)},
	{tool: "drop", often: 20, check: failed},
	{tool: "drop_mid_body", often: 20, check: failed},
	{tool: "drop_mid_stream", often: 20, check: failed},
	{tool: "end_without_answer", often: 20, check: failed},
	{tool: "hang", often: 8, check: failed},
	{tool: "hang_mid_stream", often: 8, check: failed},
	{tool: "heartbeats_only", often: 8, check: failed},
	{tool: "drip", often: 8, check: says("dripped")},
	{tool: "garbage_json", often: 20, check: failed},
	{tool: "garbage_events", often: 20, check: says("after garbage")},
	{tool: "wrong_type", often: 20, check: failed},
	{tool: "json_as_html", often: 10, check: failed},
	{tool: "stream_as_json", often: 10, check: failed},
	{tool: "empty", often: 20, check: failed},
	{tool: "accepted", often: 20, check: failed},
	{tool: "batch", often: 10},
	{tool: "bad_result", often: 10},
	{tool: "no_result", often: 10, check: failed},
	{tool: "both_results", often: 10, check: failed},
	{tool: "invalid_utf8", often: 10},
	{tool: "deep", often: 5, check: failed},
	{tool: "huge_answer", often: 5, arguments: map[string]any{"bytes": 1 << 20}, check: says("xxxx")},
	{tool: "huge_event", often: 2, arguments: map[string]any{"bytes": 9 << 20}, check: failed},
	{tool: "endless_line", often: 2, check: failed},
	{tool: "endless_body", often: 2, check: failed},
	{tool: "flood", often: 10, arguments: map[string]any{"count": 500}, check: both(says("flooded"), chattered(500))},
	{tool: "wrong_id", often: 20, check: failed},
	{tool: "wrong_id_first", often: 20, check: says("right")},
	{tool: "null_id", often: 20, check: failed},
	{tool: "two_answers", often: 20, check: says("first")},
	{tool: "same_id_twice", often: 10},
	{tool: "reordered_progress", often: 30, check: both(says("reordered"), notified(3, 1, 2, 2, 0, 4))},
	{tool: "foreign_progress", often: 30, check: both(says("foreign"), notified())},
	{tool: "late_progress", often: 20, check: says("late")},
	{tool: "unknown_notification", often: 20, check: says("unheard of")},
	{tool: "unknown_request", often: 20, check: answers},
	{tool: "request_in_stateless", often: 20, check: says("asked")},
	{tool: "no_patience", often: 30, check: says("did not wait")},
	{tool: "endless_questions", often: 5},
	{tool: "strange_questions", often: 10},
	{tool: "strange_type", often: 10},
	{tool: "lose_session", often: 10, check: failed, sessionOnly: true},
	{tool: "status_401", often: 10, check: failed},
	{tool: "status_429", often: 10, check: failed},
	{tool: "status_500", often: 10, check: failed},
	{tool: "status_503", often: 10, check: failed},
	{tool: "redirect", often: 10, check: failed},
}

// draw chooses one of the behaviours, as often as each is to come.
func draw(of []behaviour, sessionBased bool) behaviour {
	sum := 0
	for _, b := range of {
		sum += b.often
	}
	for n := rand.IntN(sum); ; n = rand.IntN(sum) {
		for _, b := range of {
			if n -= b.often; n < 0 {
				if b.sessionOnly && !sessionBased {
					break
				}
				return b
			}
		}
	}
}

type check = func(c *caller, r request, o *outcome) error

// says wants a result that holds the text; MARK stands for the mark of the call.
func says(text string) check {
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

// answers wants any result.
func answers(_ *caller, _ request, o *outcome) error {
	if o.response.Error != nil {
		return fmt.Errorf("want a result")
	}
	return nil
}

// failed wants an error.
func failed(_ *caller, _ request, o *outcome) error {
	if o.response.Error == nil {
		return fmt.Errorf("want an error")
	}
	return nil
}

func fails(code int, data string) check {
	return func(_ *caller, _ request, o *outcome) error {
		if e := o.response.Error; e == nil || e.Code != code || string(e.Data) != data {
			return fmt.Errorf("want error %d with %s", code, data)
		}
		return nil
	}
}

// notified wants these progress values, in this order, when the call had a token.
func notified(values ...float64) check {
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

// chattered wants progress from 0 to n-1.
func chattered(n int) check {
	values := make([]float64, n)
	for i := range values {
		values[i] = float64(i)
	}
	return notified(values...)
}

// unlessRefused holds the outcome to check when all questions were accepted. Else the call ends in
// whatever way the backend has for that.
func unlessRefused(want check) check {
	return func(c *caller, r request, o *outcome) error {
		if slices.ContainsFunc(o.answers, func(how string) bool { return how != accept }) {
			return nil
		}
		if len(o.answers) == 0 {
			return fmt.Errorf("nobody was asked")
		}
		return want(c, r, o)
	}
}

// repeats wants the answer that was given, and no other.
func repeats(c *caller, r request, o *outcome) error {
	if len(o.answers) != 1 {
		return fmt.Errorf("it was asked %d times", len(o.answers))
	}
	switch how := o.answers[0]; how {
	case failing: // the backend's SDK makes of it what it likes
		return nil
	case accept:
		return says("action=accept, content={")(c, r, o)
	default:
		return says("action="+how)(c, r, o)
	}
}

// exactIDs wants all ids of the backend back as they were.
func exactIDs(c *caller, r request, o *outcome) error {
	if strings.Contains(o.text(), "there are no requests in this revision") {
		return nil
	}
	return says("9 of 9 came back exact")(c, r, o)
}

// sameToken compares tokens as JSON.
func sameToken(params, token json.RawMessage) bool {
	var p struct {
		ProgressToken json.RawMessage `json:"progressToken"`
	}
	return json.Unmarshal(params, &p) == nil && string(p.ProgressToken) == string(token)
}

package backend

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// behaviour is a tool of the misbehaving backend.
type behaviour struct {
	description string
	do          func(x *exchange)
}

// behaviours holds the behaviours by the name of the tool. Unless the description says otherwise, a good client of the
// backend ends the call with an error in time and stays usable.
var behaviours = map[string]behaviour{
	// sound
	"ok":      {"Answers as it should.", func(x *exchange) { x.say("ok") }},
	"echo":    {"Answers with the message that it got, byte for byte, and with members that nobody knows.", echoBytes},
	"chatter": {"Sends count progress messages with the mark, in order, and answers.", chatter},
	"odd_ids": {"Asks the user under ids that are large, fractional, escaped, and answers with those that came back exact (before 2026-07-28).", oddIDs},
	"odd_but_legal": {"Answers on a stream that uses all of the format: comments, several data lines, CR, ids, retry, unknown fields. " +
		"The client gets the answer.", oddButLegal},
	"error_exact": {"Answers with an error whose data has big integers; the client gets it byte for byte.", func(x *exchange) {
		x.json(http.StatusOK, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-31999,"message":"as it is","data":{"n":9007199254740993,"f":1.0,"e":1e2}}}`, x.ID))
	}},

	// connections
	"drop":               {"Cuts the connection without a byte.", func(x *exchange) { x.drop() }},
	"drop_mid_body":      {"Cuts the connection within a JSON body.", dropMidBody},
	"drop_mid_stream":    {"Cuts the connection within an event.", dropMidStream},
	"end_without_answer": {"Ends the stream in order, without an answer.", func(x *exchange) { x.progress(x.token, 1); x.begin() }},
	"hang":               {"Never answers, with no header either.", func(x *exchange) { x.hang() }},
	"hang_mid_stream":    {"Begins a stream and never answers.", func(x *exchange) { x.begin(); x.progress(x.token, 1); x.hang() }},
	"drip":               {"Sends a byte of its answer every 20 ms; the client gets the answer.", drip},
	"heartbeats_only":    {"Sends comments for ever and no answer.", heartbeatsOnly},

	// forms
	"garbage_json":   {"Answers with half a JSON text.", func(x *exchange) { x.json(http.StatusOK, `{"jsonrpc":"2.0","id":`) }},
	"garbage_events": {"Sends malformed events, then answers; the client gets the answer and none of the rest.", garbageEvents},
	"wrong_type":     {"Answers with HTML.", func(x *exchange) { x.other("text/html", "<html><body>Sign in</body></html>") }},
	"json_as_html":   {"Answers well, but says that it is HTML.", func(x *exchange) { x.other("text/html", x.response(x.content("html"))) }},
	"stream_as_json": {"Answers with JSON, but says that it is a stream.", func(x *exchange) { x.other("text/event-stream", x.response(x.content("json"))) }},
	"empty":          {"Answers with nothing.", func(x *exchange) { x.json(http.StatusOK, "") }},
	"accepted":       {"Answers 202, as to a notification.", func(x *exchange) { x.w.WriteHeader(http.StatusAccepted) }},
	"batch":          {"Answers with an array.", func(x *exchange) { x.json(http.StatusOK, "["+x.response(x.content("batch"))+"]") }},
	"bad_result":     {"Answers with a result that is no object.", func(x *exchange) { x.result(`"a string"`) }},
	"no_result":      {"Answers with neither result nor error.", func(x *exchange) { x.json(http.StatusOK, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s}`, x.ID)) }},
	"both_results": {"Answers with a result and an error.", func(x *exchange) {
		x.json(http.StatusOK, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s,"error":{"code":1,"message":"both"}}`, x.ID, x.content("both")))
	}},
	"invalid_utf8": {"Answers with bytes that are no UTF-8.", func(x *exchange) {
		x.json(http.StatusOK, x.response("{\"content\":[{\"type\":\"text\",\"text\":\"\xff\xfe\"}]}"))
	}},
	"deep": {"Answers with arrays in arrays, count deep (100,000).", func(x *exchange) {
		n := x.times(100_000)
		x.result(`{"content":[],"structuredContent":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}`)
	}},

	// sizes
	"huge_answer": {"Answers with a text of so many bytes (64 MiB) as JSON.", func(x *exchange) { x.say("%s", strings.Repeat("x", x.size(64<<20))) }},
	"huge_event":  {"Answers with a text of so many bytes (64 MiB) as an event.", func(x *exchange) { x.begin(); x.say("%s", strings.Repeat("x", x.size(64<<20))) }},
	"endless_line": {"Sends one line without an end.", func(x *exchange) {
		x.write("data: ")
		for x.r.Context().Err() == nil {
			x.write(strings.Repeat("x", 64<<10))
		}
	}},
	"endless_body": {"Sends a JSON text without an end.", func(x *exchange) {
		x.json(http.StatusOK, `{"jsonrpc":"2.0","id":1,"result":"`)
		for x.r.Context().Err() == nil {
			_, _ = x.w.Write([]byte(strings.Repeat("x", 64<<10)))
		}
	}},
	"flood": {"Sends count (10,000) progress messages as fast as it can, then answers; the client gets the answer.", func(x *exchange) {
		for i := range x.times(10_000) {
			x.progress(x.token, float64(i))
		}
		x.begin()
		x.say("flooded")
	}},

	// ids and order
	"wrong_id": {"Answers under another id.", func(x *exchange) {
		x.json(http.StatusOK, fmt.Sprintf(`{"jsonrpc":"2.0","id":"another","result":%s}`, x.content("wrong")))
	}},
	"wrong_id_first": {"Answers under another id, then under the right one; the client gets the second.", func(x *exchange) {
		x.event(fmt.Sprintf(`{"jsonrpc":"2.0","id":"another","result":%s}`, x.content("wrong")))
		x.say("right")
	}},
	"null_id": {"Answers with an error under the id null.", func(x *exchange) {
		x.json(http.StatusOK, `{"jsonrpc":"2.0","id":null,"error":{"code":-32603,"message":"which?"}}`)
	}},
	"two_answers": {"Answers twice; the client gets the first.", func(x *exchange) { x.begin(); x.say("first"); x.say("second") }},
	"same_id_twice": {"Asks two questions under one id, and answers with what came (before 2026-07-28). " +
		"The client may be asked once or twice, and the call ends.", sameIDTwice},
	"reordered_progress": {"Sends progress that goes back and forth; the order stays.", func(x *exchange) {
		for _, at := range []float64{3, 1, 2, 2, 0, 4} {
			x.progress(x.token, at)
		}
		x.begin()
		x.say("reordered")
	}},
	"foreign_progress": {"Sends progress for tokens that are not the call's; the client gets none of it.", func(x *exchange) {
		for _, token := range []string{`0`, `1`, `"1"`, `"somebody-else"`, `9007199254740993`, `null`, `{}`} {
			if token != string(x.token) {
				x.progress(json.RawMessage(token), 1)
			}
		}
		x.begin()
		x.say("foreign")
	}},
	"late_progress": {"Sends progress after the answer; the client gets the answer.", func(x *exchange) {
		x.begin()
		x.say("late")
		x.progress(x.token, 1)
	}},

	// requests and notifications
	"unknown_notification": {"Sends a notification that nobody knows, then answers.", func(x *exchange) {
		x.event(`{"jsonrpc":"2.0","method":"notifications/unheard_of","params":{"n":1}}`)
		x.say("unheard of")
	}},
	"unknown_request": {"Sends a request that nobody knows, and answers with the error that it gets (before 2026-07-28).", func(x *exchange) {
		x.say("%s", x.ask(x.next("unknown"), "nobody/knows", `{}`))
	}},
	"request_in_stateless": {"Asks by a request, which 2026-07-28 forbids, and answers after it.", func(x *exchange) {
		x.event(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":%s}`, x.next("stateless"), x.question()))
		x.say("asked")
	}},
	"no_patience": {"Asks the user and answers without waiting (before 2026-07-28); a late answer harms nobody.", func(x *exchange) {
		x.event(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":%s}`, x.next("hurry"), x.question()))
		x.say("did not wait")
	}},
	"endless_questions": {"Answers each time that more input is required (2026-07-28).", func(x *exchange) {
		x.result(fmt.Sprintf(`{"resultType":"input_required","requestState":%s,"inputRequests":{"again":{"method":"elicitation/create","params":%s}}}`,
			x.next("state"), x.question()))
	}},
	"strange_questions": {"Answers that input is required of kinds that nobody knows (2026-07-28).", func(x *exchange) {
		x.result(`{"resultType":"input_required","inputRequests":{"a":{"method":"nobody/knows","params":{}},"b":17,"c":null}}`)
	}},
	"strange_type": {"Answers with a resultType that nobody knows (2026-07-28).", func(x *exchange) {
		x.result(`{"resultType":"unheard_of","content":[]}`)
	}},

	// HTTP
	"lose_session": {"Forgets the session, which every further request is told by 404; the client's next call works.", func(x *exchange) {
		x.forget(x.session)
		x.json(http.StatusNotFound, `{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"no such session"}}`)
	}},
	"status_401": {"Answers 401.", func(x *exchange) {
		x.w.Header().Set("WWW-Authenticate", `Bearer resource_metadata="http://127.0.0.1:1/"`)
		x.w.WriteHeader(http.StatusUnauthorized)
	}},
	"status_429": {"Answers 429 and when to come again.", func(x *exchange) {
		x.w.Header().Set("Retry-After", "3600")
		x.w.WriteHeader(http.StatusTooManyRequests)
	}},
	"status_500": {"Answers 500 with a page.", func(x *exchange) { http.Error(x.w, "a stack trace with a secret", http.StatusInternalServerError) }},
	"status_503": {"Answers 503.", func(x *exchange) { x.w.WriteHeader(http.StatusServiceUnavailable) }},
	"redirect": {"Sends the client elsewhere, where it must not take its credentials.", func(x *exchange) {
		http.Redirect(x.w, x.r, "http://127.0.0.1:1/elsewhere", http.StatusTemporaryRedirect)
	}},
}

func (x *exchange) times(otherwise int) int {
	if x.count > 0 {
		return x.count
	}
	return otherwise
}

func (x *exchange) size(otherwise int) int {
	if x.bytes > 0 {
		return x.bytes
	}
	return otherwise
}

// next returns a unique id as a JSON string.
func (x *exchange) next(name string) string {
	return fmt.Sprintf(`"%s-%d"`, name, x.turn.Add(1))
}

// other answers with a body of another type.
func (x *exchange) other(contentType, body string) {
	x.w.Header().Set("Content-Type", contentType)
	_, _ = x.w.Write([]byte(body))
}

// echoBytes answers with a result that contains the request's bytes and numbers that a double cannot hold.
func echoBytes(x *exchange) {
	x.result(fmt.Sprintf(`{"resultType":"complete","content":[],"structuredContent":{"received":%s},"unknown":{"n":9007199254740993,"f":1.0,"s":"\u00e9\/"},"_meta":{"example.com/n":18446744073709551617}}`, x.body))
}

func chatter(x *exchange) {
	for i := range x.times(10) {
		x.progress(x.token, float64(i))
	}
	x.begin()
	x.say("chattered")
}

func dropMidBody(x *exchange) {
	x.w.Header().Set("Content-Type", "application/json")
	x.w.Header().Set("Content-Length", "1000")
	x.write(`{"jsonrpc":"2.0","id":1,"res`)
	x.drop()
}

func dropMidStream(x *exchange) {
	x.progress(x.token, 1)
	x.write("data: {\"jsonrpc\":\"2.0\",\"id\":1,\"res")
	x.drop()
}

func drip(x *exchange) {
	for _, b := range []byte("data: " + x.response(x.content("dripped")) + "\n\n") {
		x.write(string(b))
		if !x.pause(20 * time.Millisecond) {
			return
		}
	}
}

func heartbeatsOnly(x *exchange) {
	for x.pause(100 * time.Millisecond) {
		x.write(": still here\n\n")
	}
}

// pause reports whether the client is still there.
func (x *exchange) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-x.r.Context().Done():
		return false
	}
}

func garbageEvents(x *exchange) {
	for _, bad := range malformed {
		x.event(bad)
	}
	x.say("after garbage")
}

// oddButLegal breaks the answer into data lines where JSON lets whitespace be.
func oddButLegal(x *exchange) {
	answer := x.response(x.content("odd but legal"))
	head, tail, _ := strings.Cut(answer, `"result":`)
	x.write("\xef\xbb\xbf: a comment\n\n")
	x.write("retry: 17\nunknown: field\nid: 1\ndata\n\n")
	x.write("event: message\r\nid:2\r\ndata:" + head + "\r\ndata: \"result\":\rdata:" + tail + "\n\n")
}

// oddIDs asks under ids that a client which reads numbers as doubles would change.
func oddIDs(x *exchange) {
	if x.stateless {
		x.say("there are no requests in this revision")
		return
	}
	n := x.turn.Add(1)
	exact := []string{}
	for _, id := range []string{
		fmt.Sprintf("%d", int64(1)<<53+2*n+1),
		fmt.Sprintf("-%d", int64(1)<<53+2*n+1),
		fmt.Sprintf("%d00000000000000000000", n),
		fmt.Sprintf("%d.5", n),
		fmt.Sprintf("%d.0", n),
		fmt.Sprintf("%de2", n),
		fmt.Sprintf(`"%d"`, n),
		fmt.Sprintf(`"\u0041\/%d\n"`, n),
		fmt.Sprintf(`"%d%s"`, n, strings.Repeat("x", 200)),
	} {
		if x.ask(id, "elicitation/create", x.question()) != nil {
			exact = append(exact, id)
		}
	}
	x.say("%d of 9 came back exact: %s", len(exact), strings.Join(exact, " "))
}

func sameIDTwice(x *exchange) {
	if x.stateless {
		x.say("there are no requests in this revision")
		return
	}
	id := x.next("same")
	x.event(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"elicitation/create","params":%s}`, id, x.question()))
	answer := x.ask(id, "elicitation/create", x.question())
	x.say("%s", answer)
}

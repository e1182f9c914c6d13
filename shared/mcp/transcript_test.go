package mcp

import (
	"encoding/json"
	"net/textproto"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestTranscripts replays the transcripts in testdata/transcripts. Each file lists a client's requests and the expected
// responses, and also shows readers the messages on the wire.
//
//	-- POST --          a request: headers, an empty line, the body
//	-- 200 --           its response: headers that must be there, an empty line, the body
//	-- publish URI --   an event happens, with this payload
//
// The test compares bodies as JSON. In an expected body or header, "<any>" matches any value and "<NAME>" matches any text.
// After that, $NAME stands for the matched text.
func TestTranscripts(t *testing.T) {
	files := expect.Value(filepath.Glob("testdata/transcripts/*.txt"))(t)
	if len(files) == 0 {
		t.Fatal("there are no transcripts")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			src := expect.Value(os.ReadFile(file))(t)
			play(t, newFixture(t, nil), string(src))
		})
	}
}

func play(t *testing.T, f *fixture, src string) {
	names := map[string]string{}
	var got reply
	for _, part := range strings.Split("\n"+src, "\n-- ")[1:] {
		title, text, _ := strings.Cut(part, " --\n")
		for name, value := range names {
			text = strings.ReplaceAll(text, "$"+name, value)
		}
		head, body, _ := strings.Cut("\n"+text, "\n\n")
		verb, arg, _ := strings.Cut(title, " ")
		switch status, err := strconv.Atoi(verb); {
		case verb == "publish":
			f.publish(arg, strings.TrimSpace(text))
		case err == nil:
			expect.MustEqual(t, "the status of "+got.Body, got.Status, status)
			for _, line := range strings.Split(head, "\n") {
				if name, want, ok := strings.Cut(line, ": "); ok {
					compareJSON(t, name, got.Header.Get(textproto.CanonicalMIMEHeaderKey(name)), want, names)
				}
			}
			if want := strings.TrimSpace(body); want == "" {
				expect.Equal(t, "the body", strings.TrimSpace(got.Body), "")
			} else {
				var a, b any
				if json.Unmarshal([]byte(got.Body), &a) != nil {
					a = got.Body // The body is plain text.
				}
				expect.OK(t, json.Unmarshal([]byte(want), &b), want)
				compareJSON(t, "body", a, b, names)
			}
		default:
			var headers []string
			for _, line := range strings.Split(head, "\n") {
				if line != "" {
					headers = append(headers, line)
				}
			}
			got = f.do(verb, alice, strings.TrimSpace(body), headers...)
		}
	}
}

// compareJSON compares a value with the expected one, and records in names the texts that match names in angle brackets.
func compareJSON(t *testing.T, at string, got, want any, names map[string]string) {
	t.Helper()
	switch want := want.(type) {
	case string:
		if strings.HasPrefix(want, "<") && strings.HasSuffix(want, ">") {
			name := strings.Trim(want, "<>")
			if text, ok := got.(string); ok && name != "any" {
				names[name] = text
			} else if name != "any" {
				t.Errorf("%s: %v is no text", at, got)
			}
			return
		}
	case map[string]any:
		have, ok := got.(map[string]any)
		if !ok || len(have) != len(want) {
			t.Errorf("%s: got %v, want %v", at, got, want)
			return
		}
		for k, v := range want {
			compareJSON(t, at+"."+k, have[k], v, names)
		}
		return
	case []any:
		have, ok := got.([]any)
		if !ok || len(have) != len(want) {
			t.Errorf("%s: got %v, want %v", at, got, want)
			return
		}
		for i, v := range want {
			compareJSON(t, at+"["+strconv.Itoa(i)+"]", have[i], v, names)
		}
		return
	}
	expect.Deep(t, at, got, want)
}

// block returns the n-th code block in this language below a heading of a page of docs/reference.
func block(t *testing.T, page, heading, language string, n int) string {
	t.Helper()
	_, rest, _ := strings.Cut("\n"+string(expect.Value(os.ReadFile("../../docs/reference/"+page))(t)), "\n"+heading+"\n")
	text, ok := "", false
	for range n {
		_, rest, _ = strings.Cut(rest, "```"+language+"\n")
		text, rest, ok = strings.Cut(rest, "```")
	}
	if !ok {
		t.Fatalf("docs/reference/%s: no %s %d under %s", page, language, n, heading)
	}
	return text
}

// sameButNamed compares two JSON values. It ignores the values of members that always differ: event ids, times and cursors.
func sameButNamed(t *testing.T, got, want []byte) {
	t.Helper()
	var a, b any
	expect.OK(t, json.Unmarshal(got, &a))
	expect.OK(t, json.Unmarshal(want, &b))
	for _, v := range []any{a, b} {
		blank(v)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func blank(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if s, ok := x.(string); ok && s != "" && slices.Contains([]string{"eventId", "timestamp", "time", "cursor"}, path.Base(k)) {
				v[k] = "…"
			}
			blank(x)
		}
	case []any:
		for _, x := range v {
			blank(x)
		}
	}
}

// EVX-05, EVX-06: the examples of polls and streams in docs/reference/protocol.md match the server's answers.
func TestFollowingDocumented(t *testing.T) {
	f := newFixture(t, nil)
	request := strings.Replace(block(t, "protocol.md", "### Polls", "json", 1), `"params":{`, `"params":{`+meta2026+`,`, 1)
	poll := func(body string) (result json.RawMessage) {
		m := f.do("POST", alice, body, statelessHeaders(spec.MethodEventsPoll, "")...).rpc(t)
		if m.Error != nil {
			t.Fatalf("the example is refused: %+v", m.Error)
		}
		return m.Result
	}
	var first polled
	expect.OK(t, json.Unmarshal(poll(request), &first))
	o := f.open(f.request("POST", alice, strings.NewReplacer(
		`"id":1`, `"id":7`, "events/poll", "events/stream", `,"maxEvents":20`, "").Replace(request), statelessHeaders(spec.MethodEventsStream, "")...))
	next := func() sse.Event { // a heartbeat may tell the position of the event that the filter drops
		for {
			if e := o.event(); !strings.Contains(string(e.Data), "notifications/events/heartbeat") {
				return e
			}
		}
	}
	frames := []sse.Event{next()}
	f.publish("event://ci/build-finished", `{"status":"passed"}`)
	f.publish("event://ci/build-finished", `{"status":"failed"}`)
	frames = append(frames, next())

	var result map[string]json.RawMessage
	expect.OK(t, json.Unmarshal(poll(strings.Replace(request, "null", `"`+first.Cursor+`"`, 1)), &result))
	delete(result, "_meta")
	got, _ := json.Marshal(result)
	sameButNamed(t, got, []byte(block(t, "protocol.md", "### Polls", "json", 2)))

	f.changeCatalog("required: [status]", "required: [state]")
	f.announceCatalog()
	frames = append(frames, next(), next())
	o.end()
	sameEvents(t, frames, block(t, "protocol.md", "### Streams", "sse-events", 1))
}

// sameEvents compares the events on a stream with the events of a documented stream.
func sameEvents(t *testing.T, got []sse.Event, documented string) {
	t.Helper()
	r := sse.NewReader(strings.NewReader(documented), 1<<20)
	for _, ev := range got {
		want := expect.Value(r.Next())(t)
		if ev.Name != want.Name || (ev.ID == "") != (want.ID == "") || ev.Retry != want.Retry {
			t.Errorf("got  %+v\nwant %+v", ev, want)
		}
		sameButNamed(t, ev.Data, want.Data)
	}
	if extra, err := r.Next(); err == nil {
		t.Errorf("docs/reference/protocol.md shows more: %s", extra.Data)
	}
}

// TestDialectDocumented checks that the example in docs/reference/dialect.md matches the events that the server sends.
func TestDialectDocumented(t *testing.T) {
	f := newFixture(t, nil)
	req := f.request("GET", alice, "", "Accept:", "Accept: text/event-stream")
	req.URL.Path = dialectPath
	o := f.open(req)
	got := []sse.Event{o.event()}
	f.dialect(alice, rpcText(`"1"`, spec.MethodSubscribe, `"uri":"event://ci/build-finished"`), jsonOnly, "Mcp-Session-Id: "+o.header.Get(spec.HeaderSession))
	got = append(got, o.event())
	f.publish("event://ci/build-finished", `{"status":"passed"}`)
	got = append(got, o.event())
	f.close()
	sameEvents(t, append(got, o.event()), block(t, "dialect.md", "# The named-event dialect", "sse", 1))
}

package mcp

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
)

// block finds the first block of a language behind a heading of docs/reference/protocol.md.
func block(t *testing.T, heading, language string, n int) string {
	t.Helper()
	doc, err := os.ReadFile("../../docs/reference/protocol.md")
	must(t, err)
	_, rest, _ := strings.Cut(string(doc), "\n### "+heading+"\n")
	text, ok := "", false
	for range n {
		_, rest, _ = strings.Cut(rest, "```"+language+"\n")
		text, rest, ok = strings.Cut(rest, "```")
	}
	if !ok {
		t.Fatalf("docs/reference/protocol.md: no %s %d under %s", language, n, heading)
	}
	return text
}

// sameButNamed compares two JSON values but for what is never the same twice.
func sameButNamed(t *testing.T, got, want []byte) {
	t.Helper()
	var a, b any
	must(t, json.Unmarshal(got, &a))
	must(t, json.Unmarshal(want, &b))
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
			if s, ok := x.(string); ok && s != "" && (k == "eventId" || k == "timestamp" || k == "cursor") {
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

// TestFollowingDocumented holds the examples of polls and streams in
// docs/reference/protocol.md to what is served: EVX-05, EVX-06.
func TestFollowingDocumented(t *testing.T) {
	f := newFixture(t, nil)
	meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}},`
	request := strings.Replace(block(t, "Polls", "json", 1), `"params":{`, `"params":{`+meta, 1)
	poll := func(body string) (result json.RawMessage) {
		m := f.do("POST", alice, body, statelessHeaders(spec.MethodEventsPoll, "")...).rpc(t)
		if m.Error != nil {
			t.Fatalf("the example is refused: %+v", m.Error)
		}
		return m.Result
	}
	var first polled
	must(t, json.Unmarshal(poll(request), &first))
	o := f.open(f.request("POST", alice, strings.NewReplacer(
		`"id":1`, `"id":7`, "events/poll", "events/stream", `,"maxEvents":20`, "").Replace(request), statelessHeaders(spec.MethodEventsStream, "")...))
	frames := []sse.Event{o.event()}
	f.publish("event://ci/build-finished", `{"status":"passed"}`)
	f.publish("event://ci/build-finished", `{"status":"failed"}`)
	frames = append(frames, o.event())

	var result map[string]json.RawMessage
	must(t, json.Unmarshal(poll(strings.Replace(request, "null", `"`+first.Cursor+`"`, 1)), &result))
	delete(result, "_meta")
	got, _ := json.Marshal(result)
	sameButNamed(t, got, []byte(block(t, "Polls", "json", 2)))

	f.catalogs.Replace(mustParse(t, strings.Replace(testCatalog, "required: [status]", "required: [state]", 1)))
	must(t, f.log.Notify(t.Context(), "default", stream.TopicCatalog, json.RawMessage(`{}`)))
	frames = append(frames, o.event(), o.event())
	o.end()
	r := sse.NewReader(strings.NewReader(block(t, "Streams", "sse-events", 1)), 1<<20)
	for _, ev := range frames {
		want, err := r.Next()
		must(t, err)
		sameButNamed(t, ev.Data, want.Data)
	}
	if extra, err := r.Next(); err == nil {
		t.Errorf("docs/reference/protocol.md shows more: %s", extra.Data)
	}
}

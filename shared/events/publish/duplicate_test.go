package publish

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestTwice(t *testing.T) {
	var wide strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&wide, `"m%d":{"x":%d},`, i, i)
	}
	for in, want := range map[string]string{
		`{}`:                              "",
		`"a"`:                             "",
		`{"a":"a","b":["a","a","b"]}`:     "",
		`{"a":1,"A":2}`:                   "",
		`{"a":1,"\u0061":2}`:              "/a",
		`{"\"":1,"\u0022":2}`:             `/"`,
		`{"a":{"b":1},"c":{"b":1,"b":2}}`: "/c/b",
		`[[],[1,{"a":1}],{"b":[0,{"x":1,"x":2}]}]`:       "/2/b/1/x",
		`{"a/b~":{"":1,"":2}}`:                           "/a~1b~0/",
		`{"a":[{"b":1},{"b":2}],"b":1,"a":2}`:            "/a",
		`{"k":"}\"{","k":1}`:                             "/k",
		"{" + wide.String() + `"n":1}`:                   "",
		"{" + wide.String() + `"m999":1}`:                "/m999",
		"{" + wide.String() + `"m3":1}`:                  "/m3",
		"[{" + wide.String() + `"m":1},{"m1":1,"m1":2}]`: "/1/m1",
	} {
		if got, found := findDuplicate([]byte(in)); got != want || found != (want != "") {
			t.Errorf("%.60s: got %q, %v, want %q", in, got, found, want)
		}
	}
	long := `"` + strings.Repeat("é", 5000) + `"`
	if got, found := findDuplicate([]byte("{" + long + ":1," + long + ":2}")); !found || len(got) > maxPointer+8 {
		t.Errorf("the pointer has %d bytes", len(got))
	}
}

// repeats reports whether a value has a duplicate member. It is a simple implementation that decodes every object into a set.
func repeats(d *json.Decoder) bool {
	tok, err := d.Token()
	if err != nil {
		return false
	}
	found := false
	switch tok {
	case json.Delim('{'):
		seen := map[string]bool{}
		for d.More() {
			name, _ := d.Token()
			found = found || seen[name.(string)]
			seen[name.(string)] = true
			found = repeats(d) || found
		}
		_, _ = d.Token()
	case json.Delim('['):
		for d.More() {
			found = repeats(d) || found
		}
		_, _ = d.Token()
	}
	return found
}

func FuzzTwice(f *testing.F) {
	for _, s := range []string{`{"a":1,"\u0061":2}`, `[{"a":[{}],"b":{"a":1}},"x"]`, `{"a\\":"\"","a":{"b":1,"b":2}}`, `{"\ud800":1,"\udc00":1}`, ` { "a" : 1 , "a" : 2 } `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if jsonrpc.Depth(body) > event.MaxDepth {
			return
		}
		data, err := escape(body)
		if err != nil {
			return
		}
		pointer, found := findDuplicate(data)
		if want := repeats(json.NewDecoder(bytes.NewReader(data))); found != want || (pointer != "") != found {
			t.Fatalf("%s: got %q, %v, want %v", data, pointer, found, want)
		}
	})
}

const (
	parentA = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	parentB = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
)

func TestAnEventBelongsToThePublishersTrace(t *testing.T) {
	const (
		plain  = `{"uri":"event://ci/build-finished","id":"1","data":1}`
		header = "traceparent: " + parentA
		state  = "tracestate: a=1"
	)
	extension := ce(`,"traceparent":"` + parentB + `","tracestate":"b=2"`)
	binary := []string{asJSON, "ce-specversion: 1.0", "ce-id: 1", "ce-source: event://ci/build-finished", "ce-type: x"}
	none, a, b := trace.Context{}, trace.Context{Parent: parentA, State: "a=1"}, trace.Context{Parent: parentB, State: "b=2"}
	for name, tc := range map[string]struct {
		body    string
		headers []string
		want    []trace.Context
	}{
		"OPS-13 no trace":                             {plain, []string{asJSON}, []trace.Context{none}},
		"OPS-13 the headers of HTTP":                  {plain, []string{asJSON, header, state}, []trace.Context{a}},
		"OPS-13 all events of an array":               {"[" + plain + "," + plain + "]", []string{asJSON, header, state}, []trace.Context{a, a}},
		"OPS-13 a malformed header":                   {plain, []string{asJSON, header + "x", state}, []trace.Context{none}},
		"OPS-13 two headers":                          {plain, []string{asJSON, header, header}, []trace.Context{none}},
		"OPS-13 a malformed state":                    {plain, []string{asJSON, header, "tracestate: ,=,"}, []trace.Context{{Parent: parentA}}},
		"OPS-13 CloudEvents structured":               {extension, []string{"Content-Type: application/cloudevents+json"}, []trace.Context{b}},
		"OPS-13 CloudEvents, the origin of the trace": {extension, []string{"Content-Type: application/cloudevents+json", header}, []trace.Context{b}},
		"OPS-13 CloudEvents, not a string":            {ce(`,"traceparent":7`), []string{"Content-Type: application/cloudevents+json"}, []trace.Context{none}},
		"OPS-13 CloudEvents batch, each its own":      {"[" + extension + "," + ce("") + "]", []string{"Content-Type: application/cloudevents-batch+json", header, state}, []trace.Context{b, a}},
		"OPS-13 CloudEvents binary":                   {"1", append(binary, "ce-traceparent: "+parentB, "ce-tracestate: b=2"), []trace.Context{b}},
		"OPS-13 CloudEvents binary, percent-encoded":  {"1", append(binary, "ce-traceparent: "+parentB, "ce-tracestate: b%3D2"), []trace.Context{b}},
	} {
		t.Run(name, func(t *testing.T) {
			h, q := handler(t)
			if w := post(h, tc.body, tc.headers...); w.Code != http.StatusAccepted {
				t.Fatalf("got %d %s", w.Code, w.Body)
			}
			for i, e := range q.events(t) {
				expect.Equal(t, fmt.Sprintf("event %d", i), e.Trace, tc.want[i])
			}
			for _, m := range q.on[queue.Events] {
				if strings.Contains(string(m.Body), `"tp"`) != (tc.want[0] != none) {
					t.Errorf("got the message %s", m.Body)
				}
			}
		})
	}
	t.Run("OPS-13 an SQS message attribute at the inbox", func(t *testing.T) {
		in, q := inbox(t)
		m := message("m1", "["+plain+","+extension+"]")
		m.Attributes = map[string]string{"traceparent": parentA, "tracestate": "a=1"}
		if failed, err := in.Handle(t.Context(), []queue.Message{m}); len(failed) > 0 || err != nil {
			t.Fatal(failed, err)
		}
		if got := q.events(t); got[0].Trace != a || got[1].Trace != b {
			t.Errorf("got %+v", got)
		}
	})
}

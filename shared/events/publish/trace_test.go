package publish

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

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
				if e.Trace != tc.want[i] {
					t.Errorf("event %d: got %+v, want %+v", i, e.Trace, tc.want[i])
				}
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

package mcp

import (
	"encoding/json"
	"fmt"
	"testing"
)

// pushed are the params of a notification of events/stream.
type pushed struct {
	Method string
	Params struct {
		EventID, Name, Timestamp string
		Data                     json.RawMessage
		Cursor                   string
		Truncated                *bool
		Error                    *struct {
			Code    int
			Message string
			Data    json.RawMessage
		}
		Meta map[string]json.RawMessage `json:"_meta"`
	}
}

func (o *open) pushed() pushed {
	o.t.Helper()
	var p pushed
	must(o.t, json.Unmarshal(o.event().Data, &p))
	return p
}

// push opens an events/stream and reads its first message.
func (f *fixture) push(key, id, name, arguments, cursor string) (*open, pushed) {
	f.t.Helper()
	o := f.open(f.request("POST", key, modernBody(id, methodEventsStream, pollParams(name, arguments, cursor)), modernHeaders(methodEventsStream, "")...))
	first := o.pushed()
	if o.status != 200 || first.Method != noteEventsActive || first.Params.Cursor == "" || first.Params.Truncated == nil {
		f.t.Fatalf("EVX-06: %d %+v", o.status, first)
	}
	return o, first
}

func TestPush(t *testing.T) {
	t.Run("EVX-06_active_events_and_the_id_on_each", func(t *testing.T) {
		f := newFixture(t, nil)
		for _, id := range []string{`1`, `"1"`, `9007199254740993`, `"a\"b\u0041"`} {
			o, first := f.push(alice, id, "ci.deploy", `{}`, "")
			if *first.Params.Truncated {
				t.Errorf("truncated: %+v", first)
			}
			frames := []pushed{first}
			for i := range 3 {
				ev := f.publish("event://ci/deploy", fmt.Sprintf(`{"n":%d}`, i))
				p := o.pushed()
				if p.Method != noteEventsEvent || p.Params.EventID != ev.ID || p.Params.Name != "ci.deploy" || p.Params.Cursor == "" ||
					string(p.Params.Data) != fmt.Sprintf(`{"n":%d}`, i) || p.Params.Timestamp != ev.Timestamp() {
					t.Errorf("EVX-04: got %+v", p)
				}
				frames = append(frames, p)
			}
			for _, p := range frames {
				if got := string(p.Params.Meta[metaSubscription]); got != id || len(p.Params.Meta) != 1 {
					t.Errorf("%s: _meta is %v, want the id %s", p.Method, p.Params.Meta, id)
				}
			}
			o.cancel()
		}
	})
}

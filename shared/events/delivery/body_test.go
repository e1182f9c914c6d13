package delivery

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
)

func TestBodies(t *testing.T) {
	at := time.Date(2026, 11, 22, 1, 2, 3, 4000, time.FixedZone("", 5400))
	e := event.Event{ID: "evt_1", URI: "event://ü/\u2028\"&", Name: "a.b", Time: at, Data: json.RawMessage(`{"n":12345678901234567890,"s":"\u003c"}`)}
	empty := event.Event{ID: "evt_2", Time: at.UTC()}
	types, err := catalog.Parse([]byte(`
events:
  - {name: order.shipped, uriTemplate: "event://orders/{order}/{leg}/shipped", description: A., payloadSchema: {type: object}}
  - {name: sale.began, uri: "event://sale/began", description: A., payloadSchema: {type: object}}
`))
	if err != nil {
		t.Fatal(err)
	}
	shipped, sale := types.ByName("order.shipped"), types.ByName("sale.began")
	about := func(uri string) *event.Event { return &event.Event{ID: "evt_3", Time: at.UTC(), URI: uri} }
	occurrence := func(meta string) string {
		return `{"eventId":"evt_3","name":"","timestamp":"2026-11-21T23:32:03.000004Z","data":null,"cursor":null,"_meta":{` + meta + `}}`
	}
	for _, tc := range []struct {
		name string
		got  []byte
		want string
	}{
		{"a webhook", standardBody(&e, `t"`, "sub_1"), `{"type":"t\"","timestamp":"2026-11-22T01:02:03.000004+01:30","uri":"event://ü/\u2028\"&","subscription":"subscription://sub_1","data":{"n":12345678901234567890,"s":"\u003c"}}`},
		{"a webhook without data", standardBody(&empty, "t", "sub_1"), `{"type":"t","timestamp":"2026-11-21T23:32:03.000004Z","uri":"","subscription":"subscription://sub_1","data":null}`},
		{"an occurrence", eventsBody(&e, nil, `c"`), `{"eventId":"evt_1","name":"a.b","timestamp":"2026-11-22T01:02:03.000004+01:30","data":{"n":12345678901234567890,"s":"\u003c"},"cursor":"c\"","_meta":{"io.github.mcp-events/uri":"event://ü/\u2028\"&"}}`},
		{"an occurrence without cursor", eventsBody(&empty, nil, ""), `{"eventId":"evt_2","name":"","timestamp":"2026-11-21T23:32:03.000004Z","data":null,"cursor":null,"_meta":{"io.github.mcp-events/uri":""}}`},
		{
			"an occurrence of a URI with variables", eventsBody(about("event://orders/7%2F%22/home/shipped"), shipped, ""),
			occurrence(`"io.github.mcp-events/uri":"event://orders/7%2F%22/home/shipped","io.github.mcp-events/arguments":{"order":"7/\"","leg":"home"}`),
		},
		{
			"an occurrence of a URI without variables", eventsBody(about("event://sale/began"), sale, ""),
			occurrence(`"io.github.mcp-events/uri":"event://sale/began","io.github.mcp-events/arguments":{}`),
		},
		{
			"an occurrence from before the template changed", eventsBody(about("event://order/7/shipped"), shipped, ""),
			occurrence(`"io.github.mcp-events/uri":"event://order/7/shipped"`),
		},
		{
			"an occurrence from before the URI changed", eventsBody(about("event://sale/started"), sale, ""),
			occurrence(`"io.github.mcp-events/uri":"event://sale/started"`),
		},
	} {
		var got, want map[string]json.RawMessage
		if err := json.Unmarshal(tc.got, &got); err != nil {
			t.Errorf("%s: %v in %s", tc.name, err, tc.got)
		}
		_ = json.Unmarshal([]byte(tc.want), &want)
		var a, b any
		_, _ = json.Unmarshal(tc.got, &a), json.Unmarshal([]byte(tc.want), &b)
		if !reflect.DeepEqual(a, b) || string(got["data"]) != string(want["data"]) {
			t.Errorf("%s: got  %s\nwant %s", tc.name, tc.got, tc.want)
		}
	}
}

func BenchmarkStandardBody(b *testing.B) {
	e := event.Event{ID: "evt_1", URI: "event://bench/1/tick", Name: "bench.tick", Time: time.Now(), Data: make(json.RawMessage, 500)}
	for i := range e.Data {
		e.Data[i] = '1'
	}
	b.ReportAllocs()
	for b.Loop() {
		standardBody(&e, "bench.tick", "sub_0123456789abcdef0123456789abcdef")
	}
}

package event

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/trace"
	"github.com/mcp-events/mcpevents/test/expect"
)

// form is the message as earlier releases encoded it, with encoding/json.
type form struct {
	V         int             `json:"v"`
	Workspace string          `json:"ws"`
	ID        string          `json:"id"`
	URI       string          `json:"uri"`
	Name      string          `json:"name"`
	Time      int64           `json:"t"`
	Published int64           `json:"pub"`
	Offset    int             `json:"tz,omitempty"`
	Data      json.RawMessage `json:"data"`
}

var samples = []Event{
	{Data: json.RawMessage(`null`)},
	{Workspace: "w", ID: "evt_1", URI: "event://a/b", Name: "a.b", Time: time.UnixMicro(1), Published: time.UnixMicro(-2), Data: json.RawMessage(`{"a":[1,"}\"",{}]}`)},
	{Workspace: `"\`, ID: "x", URI: "event://ü/\u2028<&>\n\x00", Name: "n", Time: time.Date(2026, 11, 22, 1, 2, 3, 4000, time.FixedZone("", -5400)), Data: json.RawMessage(`"\\"`)},
}

// formOf returns the message as earlier releases encoded it.
func formOf(e Event) form {
	_, offset := e.Time.Zone()
	return form{messageVersion, e.Workspace, e.ID, e.URI, e.Name, e.Time.UnixMicro(), e.Published.UnixMicro(), offset, e.Data}
}

// TestAnIDHasItsTime: OPS-05.
func TestAnIDHasItsTime(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	if at, ok := TimeOfID(NewID()); !ok || at.Before(before) || at.After(time.Now()) {
		t.Errorf("OPS-05: got %v, %t", at, ok)
	}
	for _, id := range []string{"", "evt_", "evt_1", "0198f3c2-7a5b-7c1d-8e2f-0123456789ab", "evt_0198f3c27a5b7c1d8e2f0123456789ab", "evt_0198f3c2-7a5b-4c1d-8e2f-0123456789ab"} {
		if at, ok := TimeOfID(id); ok {
			t.Errorf("OPS-05: %s was made at %v", id, at)
		}
	}
}

func TestAppendJSONWritesWhatEarlierReleasesRead(t *testing.T) {
	for _, e := range samples {
		var got form
		expect.OK(t, json.Unmarshal(e.AppendJSON(nil), &got), e.AppendJSON(nil))
		expect.Deep(t, "the message", got, formOf(e))
	}
}

func TestDecodeReadsWhatEarlierReleasesWrote(t *testing.T) {
	for _, e := range samples {
		old, _ := json.Marshal(formOf(e))
		for _, text := range [][]byte{old, e.AppendJSON(nil), []byte(" " + strings.ReplaceAll(string(old), `"v":1,`, `"new":{"v":7},"v" : 1 , `) + "\n")} {
			got, err := Decode(text)
			expect.OK(t, err, text)
			if got.Workspace != e.Workspace || got.ID != e.ID || got.URI != e.URI || got.Name != e.Name || string(got.Data) != string(e.Data) ||
				!got.Time.Equal(e.Time) || got.Timestamp() != e.Timestamp() && formOf(e).Offset != 0 || !got.Published.Equal(e.Published) {
				t.Errorf("%s: got %+v", text, got)
			}
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":           ``,
		"a truncated event": `{"v":1,"data":{"a":`,
		"two values":        `{"v":1} {"v":1}`,
		"another type":      `[]`,
		"no version":        `{"id":"a","data":1}`,
		"a later version":   `{"v":2,"data":1}`,
		"a number as id":    `{"v":1,"id":7}`,
		"a fraction of µs":  `{"v":1,"t":1.5}`,
		"a text as version": `{"v":"1"}`,
	} {
		if e, err := Decode([]byte(text)); err == nil {
			t.Errorf("%s: got %+v", name, e)
		}
	}
}

func TestMaxSizeIsAnUpperBound(t *testing.T) {
	const far = 253402300799 // the end of the year 9999
	e := Event{
		Workspace: "w", ID: strings.Repeat("i", 128), URI: "event://a/b", Name: "a.b", Time: time.Unix(-far, 0).In(time.FixedZone("", -86399)), Published: time.Unix(far, 0),
		Data: []byte(`{"a":1}`), Trace: trace.Context{Parent: strings.Repeat("0", 55), State: "a=" + strings.Repeat(`"`, 256)},
	}
	for name, e := range map[string]Event{"all members": e, "no members": {}, "a gap": {Gap: true, Time: e.Time, Published: e.Published}} {
		if size, most := len(e.AppendJSON(nil))+len(","), e.MaxSize(); size > most {
			t.Errorf("%s: an event of an array has %d bytes, and MaxSize is %d", name, size, most)
		}
	}
}

func TestDecodeCopiesItsInput(t *testing.T) {
	text := samples[1].AppendJSON(nil)
	e := expect.Value(Decode(text))(t)
	clear(text)
	expect.Equal(t, "the data", string(e.Data), string(samples[1].Data))
	expect.Equal(t, "the URI", e.URI, samples[1].URI)
}

// FuzzDecode compares Decode with encoding/json.
func FuzzDecode(f *testing.F) {
	for _, e := range samples {
		f.Add(e.AppendJSON(nil))
	}
	f.Add([]byte(`{"v":1,"t":-9e3,"tz":3600,"data":null,"data":"\u0000"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := Decode(text)
		if err != nil {
			return
		}
		var want form
		expect.OK(t, json.Unmarshal(text, &want), "the value that encoding/json reads from", text)
		again, err := Decode(e.AppendJSON(nil))
		if err != nil || string(again.Data) != string(e.Data) && len(e.Data) > 0 || again.ID != strings.ToValidUTF8(e.ID, "\ufffd") || !again.Time.Equal(e.Time) {
			t.Fatalf("%q: got %+v, then %+v, %v", text, e, again, err)
		}
	})
}

func TestEventsAsTheLastMember(t *testing.T) {
	events := []Event{
		{Workspace: "w", ID: "a\"b", URI: "event://a", Name: "n", Time: time.UnixMicro(1), Published: time.UnixMicro(2), Data: []byte(`{"x":1}`)},
		{Workspace: "w", ID: "c", URI: "event://a", Name: "n", Time: time.UnixMicro(3), Published: time.UnixMicro(4)},
	}
	type task struct {
		V      int     `json:"v"`
		Events []Event `json:"ev"`
	}
	for n := range len(events) + 1 {
		got := AppendMember([]byte(`{"v":1}`), "ev", events[:n])
		want := expect.Value(json.Marshal(task{1, append([]Event{}, events[:n]...)}))(t)
		expect.Equal(t, fmt.Sprintf("the JSON of %d events", n), string(got), string(want))
	}
}

// OPS-13: an event without a trace is encoded as before traces existed. One with a trace keeps it in every encoding,
// and earlier releases ignore it.
func TestAnEventKeepsItsTrace(t *testing.T) {
	e := samples[1]
	const before = `{"v":1,"ws":"w","id":"evt_1","uri":"event://a/b","name":"a.b","t":1,"pub":-2,"data":{"a":[1,"}\"",{}]}}`
	expect.Equal(t, "the JSON", string(e.AppendJSON(nil)), before)
	e.Trace = trace.Context{Parent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", State: "a=1"}
	text := e.AppendJSON(nil)
	got, err := Decode(text)
	if err != nil || got.Trace != e.Trace || string(got.Data) != string(e.Data) {
		t.Errorf("got %+v, %v", got, err)
	}
	var old form
	if err := json.Unmarshal(text, &old); err != nil || old.V != messageVersion || string(old.Data) != string(e.Data) {
		t.Errorf("an earlier release reads %+v, %v", old, err)
	}
}

// GWN-22: a gap keeps its place among the events, and an earlier release leaves it to a newer one.
func TestAGapIsNoEventForAnEarlierRelease(t *testing.T) {
	gap := Event{Workspace: "w", ID: "evt_1", URI: "event://~shop/order.shipped/e30", Name: "order.shipped", Time: time.UnixMicro(1).UTC(), Published: time.UnixMicro(2).UTC(), Gap: true}
	text := gap.AppendJSON(nil)
	expect.True(t, "a gap has version 2", strings.HasPrefix(string(text), `{"v":2,`))
	got, err := Decode(text)
	if gap.Data = got.Data; err != nil || string(got.Data) != "null" || !reflect.DeepEqual(got, gap) {
		t.Errorf("got %+v, %v, want %+v", got, err, gap)
	}
}

func TestTimesOfRFC3339(t *testing.T) {
	want := time.Date(2026, 11, 23, 7, 0, 0, 500_000_000, time.UTC)
	for _, text := range []string{"2026-11-23T07:00:00.5Z", "2026-11-23t07:00:00.5z", "2026-11-23T08:00:00.500+01:00", "2026-11-23t08:00:00.5+01:00"} {
		expect.True(t, "RCH-09 OPS-03 the time "+text, expect.Value(ParseTime(text))(t).Equal(want))
	}
	for _, text := range []string{
		"", "2026-11-23", "2026-11-23T07:00:00,5Z", "2026-11-23 07:00:00Z", "2026-11-23T7:00:00Z", "2026-11-23T07:00:00", "2026-11-23T07:00:00+25:00", "2026-11-31T07:00:00Z", "2026-11-23T07:00:00." + strings.Repeat("1", 64) + "Z",
		"2026-11-23T07:00:00+24:00", "2026-11-23T07:00:00-24:00", "2026-11-23T07:00:00+05:60", "9999-12-31T23:59:59-01:00", "0000-01-01T00:00:00+01:00",
	} {
		if got, err := ParseTime(text); err == nil {
			t.Errorf("RCH-09 OPS-03 %q: got %v, want an error", text, got)
		}
	}
}

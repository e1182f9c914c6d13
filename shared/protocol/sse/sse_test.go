package sse

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestAppend(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   Event
		want string
	}{
		{"data", Event{Data: []byte(`{"a":1}`)}, "data: {\"a\":1}\n\n"},
		{"all fields", Event{Name: "x", ID: "7", Data: []byte("d"), Retry: time.Second}, "event: x\nid: 7\nretry: 1000\ndata: d\n\n"},
		{"lines", Event{Data: []byte("a\nb\r\nc\rd")}, "data: a\ndata: b\ndata: c\ndata: d\n\n"},
		{"priming event", Event{ID: "7", Data: []byte{}}, "id: 7\ndata: \n\n"},
		{"comment", Event{Comment: " "}, ": \n\n"},
		{"a line end cannot forge a field", Event{ID: "7\ndata: x", Name: "n\r\nid: 1"}, "event: n\nid: 7\n\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			expect.Equal(t, "the event", string(Append(nil, tc.in)), tc.want)
		})
	}
}

func TestReader(t *testing.T) {
	in := "\ufeff: hello\n\nretry: 10\nid: 1\ndata:a\ndata: b\r\n\r\nevent: x\rdata\r\rretry: soon\nunknown: 1\n\ndata: cut off"
	r := NewReader(strings.NewReader(in), 100)
	for _, want := range []Event{
		{ID: "1", Retry: 10 * time.Millisecond, Data: []byte("a\nb")},
		{Name: "x", Data: []byte{}},
	} {
		got, err := r.Next()
		if err != nil || got.Name != want.Name || got.ID != want.ID || got.Retry != want.Retry ||
			!bytes.Equal(got.Data, want.Data) || (got.Data == nil) != (want.Data == nil) {
			t.Fatalf("got %+v, %v; want %+v", got, err, want)
		}
	}
	expect.Is(t, "the end", expect.ErrOf(r.Next()), io.EOF)
	expect.Is(t, "a long event", expect.ErrOf(NewReader(strings.NewReader("data: "+strings.Repeat("x", 100)+"\n\n"), 50).Next()), ErrTooLarge)
}

// plain is a ResponseWriter that can do nothing more, like the one of a Lambda
// function's streamed response.
type plain struct {
	header http.Header
	status int
	writes []string
}

func (p *plain) Header() http.Header    { return p.header }
func (p *plain) WriteHeader(status int) { p.status = status }
func (p *plain) Write(b []byte) (int, error) {
	p.writes = append(p.writes, string(b))
	return len(b), nil
}

func TestWriterNeedsNoFlush(t *testing.T) {
	p := &plain{header: http.Header{}}
	w := NewWriter(p, time.Second)
	w.Start()
	expect.OK(t, w.Write(Append(nil, Event{Data: []byte("x")})))
	if p.status != 200 || p.header.Get("X-Accel-Buffering") != "no" || p.header.Get("Cache-Control") != "no-cache" || len(p.writes) != 1 {
		t.Errorf("got %+v", p)
	}
}

func TestWriterFlushes(t *testing.T) {
	rec := httptest.NewRecorder()
	w := NewWriter(rec, 0)
	w.Start()
	if err := w.Write(Append(nil, Event{Data: []byte("x")})); err != nil || !rec.Flushed {
		t.Errorf("flushed %v, %v", rec.Flushed, err)
	}
}

// FuzzWrite shows that whatever is written is read back as one event.
func FuzzWrite(f *testing.F) {
	f.Add("message", "id", []byte("{}\n"), uint16(1))
	f.Add("", "\r\n", []byte("\r\r\n\n"), uint16(0))
	f.Add("", "", []byte("\xef\xbb\xbf: x"), uint16(3))
	f.Fuzz(func(t *testing.T, name, id string, data []byte, retry uint16) {
		in := Event{Name: name, ID: id, Data: data, Retry: time.Duration(retry) * time.Millisecond}
		wire := Append(Append(nil, Event{Comment: name + " "}), in)
		r := NewReader(bytes.NewReader(wire), 1<<20)
		got, err := r.Next()
		if firstLine(name) == "" && firstLine(id) == "" && retry == 0 && data == nil {
			if !errors.Is(err, io.EOF) {
				t.Fatalf("an event of nothing came out as %+v, %v", got, err)
			}
			return
		}
		expect.OK(t, err, wire)
		want := bytes.ReplaceAll(bytes.ReplaceAll(data, []byte("\r\n"), []byte("\n")), []byte("\r"), []byte("\n"))
		if got.Name != firstLine(name) || got.ID != firstLine(id) || got.Retry != in.Retry || !bytes.Equal(got.Data, want) {
			t.Fatalf("wrote %+v, read %+v", in, got)
		}
		if _, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Fatalf("a second event in %q", wire)
		}
	})
}

// FuzzRead shows that a stream of anything gives the same events however it is cut
// into reads, none of them larger than the limit.
func FuzzRead(f *testing.F) {
	f.Add([]byte("event: a\ndata: b\ndata:c\r\nid: 1\rretry: 5\n\n: x\n\ndata"))
	f.Add([]byte("\xef\xbb\xbfdata: \x00\n\nid: a\x00b\n\nretry: -1\n\n"))
	f.Fuzz(func(t *testing.T, wire []byte) {
		const limit = 64
		all := func(r io.Reader) (events []Event, last error) {
			for in := NewReader(r, limit); ; {
				e, err := in.Next()
				if err != nil {
					return events, err
				}
				if n := len(e.Name) + len(e.ID) + len(e.Data); n > limit {
					t.Fatalf("an event of %d bytes", n)
				}
				if len(events) > len(wire) {
					t.Fatal("more events than bytes")
				}
				events = append(events, e)
			}
		}
		whole, end := all(bytes.NewReader(wire))
		bytewise, endBytewise := all(iotest.OneByteReader(bytes.NewReader(wire)))
		if !reflect.DeepEqual(whole, bytewise) || !errors.Is(endBytewise, end) {
			t.Fatalf("%+v, %v and byte by byte %+v, %v", whole, end, bytewise, endBytewise)
		}
		if !errors.Is(end, io.EOF) && !errors.Is(end, ErrTooLarge) {
			t.Fatal(end)
		}
	})
}

package tools

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/mcp-events/mcpevents/client"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools"
	"github.com/mcp-events/mcpevents/test/expect"
)

const ping = `{"jsonrpc":"2.0","id":1,"method":"ping"}` + "\n"

func TestUnreadOutputIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, out := io.Pipe()
		s := newStdio(strings.NewReader(ping+ping), out)
		line := make([]byte, maxUnread)
		for range 2 {
			expect.OK(t, expect.ErrOf(s.Write(line)))
		}
		read := make(chan error, 1)
		go func() {
			_, err := s.Read(make([]byte, len(ping)))
			read <- err
		}()
		synctest.Wait()
		select {
		case <-read:
			t.Error("RCH-04: a request was read while too much output is unread")
		default:
		}
		for range 2 {
			expect.OK(t, expect.ErrOf(io.ReadFull(client, line)))
		}
		expect.OK(t, <-read)
		s.end()
	})
}

func TestEndWaitsForASlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, out := io.Pipe()
		s := newStdio(strings.NewReader(ping), out)
		_, _ = s.Write([]byte(ping))
		begun := time.Now()
		s.end()
		expect.Equal(t, "RCH-04: the time that end waited for a client that does not read", time.Since(begun), endTimeout)
		expect.Is(t, "a read after the end", expect.ErrOf(s.Read(nil)), io.ErrClosedPipe)
		_ = client.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		var client bytes.Buffer
		s := newStdio(strings.NewReader(""), &client)
		_, _ = s.Write([]byte(ping))
		s.end()
		expect.Equal(t, "RCH-04 the client's output", client.String(), ping)
	})
}

func TestInbox(t *testing.T) {
	all := eventtools.Query{Limit: eventtools.MaxEvents}
	newInbox := func() *inbox {
		return &inbox{changed: make(chan struct{}), waiting: map[*string]struct{}{}}
	}
	event := func(i int) client.Event {
		return client.Event{ID: fmt.Sprint(i), Name: "ci.build", Data: json.RawMessage(`{}`)}
	}
	t.Run("RCH-04 a result is bounded by its size, and the rest stays unread", func(t *testing.T) {
		b := newInbox()
		for i := range 3 {
			e := event(i)
			e.Data = json.RawMessage(`"` + strings.Repeat("x", eventtools.MaxBytes*2/5) + `"`)
			b.add("s1", e)
		}
		first, rest := b.readUnread(all), b.readUnread(all)
		if len(first.Events) != 2 || !first.More || len(rest.Events) != 1 || rest.More || rest.Events[0].ID != "2" {
			t.Errorf("got %d events, more %v, then %d, more %v; want 2 and more, then event 2", len(first.Events), first.More, len(rest.Events), rest.More)
		}
	})
	t.Run("RCH-04 a gap is reported once", func(t *testing.T) {
		b := newInbox()
		b.addGap("s1", "ci.build")
		b.add("s1", event(1))
		if got := b.readUnread(all); !got.Gap || len(got.Events) != 1 || got.Events[0].ID != "1" {
			t.Errorf("got %+v, want a gap and event 1", got)
		}
		expect.True(t, "the second read is empty", b.readUnread(all).Empty())
	})
	t.Run("RCH-04 dropped unread events are a gap", func(t *testing.T) {
		b := newInbox()
		for i := range maxKept + 1 {
			b.add("s1", event(i))
		}
		if got := b.readUnread(all); !got.Gap || !got.More || len(got.Events) != eventtools.MaxEvents || got.Events[0].ID != "1" {
			t.Errorf("got %d events, gap %v, more %v, want %d from event 1 on, a gap and more", len(got.Events), got.Gap, got.More, eventtools.MaxEvents)
		}
		expect.True(t, "the second read has no gap", !b.readUnread(all).Gap)
	})
	t.Run("RCH-04 dropped read events are no gap", func(t *testing.T) {
		b := newInbox()
		b.add("s1", event(0))
		b.readUnread(all)
		for i := range maxKept {
			b.add("s1", event(i+1))
		}
		if got := b.readUnread(all); got.Gap || len(got.Events) == 0 {
			t.Errorf("got %d events, gap %v, want events without a gap", len(got.Events), got.Gap)
		}
	})
}

func TestRequestsInFlightAreBoundedInABatch(t *testing.T) {
	var batch []string
	for i := range maxInFlight + 2 {
		batch = append(batch, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, i))
	}
	client, out := io.Pipe()
	in := io.NopCloser(strings.NewReader("[" + strings.Join(batch, ",") + "]\n" + ping))
	c := expect.Value(bounded{&mcp.IOTransport{Reader: in, Writer: out}}.Connect(t.Context()))(t)
	var ids []sdk.ID
	for range maxInFlight {
		ids = append(ids, expect.Value(c.Read(t.Context()))(t).(*sdk.Request).ID)
	}
	m, err := c.Read(t.Context()) // refuses the rest of the batch and reads the next line, whose id is in flight
	expect.OK(t, err)
	if id := m.(*sdk.Request).ID; id != ids[1] {
		t.Errorf("RCH-04: got request %v while %d others are in flight, want %v", id.Raw(), maxInFlight, ids[1].Raw())
	}
	go func() {
		for _, id := range ids {
			_ = c.Write(t.Context(), &sdk.Response{ID: id, Result: []byte(`{}`)})
		}
		_ = out.Close()
	}()
	answer, _ := bufio.NewReader(client).ReadString('\n')
	expect.Equal(t, "RCH-04: requests of a batch that were served", strings.Count(answer, `"result"`), maxInFlight)
	if n := strings.Count(answer, `{"code":429,"message":"64 requests are in flight (allowed: 64): wait for an answer first"}`); n != 2 {
		t.Errorf("RCH-04: %d requests were refused, want 2: %s", n, answer)
	}
}

// FuzzLines tests that the session gets only lines that it can read, and that each other line is answered with one line.
func FuzzLines(f *testing.F) {
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\n\r\n[]\nx"))
	f.Add([]byte("{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":\"2025-03-26\"}}\n[{\"jsonrpc\":\"2.0\",\"method\":\"a\"}]"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		s := newStdio(bytes.NewReader(in), &out)
		got, err := io.ReadAll(s)
		s.end()
		expect.OK(t, err)
		written := 0
		for line := range bytes.Lines(in) {
			if len(bytes.TrimSpace(line)) > 0 {
				written++
			}
		}
		for line := range bytes.Lines(got) {
			if line[0] == '{' {
				expect.OK(t, expect.ErrOf(sdk.DecodeMessage(bytes.TrimSpace(line))), line)
			}
		}
		expect.Equal(t, "lines that were passed on or refused", bytes.Count(got, []byte("\n"))+bytes.Count(out.Bytes(), []byte("\n")), written)
	})
}

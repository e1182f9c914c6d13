package tools

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
		if err := <-read; err != nil {
			t.Error(err)
		}
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
		if _, err := s.Read(nil); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Read after the end: got error %v, want %v", err, io.ErrClosedPipe)
		}
		_ = client.Close()
	})
	synctest.Test(t, func(t *testing.T) {
		var client bytes.Buffer
		s := newStdio(strings.NewReader(""), &client)
		_, _ = s.Write([]byte(ping))
		if s.end(); client.String() != ping {
			t.Errorf("RCH-04: the client got %q, want the last answer %q", client.String(), ping)
		}
	})
}

package queue_test

import (
	"bytes"
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/storage/queue"
	"github.com/mcp-events/mcpevents/test/expect"
)

var (
	noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	sent = noon.Add(-time.Hour)
)

func letter(t testing.TB, body []byte, reason string, faults any) queue.DeadLetter {
	t.Helper()
	m := queue.Message{ID: "m1", Outgoing: queue.Outgoing{Body: body, Group: "g", Owner: "o"}, Received: 3, Sent: sent}
	out := queue.NewDeadLetter(queue.Events, m, reason, faults, noon)
	if len(out.Body) > queue.MaxBody || !utf8.Valid(out.Body) || strings.ContainsAny(string(out.Body), "\uFFFE\uFFFF") {
		t.Fatalf("a letter of %d bytes is nothing that a queue takes", len(out.Body))
	}
	return expect.Value(queue.ParseDeadLetter(out.Body))(t)
}

func TestADeadLetterTellsItsOrigin(t *testing.T) {
	random := make([]byte, queue.MaxBody)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	for name, tc := range map[string]struct {
		body      []byte
		truncated bool
	}{
		"AWS-07 a task":               {[]byte(`{"v":99,"ws":"default"}`), false},
		"AWS-07 no text":              {[]byte("\x00\xff\xfe"), false},
		"AWS-07 empty":                {nil, false},
		"AWS-07 refused characters":   {[]byte("\uFFFE\uFFFF<&>"), false},
		"AWS-07 as large as possible": {bytes.Repeat([]byte(`{"a":"b"}`), queue.MaxBody/9), false},
		"AWS-07 hardly compressible":  {[]byte(base64.StdEncoding.EncodeToString(random))[:queue.MaxBody], true},
		"AWS-07 random bytes":         {random, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := letter(t, tc.body, "it is nothing", []string{"/a: is b"})
			if l.Queue != queue.Events || l.Reason != "it is nothing" || string(l.Faults) != `["/a: is b"]` || l.Message != "m1" ||
				l.Group != "g" || l.Owner != "o" || l.Received != 3 || !l.Sent.Equal(sent) || !l.Dead.Equal(noon) || l.V != 2 {
				t.Errorf("got %.300v", l)
			}
			body, err := l.Content()
			if err != nil || l.Truncated != tc.truncated || !bytes.HasPrefix(tc.body, body) ||
				!tc.truncated && len(body) != len(tc.body) || tc.truncated && (l.Size != len(tc.body) || len(body) < len(tc.body)/2) {
				t.Errorf("%d of %d bytes are left, %v, truncated %v", len(body), len(tc.body), err, l.Truncated)
			}
		})
	}
}

func TestADeadLetterBoundsItsReason(t *testing.T) {
	l := letter(t, []byte(`{"a":1}`), strings.Repeat("é", queue.MaxBody), []string{strings.Repeat("x", queue.MaxBody)})
	if body, err := l.Content(); err != nil || string(body) != `{"a":1}` || len(l.Reason) > 4<<10 || l.Faults != nil {
		t.Errorf("got a reason of %d bytes, %q, %v", len(l.Reason), body, err)
	}
}

func TestDeadLettersOfTheVersionBeforeAreRead(t *testing.T) {
	l, err := queue.ParseDeadLetter([]byte(`{"v":1,"queue":"inbox","reason":"r","sent":"2026-11-22T11:00:00Z","body":"x"}`))
	if body, berr := l.Content(); err != nil || berr != nil || string(body) != "x" || l.Queue != queue.Inbox {
		t.Errorf("got %+v, %v, %v", l, err, berr)
	}
	for _, bad := range []string{`{"v":3}`, `{}`, `x`} {
		expect.Error(t, bad, expect.ErrOf(queue.ParseDeadLetter([]byte(bad))))
	}
	expect.Error(t, "an unknown encoding", expect.ErrOf((queue.DeadLetter{Encoding: "x"}).Content()))
}

func FuzzDeadLetter(f *testing.F) {
	f.Add([]byte(`{"a":1}`), "r", 10)
	f.Fuzz(func(t *testing.T, body []byte, reason string, times int) {
		if len(body) > 0 {
			body = bytes.Repeat(body, 1+min(max(0, times), queue.MaxBody/len(body)))
			body = body[:min(len(body), queue.MaxBody)]
		}
		l := letter(t, body, reason, nil)
		got, err := l.Content()
		if err != nil || !bytes.HasPrefix(body, got) || !l.Truncated && len(got) != len(body) {
			t.Fatalf("%d of %d bytes are left: %v", len(got), len(body), err)
		}
	})
}

// TestAMessageOfANewerVersionIsKeptForTenDays adds up the back-offs of a message that no function can read. SQS allows 1,000
// receives before it moves a message to a dead queue, and deletes messages after 14 days.
func TestAMessageOfANewerVersionIsKeptForTenDays(t *testing.T) {
	t.Run("AWS-06 it is retried for ten days before SQS moves it, and not deleted", func(t *testing.T) {
		var waited time.Duration
		for received := 1; received <= queue.MaxReceives; received++ {
			waited += queue.Backoff(received)
		}
		const day = 24 * time.Hour
		if waited < 10*day || waited > 13*day {
			t.Errorf("got %.1f days of back-offs, want 10 to 13", waited.Hours()/24)
		}
	})
}

// TestBackoffGrows (AWS-05) checks the back-offs, which both kinds of queues use.
func TestBackoffGrows(t *testing.T) {
	for received, want := range map[int]time.Duration{1: 1, 2: 2, 3: 4, 4: 8, 8: 128, 9: 256, 10: 300, 500: 300, 501: 1500, 1000: 1500} {
		want *= time.Second
		for range 100 {
			if got := queue.Backoff(received); got < want*4/5 || got > want*6/5 {
				t.Errorf("got %v after %d receives, want about %v", got, received, want)
			}
		}
	}
}

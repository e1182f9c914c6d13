package expect

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// Buffer collects output that several goroutines write, for example a log. It drops everything after the first 64 MiB.
type Buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

const maxBuffer = 64 << 20

// patience limits each wait. It is long because machines may be busy.
const patience = 3 * time.Minute

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p[:max(0, min(len(p), maxBuffer-b.text.Len()))])
	return len(p), nil
}

func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Tail returns the last n bytes.
func (b *Buffer) Tail(n int) string {
	text := b.String()
	return text[max(0, len(text)-n):]
}

// Take returns the text that was written since the last call.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.text.Reset()
	return b.text.String()
}

// Await waits until the text was written n times.
func (b *Buffer) Await(tb testing.TB, text string, n int) {
	tb.Helper()
	for end := time.Now().Add(patience); strings.Count(b.String(), text) < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("%q was not written %d times in:\n%s", text, n, b)
		}
	}
}

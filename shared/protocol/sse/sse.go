// Package sse writes and reads Server-Sent Events, the text/event-stream format
// of the WHATWG HTML standard, section 9.2.
//
// It knows nothing of JSON-RPC or MCP. A write must not depend on Flush: where
// the ResponseWriter cannot flush (a Lambda function's streamed response), every write
// leaves as it is.
package sse

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ContentType is the media type of the format.
const ContentType = "text/event-stream"

// Event is one event, or a comment.
type Event struct {
	// Name is the event's type; empty is "message".
	Name string
	// ID becomes the reader's last event id; empty leaves it.
	ID string
	// Data is the event's text. Nil leaves the field out; empty sends an empty one.
	Data []byte
	// Retry asks the reader to wait so long before it reconnects; zero leaves it.
	Retry time.Duration
	// Comment is for nobody: it keeps the connection alive. An event with a
	// comment of one space or more has no other field.
	Comment string
}

// Append appends the event as it stands on the wire. A line end within the data
// starts a further data line. Name, ID and comment lose everything from their first line
// end or NUL on, which neither may contain.
func Append(dst []byte, e Event) []byte {
	if e.Comment != "" {
		dst = append(dst, ':')
		dst = append(dst, line(e.Comment)...)
		return append(dst, '\n', '\n')
	}
	if e.Name != "" {
		dst = append(dst, "event: "...)
		dst = append(dst, line(e.Name)...)
		dst = append(dst, '\n')
	}
	if e.ID != "" {
		dst = append(dst, "id: "...)
		dst = append(dst, line(e.ID)...)
		dst = append(dst, '\n')
	}
	if e.Retry > 0 {
		dst = append(dst, "retry: "...)
		dst = strconv.AppendInt(dst, e.Retry.Milliseconds(), 10)
		dst = append(dst, '\n')
	}
	if e.Data != nil {
		dst = appendData(dst, e.Data)
	}
	return append(dst, '\n')
}

func appendData(dst, data []byte) []byte {
	for {
		dst = append(dst, "data: "...)
		i := bytes.IndexAny(data, "\r\n")
		if i < 0 {
			dst = append(dst, data...)
			return append(dst, '\n')
		}
		dst = append(dst, data[:i]...)
		dst = append(dst, '\n')
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
}

func line(s string) string {
	if i := strings.IndexAny(s, "\r\n\x00"); i >= 0 {
		return s[:i]
	}
	return s
}

// Writer writes events to an HTTP response, each at once.
type Writer struct {
	w       http.ResponseWriter
	control *http.ResponseController

	mu      sync.Mutex // guards timeout, and the deadline with it
	timeout time.Duration
}

// NewWriter writes to w. A write that the other side does not take within
// timeout fails, where the connection can be given a deadline; zero waits for ever.
func NewWriter(w http.ResponseWriter, timeout time.Duration) *Writer {
	return &Writer{w: w, control: http.NewResponseController(w), timeout: timeout}
}

// Start sends the status and the headers of a stream; others may have been set
// before. X-Accel-Buffering keeps proxies from holding events back.
func (w *Writer) Start() {
	h := w.w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.w.WriteHeader(http.StatusOK)
}

// Write writes what [Append] made of one or more events. An error means that the
// other side is gone or does not read.
func (w *Writer) Write(events []byte) error {
	if err := w.limit(0); err != nil {
		return err
	}
	if _, err := w.w.Write(events); err != nil {
		return err
	}
	if err := w.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// Hurry shortens the timeout, also that of a write that is under way. It may be
// called by another goroutine than the one that writes.
func (w *Writer) Hurry(timeout time.Duration) { _ = w.limit(timeout) } // who writes finds out

// limit gives the next write, or the one that is under way, its time. A shorter timeout
// holds from then on; 0 leaves it.
func (w *Writer) limit(shorter time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if shorter > 0 && (w.timeout == 0 || shorter < w.timeout) {
		w.timeout = shorter
	}
	if w.timeout == 0 {
		return nil
	}
	err := w.control.SetWriteDeadline(time.Now().Add(w.timeout))
	if errors.Is(err, http.ErrNotSupported) {
		return nil
	}
	return err
}

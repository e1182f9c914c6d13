// Package sse writes and reads Server-Sent Events, the text/event-stream format of the WHATWG HTML standard, section 9.2.
//
// Writing does not depend on Flush, because the response writer of a Lambda function cannot flush and sends every write immediately.
package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// ContentType is the media type of an event stream.
const ContentType = "text/event-stream"

// Event is one event, or a comment.
type Event struct {
	Name string // readers assume "message" if it is empty
	// ID becomes the reader's last event id. If it is empty, the reader keeps the previous one.
	ID   string
	Data []byte // left out if it is nil
	// Retry is how long the reader should wait before it reconnects. If it is zero, the reader keeps the previous time.
	Retry time.Duration
	// Comment is ignored by readers and keeps the connection alive. If it is not empty, the other fields are not sent.
	Comment string
}

// Append appends the encoded event. A line end within the data begins another data line. Name, ID and comment must not contain line ends or
// NUL, so Append cuts them off there.
func Append(dst []byte, e Event) []byte {
	if e.Comment != "" {
		dst = append(dst, ':')
		dst = append(dst, firstLine(e.Comment)...)
		return append(dst, '\n', '\n')
	}
	if e.Name != "" {
		dst = append(dst, "event: "...)
		dst = append(dst, firstLine(e.Name)...)
		dst = append(dst, '\n')
	}
	if e.ID != "" {
		dst = append(dst, "id: "...)
		dst = append(dst, firstLine(e.ID)...)
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

func firstLine(s string) string {
	if i := strings.IndexAny(s, "\r\n\x00"); i >= 0 {
		return s[:i]
	}
	return s
}

// Writer writes events to an HTTP response and flushes each of them.
type Writer struct {
	w       http.ResponseWriter
	control *http.ResponseController

	mu      sync.Mutex // guards timeout and the connection's deadline
	timeout time.Duration
}

// NewWriter returns a writer to w. A write fails if the client does not read the written data within the timeout. There is no timeout if
// it is zero, or if the connection does not support deadlines.
func NewWriter(w http.ResponseWriter, timeout time.Duration) *Writer {
	return &Writer{w: w, control: http.NewResponseController(w), timeout: timeout}
}

// Start sends the status and the headers of a stream. The caller may have set other headers before. X-Accel-Buffering keeps proxies from
// buffering events.
func (w *Writer) Start() {
	h := w.w.Header()
	h.Set("Content-Type", ContentType)
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	w.w.WriteHeader(http.StatusOK)
}

// Write writes one or more events that [Append] has encoded. It fails if the client has disconnected or does not read.
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

// Hurry shortens the timeout of all further writes and of a write that is already running. A longer timeout has no effect. Any goroutine
// may call it.
func (w *Writer) Hurry(timeout time.Duration) { _ = w.limit(timeout) } // if this fails, the next write returns the error

// limit sets the deadline of the running write or of the next one. If the parameter shorter is less than the current timeout, it becomes
// the timeout of this and all later writes. If shorter is 0, the timeout stays.
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

// ErrTooLarge is the error for an event that exceeds the reader's limit. The stream cannot be read any further.
var ErrTooLarge = errors.New("sse: event too large")

// Reader reads events from a stream.
type Reader struct {
	r     *bufio.Reader
	limit int
	began bool
	cr    bool // the last byte was a CR; an LF that follows belongs to the same line end
}

// NewReader returns a reader of r. It fails with [ErrTooLarge] at an event of more than limit bytes.
func NewReader(r io.Reader, limit int) *Reader {
	return &Reader{r: bufio.NewReader(r), limit: limit}
}

// Next returns the next event with a known field. It skips comments and, as the standard requires, an incomplete event at the end of the
// stream. At the end it returns [io.EOF].
func (r *Reader) Next() (Event, error) {
	var e Event
	size, fields := 0, false
	for {
		text, err := r.readLine(r.limit - size)
		if err != nil {
			return Event{}, err
		}
		size += len(text)
		if len(text) == 0 {
			if fields {
				return e, nil
			}
			size = 0
			continue
		}
		name, value, _ := bytes.Cut(text, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			e.Name = string(value)
		case "id":
			if bytes.IndexByte(value, 0) >= 0 {
				continue
			}
			e.ID = string(value)
		case "data":
			if e.Data == nil {
				e.Data = make([]byte, 0, len(value))
			} else {
				e.Data = append(e.Data, '\n')
			}
			e.Data = append(e.Data, value...)
		case "retry":
			ms, err := strconv.ParseUint(string(value), 10, 31)
			if err != nil {
				continue
			}
			e.Retry = time.Duration(ms) * time.Millisecond
		default:
			continue
		}
		fields = true
	}
}

// readLine reads a line, which ends with CR, LF or both, and returns it without the end.
func (r *Reader) readLine(limit int) ([]byte, error) {
	var text []byte
	for {
		c, err := r.r.ReadByte()
		if err != nil {
			return nil, err
		}
		if !r.began { // the standard lets a stream begin with a byte order mark
			r.began = true
			if c == 0xEF {
				if rest, err := r.r.Peek(2); err == nil && string(rest) == "\xBB\xBF" {
					_, _ = r.r.Discard(2)
					continue
				}
			}
		}
		if r.cr {
			r.cr = false
			if c == '\n' {
				continue
			}
		}
		switch c {
		case '\n':
			return text, nil
		case '\r':
			// Return the line now. An LF after this CR may arrive later, and waiting for it would delay the event. The next call skips
			// this LF.
			r.cr = true
			return text, nil
		}
		if text = append(text, c); len(text) > limit {
			return nil, ErrTooLarge
		}
	}
}

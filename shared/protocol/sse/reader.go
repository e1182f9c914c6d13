package sse

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
)

// ErrTooLarge is the error for an event that exceeds the reader's limit. The stream cannot be read any further.
var ErrTooLarge = errors.New("sse: event too large")

// Reader reads events from a stream.
type Reader struct {
	r     *bufio.Reader
	limit int
	began bool
	// cr is set after a CR, because an LF that follows belongs to the same line end.
	cr bool
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
		text, err := r.line(r.limit - size)
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

// line reads a line, which ends with CR, LF or both, and returns it without the end.
func (r *Reader) line(limit int) ([]byte, error) {
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
			// The LF of a CR LF may arrive later, and waiting for it would delay the event.
			r.cr = true
			return text, nil
		}
		if text = append(text, c); len(text) > limit {
			return nil, ErrTooLarge
		}
	}
}

package ingest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/fault"
	"github.com/mcp-events/mcpevents/shared/publish"
	"github.com/mcp-events/mcpevents/shared/rate"
)

const (
	// smallBody is up to how many bytes a body is read at once from anybody. Who sent one is known only when it has been
	// read, and so many connections cost no more than they do elsewhere.
	smallBody = 256 << 10
	// largeBodies is how many bodies that are larger are in memory at once.
	largeBodies = 25
	// largeTime is how long the rest of a large body may take, as providers wait no longer for an answer. 5 MiB need
	// 512 KiB a second.
	largeTime = 10 * time.Second
	// grown is how much memory is taken for a body before any of it has come.
	grown = 64 << 10
)

// room is for the large bodies of requests that may turn out to be no one's.
type room struct{ taken atomic.Int64 }

// enter takes a place; leave gives it back.
func (m *room) enter() (leave func(), err error) {
	leave = func() { m.taken.Add(-1) }
	if m.taken.Add(1) <= largeBodies {
		return leave, nil
	}
	leave()
	limit := fault.Limit{Limit: "largeBodies", Max: largeBodies}
	return nil, fault.New(fault.Exhausted, "%d bodies of more than %d bytes are being read; try again", largeBodies, smallBody).
		With(rate.RetryAfter{Limit: limit, Seconds: 1})
}

// read reads a body as it comes, of at most [publish.MaxBody] bytes. Its place is taken when it has turned out to be
// large, and not because it says so: else a few requests that send nothing would keep out all that are large. Leave is for
// when the body is no longer in use.
func (m *room) read(w http.ResponseWriter, r *http.Request) (content []byte, leave func(), err error) {
	leave = func() {}
	var body bytes.Buffer
	if r.ContentLength > 0 {
		body.Grow(int(min(r.ContentLength, grown)) + bytes.MinRead)
	}
	coming := http.MaxBytesReader(w, r.Body, publish.MaxBody)
	n, err := body.ReadFrom(io.LimitReader(coming, smallBody+1))
	if err == nil && n > smallBody {
		if leave, err = m.enter(); err != nil {
			return nil, func() {}, err
		}
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(largeTime)) // a function has its body already
		if _, err = body.ReadFrom(coming); err == nil {
			_ = control.SetReadDeadline(time.Time{})
		}
	}
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		err = tooLarge()
	} else if err != nil {
		err = fault.New(fault.Invalid, "the body ended early")
	}
	return body.Bytes(), leave, err
}

// isEncoded reports whether a body has a Content-Encoding.
func isEncoded(h http.Header) bool {
	encoding := h.Get("Content-Encoding")
	return encoding != "" && !strings.EqualFold(encoding, "identity")
}

// decode is a body without its Content-Encoding, of at most [publish.MaxBody] bytes again.
func decode(h http.Header, body []byte) ([]byte, error) {
	switch encoding := h.Get("Content-Encoding"); {
	case !isEncoded(h):
		return body, nil
	case strings.EqualFold(encoding, "gzip"):
		return unzip(body, publish.MaxBody)
	default:
		return nil, fault.New(fault.Unsupported, "the Content-Encoding %.32q is not supported (allowed: gzip)", encoding)
	}
}

// unzip is what GZIP holds, of at most so many bytes.
func unzip(body []byte, most int) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the body is not GZIP")
	}
	content, err := io.ReadAll(io.LimitReader(z, int64(most)+1))
	if err != nil {
		return nil, fault.New(fault.Invalid, "the body is not GZIP")
	}
	if len(content) > most {
		return nil, tooLarge()
	}
	return content, nil
}

func tooLarge() error {
	return fault.New(fault.TooLarge, "the body is larger than %d bytes", publish.MaxBody).AtLimit("body", publish.MaxBody)
}

//go:build unix

package harness

import (
	"bufio"
	"bytes"
	"io"
)

type sseEvent struct {
	id, name string
	data     []byte
}

// eventReader reads server-sent events (HTML standard, section 9.2).
type eventReader struct{ r *bufio.Reader }

func newEventReader(r io.Reader) *eventReader { return &eventReader{bufio.NewReaderSize(r, 64<<10)} }

// next returns the next event. It drops comments, and an event that was cut off.
func (e *eventReader) next() (ev sseEvent, err error) {
	some := false
	var data [][]byte
	for {
		line, err := e.r.ReadBytes('\n')
		if err != nil {
			return sseEvent{}, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			if !some {
				continue
			}
			ev.data = bytes.Join(data, []byte("\n"))
			return ev, nil
		}
		if line[0] == ':' {
			continue
		}
		some = true
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "id":
			ev.id = string(value)
		case "event":
			ev.name = string(value)
		case "data":
			data = append(data, value)
		}
	}
}

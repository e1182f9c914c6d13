package webhook

import (
	"bytes"
	"io"
	"log"
)

// MuteTransport keeps what net/http says of endpoints out of the standard log. It
// writes a line for each HTTP/2 frame of a type that it does not expect, and the
// first bytes of an answer that no request asked for: an endpoint must neither
// fill our log (SRF-07) nor be quoted in it (SRF-05). Call it once, after
// [slog.SetDefault], which replaces the standard log's writer.
func MuteTransport() { log.SetOutput(muted{log.Writer()}) }

// muted drops the lines of the transport. No setting of net/http does.
type muted struct{ io.Writer }

var transportLines = [][]byte{
	[]byte("Transport: "), []byte("http2: Transport "), []byte("protocol error: "), []byte("Unsolicited response "),
	[]byte("http2: 1xx "),
}

func (m muted) Write(line []byte) (int, error) {
	for _, prefix := range transportLines {
		if bytes.Contains(line, prefix) { // the log may begin a line with the time
			return len(line), nil
		}
	}
	return m.Writer.Write(line)
}

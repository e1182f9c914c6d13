package webhook

import (
	"bytes"
	"io"
	"log"
)

// MuteTransport keeps net/http's messages about endpoints out of the standard log. net/http logs a line for each
// unexpected type of HTTP/2 frame, and the first bytes of unsolicited responses. An endpoint must not be able to
// fill our log (SRF-07) or to put text into it (SRF-05). Call it once, after [slog.SetDefault], which replaces the
// standard log's writer.
func MuteTransport() { log.SetOutput(muted{log.Writer()}) }

// muted drops the lines of the transport, because net/http has no setting for it.
type muted struct{ io.Writer }

var transportLines = [][]byte{
	[]byte("Transport: "), []byte("http2: Transport "), []byte("protocol error: "), []byte("Unsolicited response "),
	[]byte("http2: 1xx "),
}

func (m muted) Write(line []byte) (int, error) {
	for _, prefix := range transportLines {
		if bytes.Contains(line, prefix) { // the line may begin with the time
			return len(line), nil
		}
	}
	return m.Writer.Write(line)
}

package webhook

import (
	"bufio"
	"bytes"
	"io"
	"log"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// TestMuteTransport checks that endpoints cannot write to our log.
func TestMuteTransport(t *testing.T) {
	var written bytes.Buffer // guarded by the log's own lock
	before := log.Writer()
	log.SetOutput(&written)
	t.Cleanup(func() { log.SetOutput(before) })
	MuteTransport()

	t.Run("unexpected frames write no lines", func(t *testing.T) {
		srv, s := serveFrames(t, func(f *http2.Framer, stream uint32) error {
			return forever(func() error { return f.WritePriority(stream, http2.PriorityParam{Weight: 1}) })
		})
		s.Send(t.Context(), request(srv.target))
		<-srv.ended
	})
	t.Run("SRF-05 an unsolicited response is not quoted", func(t *testing.T) {
		ended := make(chan struct{})
		addr := startTCP(t, answering(func(c net.Conn, r *bufio.Reader) {
			defer close(ended)
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			time.Sleep(50 * time.Millisecond) // until the connection is idle, for which there is no signal
			_, _ = io.WriteString(c, "HTTP/1.1 200 s3cr3t-marker\r\n\r\n")
			_, _ = io.Copy(io.Discard, r)
		}))
		if o := open(t, Options{}).Send(t.Context(), request("http://"+addr)); !o.OK() {
			t.Error(o.Err)
		}
		<-ended
	})
	log.Print("kept")
	if got := written.String(); strings.Count(got, "\n") != 1 || !strings.HasSuffix(got, "kept\n") {
		t.Errorf("got %d bytes: %.300s", len(got), got)
	}
}

package standalone

import (
	"io"
	"net/http"
	"time"
)

// bodyTime is how long a client may take to send the body of a request. For the largest body, 5 MiB, that is 90 KiB per second.
const bodyTime = time.Minute

// refusedBodyTime is how long the server waits for the rest of a body that the handler did not read to its end. Before
// net/http sends the response, it reads up to 256 KiB of it.
const refusedBodyTime = time.Second

// boundBodies returns a handler that ends requests whose bodies do not arrive in time. http.Server.ReadTimeout would end streams
// too, so boundBodies sets a deadline and removes it after the body. If a handler responds without reading the body, the client
// gets the response within [refusedBodyTime].
func boundBodies(h http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body := newTimedBody(w, r, limit)
		h.ServeHTTP(w, r)
		if body != nil && !body.whole {
			_ = body.control.SetReadDeadline(time.Now().Add(min(limit, refusedBodyTime)))
		}
	})
}

// timedBody is a body that removes the deadline when it has been read.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
	left    int64 // bytes; negative if the length is unknown
	whole   bool
	// received is called when the body has been read.
	received func()
}

// newTimedBody replaces the body of a request with one that must arrive within the limit. It returns nil if there is no body, or if
// the connection cannot have a deadline. It is not part of boundBodies because an open stream keeps the frame of boundBodies on its
// stack as long as it lasts.
func newTimedBody(w http.ResponseWriter, r *http.Request, limit time.Duration) *timedBody {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return nil
	}
	noteBody(r, true)
	body := &timedBody{ReadCloser: r.Body, control: control, left: r.ContentLength, received: func() { noteBody(r, false) }}
	r.Body = body
	return body
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.left > 0 {
		b.left -= int64(n)
	}
	if !b.whole && (err == io.EOF || b.left == 0) {
		b.whole = true
		_ = b.control.SetReadDeadline(time.Time{})
		b.received()
	}
	return n, err
}

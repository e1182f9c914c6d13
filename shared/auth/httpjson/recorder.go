package httpjson

import (
	"bytes"
	"net/http"
)

// Recorder keeps a response whole, for one that goes on in another form.
type Recorder struct {
	Status int // 0 until it is known
	Body   bytes.Buffer

	header http.Header
}

// NewRecorder keeps the response of one request.
func NewRecorder() *Recorder { return &Recorder{header: http.Header{}} }

// Header implements [http.ResponseWriter].
func (r *Recorder) Header() http.Header { return r.header }

// WriteHeader implements [http.ResponseWriter].
func (r *Recorder) WriteHeader(status int) {
	if r.Status == 0 {
		r.Status = status
	}
}

// Write implements [http.ResponseWriter].
func (r *Recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.Body.Write(b)
}

package httpjson

import (
	"bytes"
	"net/http"
)

// Recorder is an [http.ResponseWriter] that records a response, so that it can be sent in another form.
type Recorder struct {
	Status int // 0 until WriteHeader or Write is called
	Body   bytes.Buffer

	header http.Header
}

// NewRecorder returns an empty recorder.
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

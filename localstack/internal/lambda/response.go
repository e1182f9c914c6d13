package lambda

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Response is the response of an invocation. It may still be in progress.
type Response struct {
	// RequestID is Lambda's id of the invocation.
	RequestID string
	// ContentType is declared by the runtime, e.g. [HTTPIntegration].
	ContentType string
	// FunctionError is empty, or "Unhandled" if Body contains a JSON error instead of a response.
	FunctionError string
	// Body is read while the function writes it. If the function dies before the end, Read fails. Close releases the
	// instance, and may be called before the end.
	Body io.ReadCloser
}

// HTTPIntegration is the content type of a response that begins with its status and headers: JSON, then eight NUL
// bytes, then the body.
const HTTPIntegration = "application/vnd.awslambda.http-integration-response"

// ErrTooLarge is returned by [Response.ReadAll] for a response that is larger than [MaxPayload].
var ErrTooLarge = errors.New("lambda: the response is over 6 MiB")

// ReadAll reads a response to its end and closes it, for callers that do not stream. It fails if the function dies
// while it writes.
func (r *Response) ReadAll() ([]byte, error) {
	defer r.Body.Close()
	b, err := io.ReadAll(io.LimitReader(r.Body, MaxPayload+1))
	if err != nil {
		return nil, fmt.Errorf("lambda: the response broke off: %w", err)
	}
	if len(b) > MaxPayload {
		return nil, ErrTooLarge
	}
	return b, nil
}

// functionError is the JSON that the caller of a failed invocation gets.
type functionError struct {
	Type    string `json:"errorType,omitempty"`
	Message string `json:"errorMessage"`
}

// failed returns the response for an invocation that ended with an error.
func failed(id string, payload []byte) *Response {
	return &Response{
		RequestID: id, ContentType: "application/json", FunctionError: "Unhandled",
		Body: io.NopCloser(bytes.NewReader(payload)),
	}
}

func failure(id, kind, format string, args ...any) *Response {
	b, err := json.Marshal(functionError{Type: kind, Message: "RequestId: " + id + " Error: " + fmt.Sprintf(format, args...)})
	if err != nil {
		panic(err) // two strings always encode
	}
	return failed(id, b)
}

// pass copies the body of a response while the function writes it. If the function reports an error in the trailers,
// pass returns it.
func pass(w io.Writer, r *http.Request) error {
	if _, err := io.Copy(w, r.Body); err != nil {
		return err
	}
	if kind := r.Trailer.Get(trailerErrorType); kind != "" {
		detail, _ := base64.StdEncoding.DecodeString(r.Trailer.Get(trailerErrorBody))
		return fmt.Errorf("lambda: the function failed while it wrote: %s %s", kind, detail)
	}
	return nil
}

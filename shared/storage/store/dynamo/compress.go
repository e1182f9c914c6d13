package dynamo

import (
	"bytes"
	"compress/flate"
	"io"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// unit is what DynamoDB bills a write by.
const unit = 1 << 10

// deflaters are kept, for one takes more than half a megabyte.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.DefaultCompression)
	if err != nil {
		panic(err) // the level is valid
	}
	return w
}}

// deflate compresses a value, or returns nil if that saves no unit: most values are smaller than
// one, and sealed ones do not shrink. Segments of the log do, and bytes are most of what an event costs.
func deflate(value []byte) []byte {
	if len(value) <= unit {
		return nil
	}
	var out bytes.Buffer
	out.Grow(len(value))
	w := deflaters.Get().(*flate.Writer)
	defer deflaters.Put(w)
	w.Reset(&out)
	if _, err := w.Write(value); err != nil {
		return nil // a buffer takes all
	}
	if err := w.Close(); err != nil || len(value)-out.Len() < unit {
		return nil
	}
	return out.Bytes()
}

// inflate reads what deflate made.
func inflate(packed []byte) ([]byte, error) {
	r := flate.NewReader(bytes.NewReader(packed))
	value, err := io.ReadAll(io.LimitReader(r, store.MaxItem+1))
	if err == nil && len(value) > store.MaxItem {
		err = fault.New(fault.Internal, "a value of more than %d bytes", store.MaxItem)
	}
	return value, err
}

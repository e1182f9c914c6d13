package dynamo

import (
	"bytes"
	"compress/flate"
	"io"
	"sync"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// unit is the size in which DynamoDB bills writes.
const unit = 1 << 10

// deflaters are reused, because one takes more than half a megabyte.
var deflaters = sync.Pool{New: func() any {
	w, err := flate.NewWriter(io.Discard, flate.DefaultCompression)
	if err != nil {
		panic(err) // the level is valid
	}
	return w
}}

// deflate compresses a value. It returns nil if that does not save a unit. Most values are smaller than a unit, and sealed
// values do not shrink. Segments of the log shrink, and their bytes are most of the cost of an event.
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
		return nil // cannot happen: a buffer accepts every write
	}
	if err := w.Close(); err != nil || len(value)-out.Len() < unit {
		return nil
	}
	return out.Bytes()
}

// inflate decompresses the result of deflate.
func inflate(packed []byte) ([]byte, error) {
	r := flate.NewReader(bytes.NewReader(packed))
	value, err := io.ReadAll(io.LimitReader(r, store.MaxItem+1))
	if err == nil && len(value) > store.MaxItem {
		err = fault.New(fault.Internal, "a value of more than %d bytes", store.MaxItem)
	}
	return value, err
}

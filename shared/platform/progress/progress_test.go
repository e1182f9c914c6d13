package progress_test

import (
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/progress"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestCountShowsTheDoneItems(t *testing.T) {
	var out strings.Builder
	var done atomic.Int64
	stop := progress.Count(&out, "delivered", 20, done.Load)
	done.Store(20)
	stop()
	expect.Contains(t, "the bar", out.String(), "delivered 20 / 20")
}

func TestBytesShowsTheReadBytes(t *testing.T) {
	var out strings.Builder
	r, stop := progress.Bytes(&out, "read", 2048, strings.NewReader(strings.Repeat("x", 2048)))
	expect.Equal(t, "the bytes", expect.Value(io.Copy(io.Discard, r))(t), 2048)
	stop()
	expect.Contains(t, "the bar", out.String(), "read 2.0 KiB / 2.0 KiB")
}

func TestANilWriterShowsNothing(t *testing.T) {
	progress.Count(nil, "delivered", 1, func() int64 { t.Error("done was called"); return 0 })()
	in := strings.NewReader("x")
	r, stop := progress.Bytes(nil, "read", 1, in)
	stop()
	expect.Equal(t, "the reader", r, io.Reader(in))
}

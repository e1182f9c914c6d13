package progress_test

import (
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/progress"
)

func TestABarShowsWhatIsDone(t *testing.T) {
	var out strings.Builder
	var done atomic.Int64
	stop := progress.Count(&out, "delivered", 20, done.Load)
	done.Store(20)
	stop()
	if !strings.Contains(out.String(), "delivered 20 / 20") {
		t.Errorf("shows %q", out.String())
	}
}

func TestABarOfBytesShowsWhatWasRead(t *testing.T) {
	var out strings.Builder
	r, stop := progress.Bytes(&out, "read", 2048, strings.NewReader(strings.Repeat("x", 2048)))
	if n, err := io.Copy(io.Discard, r); n != 2048 || err != nil {
		t.Fatalf("read %d bytes, %v", n, err)
	}
	stop()
	if !strings.Contains(out.String(), "read 2.0 KiB / 2.0 KiB") {
		t.Errorf("shows %q", out.String())
	}
}

func TestNobodyWatches(t *testing.T) {
	progress.Count(nil, "delivered", 1, func() int64 { t.Error("asked"); return 0 })()
	in := strings.NewReader("x")
	r, stop := progress.Bytes(nil, "read", 1, in)
	stop()
	if r != io.Reader(in) {
		t.Error("the reader is another")
	}
}

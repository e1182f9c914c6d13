// Package progress shows progress bars on a terminal. With a nil writer it shows nothing, so callers pass a writer only if it is a
// terminal.
package progress

import (
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

const interval = 100 * time.Millisecond

// Count shows a progress bar on w until stop is called. The function done returns how many of the total items are done.
func Count(w io.Writer, label string, total int64, done func() int64) (stop func()) {
	if w == nil {
		return func() {}
	}
	bars := mpb.New(mpb.WithOutput(w), mpb.WithAutoRefresh())
	bar := bars.AddBar(total, mpb.PrependDecorators(decor.Name(label+" "), decor.CountersNoUnit("%d / %d")),
		mpb.AppendDecorators(decor.AverageETA(decor.ET_STYLE_GO)))
	ended := make(chan struct{})
	var showing sync.WaitGroup
	showing.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				bar.SetCurrent(done())
			case <-ended:
				bar.SetCurrent(done())
				bar.Abort(false) // has no effect on a full bar
				return
			}
		}
	})
	return func() {
		close(ended)
		showing.Wait()
		bars.Wait()
	}
}

// Bytes returns a reader of the bytes of r. It shows on w how many of the bytes were read, until stop is called. The parameter size is
// the total number of bytes, or 0 if it is unknown.
func Bytes(w io.Writer, label string, size int64, r io.Reader) (read io.Reader, stop func()) {
	if w == nil {
		return r, func() {}
	}
	bars := mpb.New(mpb.WithOutput(w), mpb.WithAutoRefresh())
	bar := bars.AddBar(size, mpb.PrependDecorators(decor.Name(label+" "), decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f")))
	return bar.ProxyReader(r), func() {
		bar.SetTotal(-1, true)
		bars.Wait()
	}
}

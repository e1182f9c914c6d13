// Package progress shows on a terminal how far long work is. Whether somebody watches is the
// caller's to know: a nil writer shows nothing.
package progress

import (
	"io"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// interval is how often a bar is drawn anew.
const interval = 100 * time.Millisecond

// Count shows a bar of so many of total, which it asks for now and then, until stop is called.
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
				bar.Abort(false) // no effect on one that is full
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

// Bytes shows how much was read of r, whose size is 0 where it is not known, until stop is called.
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

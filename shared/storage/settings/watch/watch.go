// Package watch reports when an operator's files change on disk, so that a stand-alone server can apply them.
package watch

import (
	"context"
	"os"
	"time"
)

const (
	// every is the time between two checks of the files.
	every = time.Second
	// settle is how long the files must stay unchanged before a change is reported, because editors and cp write in several steps.
	settle = 150 * time.Millisecond
)

// Files returns a channel that receives a value after one of the files was written, replaced or removed, or became readable or unreadable.
// The watch ends when ctx ends. Call Files before you read the files, so that you miss no change.
//
// Files looks at the files once a second instead of using file-system notifications. Notifications for the directory of a path would miss
// changes to a file behind a link, for example to the ..data link of a Kubernetes ConfigMap, and changes in a replaced directory.
func Files(ctx context.Context, paths []string) <-chan struct{} {
	changed := make(chan struct{}, 1)
	before := look(paths)
	go func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			now := look(paths)
			if equal(before, now) {
				continue
			}
			if before = waitUntilSettled(ctx, paths, now); ctx.Err() != nil {
				return
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed
}

func waitUntilSettled(ctx context.Context, paths []string, state []os.FileInfo) []os.FileInfo {
	pause := time.NewTimer(settle)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return state
		case <-pause.C:
		}
		now := look(paths)
		if equal(state, now) {
			return state
		}
		state = now
		pause.Reset(settle)
	}
}

// look returns the state of each file. The state is nil if the file does not exist or cannot be read.
func look(paths []string) []os.FileInfo {
	state := make([]os.FileInfo, len(paths))
	for i, path := range paths {
		if info, err := os.Stat(path); err == nil && isReadable(path, info) {
			state[i] = info
		}
	}
	return state
}

// isReadable reports whether the process can read the file. It opens the file, because the mode in info is not enough: the owner, the
// group and access control lists matter too.
func isReadable(path string, info os.FileInfo) bool {
	if !info.Mode().IsRegular() {
		return true // opening a pipe waits for its writer
	}
	f, err := os.Open(path)
	if err == nil {
		_ = f.Close()
	}
	return err == nil
}

func equal(a, b []os.FileInfo) bool {
	for i := range a {
		switch x, y := a[i], b[i]; {
		case x == nil || y == nil:
			if x != y {
				return false
			}
		case !os.SameFile(x, y) || x.Size() != y.Size() || !x.ModTime().Equal(y.ModTime()) || x.Mode() != y.Mode():
			return false
		}
	}
	return true
}

// Package watch finds changes of an operator's files, which package apply then brings into use.
package watch

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/mcp-events/mcpevents/shared/fault"
)

// settle is how long a file must not have changed before it is read: editors and
// copying write in several steps.
const settle = 150 * time.Millisecond

// Files returns a channel that gets a value when one of the files was written or replaced, until ctx ends. It watches
// their directories, since many programs replace a file instead of writing it.
func Files(ctx context.Context, paths []string, log *slog.Logger) (<-chan struct{}, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "watch the files")
	}
	names := map[string]bool{}
	for _, p := range paths {
		path, err := filepath.Abs(p)
		if err == nil {
			err = watcher.Add(filepath.Dir(path))
		}
		if err != nil {
			_ = watcher.Close()
			return nil, fault.Wrap(fault.Unavailable, err, "watch %s", p)
		}
		names[path] = true
	}
	changed := make(chan struct{}, 1)
	go func() {
		defer func() { _ = watcher.Close() }()
		timer := time.NewTimer(time.Hour)
		timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case ev := <-watcher.Events:
				// Mounted configuration is swapped by a link whose name begins with dots.
				if names[ev.Name] || strings.HasPrefix(filepath.Base(ev.Name), "..") {
					timer.Reset(settle)
				}
			case err := <-watcher.Errors:
				log.Warn("file watch failed", "error", err)
			case <-timer.C:
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
	}()
	return changed, nil
}

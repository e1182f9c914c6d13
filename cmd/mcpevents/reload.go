package main

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/mcp-events/mcpevents/server"
	"github.com/mcp-events/mcpevents/shared/fault"
)

// settle is how long a file must not have changed before it is read: editors and
// copying write in several steps.
const settle = 150 * time.Millisecond

// follow takes over changes of the catalog and configuration files until ctx
// ends: when a file changes, and on SIGHUP. Files with a fault change nothing.
func (c *ServeCmd) follow(ctx context.Context, e *server.Server, log *slog.Logger) error {
	paths := append(slices.Collect(maps.Values(c.Own)), c.Catalog)
	if c.Config != "" {
		paths = append(paths, c.Config)
	}
	changed, err := watchFiles(ctx, paths, log)
	if err != nil {
		return err
	}
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	go func() {
		defer signal.Stop(hangup)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			case <-hangup:
				log.Info("SIGHUP: reading the files again")
			}
			s, err := c.settings()
			if err == nil {
				err = e.Reload(ctx, s)
			}
			if err != nil && ctx.Err() == nil {
				log.Error("changed files were not taken; what was in use stays in use", "error", err)
			}
		}
	}()
	return nil
}

// watchFiles tells when one of the files was written or replaced. It watches their
// directories, since many programs replace a file instead of writing it.
func watchFiles(ctx context.Context, paths []string, log *slog.Logger) (<-chan struct{}, error) {
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
				log.Warn("watching the files failed; SIGHUP still reads them", "error", err)
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

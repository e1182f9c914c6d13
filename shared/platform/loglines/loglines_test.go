package loglines

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

type callerKey struct{}

// labeling is a handler that adds an attribute from the context of a line.
type labeling struct{ slog.Handler }

func (l labeling) Handle(ctx context.Context, r slog.Record) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	r.AddAttrs(slog.Any("caller", ctx.Value(callerKey{})))
	return l.Handler.Handle(ctx, r)
}

// GWN-25: with a delay, log lines are written together and in order. They do not wait when there are many, or at the end. They
// keep the values of their contexts, even if a client has cancelled.
func TestLinesAreWrittenTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		l := Writer{Handler: labeling{slog.NewTextHandler(&out, nil)}, Delay: time.Second}
		add := func(names ...string) {
			for _, name := range names {
				ctx, cancel := context.WithCancel(context.WithValue(t.Context(), callerKey{}, "of-"+name))
				l.Add(ctx, slog.NewRecord(time.Time{}, slog.LevelInfo, name, 0))
				cancel()
			}
		}
		is := func(what string, names ...string) {
			t.Helper()
			l.writing.Lock()
			defer l.writing.Unlock()
			want := ""
			for _, name := range names {
				want += "level=INFO msg=" + name + " caller=of-" + name + "\n"
			}
			expect.Equal(t, what, out.String(), want)
			out.Reset()
		}
		for range 2 {
			add("a", "b")
			is("the log before the delay")
			time.Sleep(time.Second)
			synctest.Wait()
			is("the log after the delay", "a", "b")
		}
		add("a", "b")
		l.Flush()
		is("the log after a flush", "a", "b")
		many := slices.Repeat([]string{"c"}, maxLines)
		add(many...)
		is("the log of many lines", many...)
		time.Sleep(time.Second)
		synctest.Wait()
		is("the log at the end")
	})
}

package streams

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
	"github.com/mcp-events/mcpevents/shared/protocol/sse"
	"github.com/mcp-events/mcpevents/shared/storage/store/sqlite"
	"github.com/mcp-events/mcpevents/test/expect"
)

// written is a response that records its writes.
type written struct {
	http.ResponseWriter
	writes []string
	err    error
}

func (w *written) Write(b []byte) (int, error) {
	w.writes = append(w.writes, string(b))
	return len(b), w.err
}

var alice = auth.Principal{ID: "alice", Workspace: "default", Scopes: auth.Scopes()}

// always admits a principal, whatever the credentials are.
type always auth.Principal

func (a always) Authenticate(context.Context, http.Header) (auth.Principal, error) {
	return auth.Principal(a), nil
}

type backends = Backends

// none stands for a gateway without backends.
type none struct{ backends }

func (none) Any(context.Context) bool                          { return false }
func (none) Backends(context.Context, auth.Principal) []string { return nil }

// newListen returns the open listen of alice for changes of the list of resources.
func newListen(t *testing.T) (*Stream, *written) {
	t.Helper()
	db := expect.Value(sqlite.Open(sqlite.Memory, sqlite.Options{SweepEvery: -1}))(t)
	t.Cleanup(func() { _ = db.Close() })
	tails := stream.New(&eventlog.Log{DB: db}, db, expect.Value(eventlog.NewSealer(make([]byte, 32)))(t))
	t.Cleanup(tails.Close)
	out := &written{}
	l := &listenFraming{}
	l.stream = &Stream{
		Options:   Options{Framing: l, Gather: true},
		Streams:   &Streams{Feeds: tails, Auth: always(alice), Backends: none{}, Timing: method.Timing{Heartbeat: time.Hour}},
		Caller:    Caller{Principal: alice, checked: time.Now()},
		interests: interests{resources: true}, subscriptionID: []byte("1"), out: sse.NewWriter(out, 0), wrote: time.Now(),
	}
	expect.OK(t, l.stream.Open(t.Context(), stream.Request{Workspace: alice.Workspace, Topics: l.stream.extraTopics(t.Context())}))
	t.Cleanup(l.stream.close)
	return l.stream, out
}

// A listen sends all messages that are ready with one write, in their order and each with its own cursor.
func TestReadyMessagesShareAWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, out := newListen(t)
		notify := func(times int) {
			for range times {
				expect.OK(t, s.Streams.Feeds.Log.Notify(t.Context(), alice.Workspace, stream.TopicPrincipal(alice.ID), []byte(`{}`)))
			}
			synctest.Wait()
		}
		expect.OK(t, s.sendPending(t.Context()))
		expect.Equal(t, "the writes without a message", len(out.writes), 0)
		notify(3)
		expect.OK(t, s.sendPending(t.Context()))
		expect.Equal(t, "the writes of three messages", len(out.writes), 1)
		expect.Equal(t, "the messages", strings.Count(out.writes[0], spec.NoteResourcesChange), 3)
		cursors := map[string]bool{}
		for message := range strings.SplitSeq(strings.TrimSpace(out.writes[0]), "\n\n") {
			_, after, _ := strings.Cut(message, spec.MetaCursor+`":"`)
			cursor, _, _ := strings.Cut(after, `"`)
			cursors[cursor] = true
		}
		if len(cursors) != 3 || !cursors[s.ResumeAt()] || cursors[""] {
			t.Errorf("got the cursors %v, and the stream is at %s", cursors, s.ResumeAt())
		}
		out.err = errors.New("the connection is broken")
		notify(1)
		expect.Is(t, "a write that fails", s.sendPending(t.Context()), method.ErrWriting)
	})
}

// slow is a source of catalogs that calls read before each catalog.
type slow struct {
	catalog.Source
	read func()
}

func (s slow) Catalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	s.read()
	return s.Source.Catalog(ctx, workspace)
}

// After a change of the catalog, a listen resolves its URIs again, which may take long. It sends the messages that are ready before that.
func TestReadyMessagesDoNotWaitForURIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, out := newListen(t)
		sent := -1
		s.Streams.Catalogs.Source = slow{catalog.NewStatic(&catalog.Catalog{}), func() { sent = len(out.writes) }}
		expect.OK(t, s.Streams.Feeds.Log.Notify(t.Context(), alice.Workspace, stream.TopicCatalog, []byte(`{}`)))
		synctest.Wait()
		expect.OK(t, s.sendPending(t.Context()))
		expect.Equal(t, "the writes before the URIs are resolved", sent, 1)
	})
}

// The reasons that a test cannot bring about in a moment.
func TestEndReasons(t *testing.T) {
	gone, leave := context.WithCancel(t.Context())
	leave()
	open := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/mcp", nil)
	for name, tc := range map[string]struct {
		r    *http.Request
		why  error
		want string
	}{
		"a write that took too long":      {open, errors.Join(method.ErrWriting, &net.OpError{Op: "write", Err: os.ErrDeadlineExceeded}), "slow_reader"},
		"a feed that ran over":            {open, stream.ErrSlow, "slow_reader"},
		"a failed write":                  {open, errors.Join(method.ErrWriting, net.ErrClosed), "client_closed"},
		"the store fails":                 {open, fault.New(fault.Unavailable, "x"), "error"},
		"what fails as the client leaves": {open.WithContext(gone), fault.New(fault.Unavailable, "x"), "client_closed"},
	} {
		expect.Equal(t, name, endReason(tc.r, tc.why), tc.want)
	}
}

// slowDeadline is a response whose deadline takes long to set.
type slowDeadline struct {
	*httptest.ResponseRecorder
	began chan struct{}
	set   atomic.Bool
}

func (w *slowDeadline) SetWriteDeadline(time.Time) error {
	close(w.began)
	time.Sleep(50 * time.Millisecond)
	w.set.Store(true)
	return nil
}

// With HTTP/2, setting the deadline of a response whose handler has returned can end the process with a panic.
func TestAStreamThatEndsDuringAShutdownWaitsForItsDeadline(t *testing.T) {
	ending, end := context.WithCancel(t.Context())
	w := &slowDeadline{ResponseRecorder: httptest.NewRecorder(), began: make(chan struct{})}
	_, done := (&Admission{ending: ending}).writer(w)
	end()
	<-w.began
	done()
	expect.True(t, "the deadline is set before the handler returns", w.set.Load())
}

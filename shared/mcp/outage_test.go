package mcp

import (
	"context"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/mcp/method"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// TestWhileTheStoreIsGone: AUT-06: the answer does not say what the server tried.
func TestWhileTheStoreIsGone(t *testing.T) {
	f := newFixture(t, nil)
	must(t, f.db.(io.Closer).Close())
	for name, r := range map[string]reply{
		"read":       f.stateless(alice, spec.MethodRead, `"uri":"event://ci/deploy"`),
		"poll":       f.stateless(alice, spec.MethodEventsPoll, `"name":"github.push","arguments":{"owner":"acme"}`),
		"listen":     f.stateless(alice, spec.MethodListen, `"notifications":{"resourceSubscriptions":["event://ci"]}`),
		"initialize": f.initialize(alice, spec.V20251125, `{}`),
		"register":   f.stateless(alice, spec.MethodRegister, `"uris":["event://ci/deploy"],"targetUri":"https://a.example/"`),
		"subscribe":  f.stateless(alice, spec.MethodEventsSub, `"name":"ci.build",`+callback),
		"a session":  f.sessionBased(alice, "some", spec.MethodPing, ""),
	} {
		m := r.rpc(t)
		if m.Error == nil || m.Error.Code != method.CodeUnavailable || m.Error.Message != "this cannot be done now; try again" || strings.Contains(r.Body, "data") {
			t.Errorf("%s: %d %s", name, r.Status, r.Body)
		}
	}
}

// shaky are catalogs that cannot be read so many times.
type shaky struct {
	catalog.Source
	fails atomic.Int64
}

func (s *shaky) Catalog(ctx context.Context, workspace string) (*catalog.Catalog, error) {
	if s.fails.Add(-1) >= 0 {
		return nil, fault.New(fault.Unavailable, "the catalog cannot be read")
	}
	return s.Source.Catalog(ctx, workspace)
}

// TestAStreamThatFailsOverAnEventLosesNothing: SUB-08, SES-03, SSE-03: the position that a stream
// ends with is in front of the event that it could not send.
func TestAStreamThatFailsOverAnEventLosesNothing(t *testing.T) {
	const uri = "event://ci/deploy"
	const filter = `{"resourceSubscriptions":["` + uri + `"]}`
	catalogs := &shaky{}
	f := newFixture(t, func(o *Options) { catalogs.Source, o.Catalogs = o.Catalogs, catalogs })
	session := f.session(alice, spec.V20251125)
	f.follow(alice, session, uri)

	l, s := f.listen(alice, "1", filter), f.stream(alice, session, "")
	if m := l.next(); m.Method != spec.NoteAcknowledged {
		t.Fatalf("got %s", m.sse.Data)
	}
	s.event()
	f.publish(uri, `{"n":1}`)
	l.next().isEvent(t, uri, `{"n":1}`)
	s.next().isEvent(t, uri, `{"n":1}`)

	catalogs.fails.Store(math.MaxInt64)
	f.publish(uri, `{"n":2}`)
	listened, followed := l.next(), s.event()
	catalogs.fails.Store(0)
	if listened.Result.Meta[spec.MetaCursor] == nil || followed.ID == "" {
		t.Fatalf("the streams end with %s and %+v, want a position", listened.sse.Data, followed)
	}

	l = f.listenWith(alice, "2", filter, `"`+spec.MetaCursor+`":`+string(listened.Result.Meta[spec.MetaCursor]))
	s = f.stream(alice, session, followed.ID)
	if m := l.next(); m.Method != spec.NoteAcknowledged {
		t.Fatalf("got %s", m.sse.Data)
	}
	s.event()
	l.next().isEvent(t, uri, `{"n":2}`)
	s.next().isEvent(t, uri, `{"n":2}`)
}

package gateway

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// GWN-08: given a stored session that cannot be decoded, then the next call begins a new one and continues.
func TestAnUndecodableSessionWithABackend(t *testing.T) {
	s := newScripted(t, func(s *scripted) { s.call = func(t *turn) { t.result(`{"content":[]}`) } })
	db := memory(t)
	g := gatewayOver(t, db, at("b", s))
	key := sessionKey(holder(sessionBased("s1")), g.VisibleTo(t.Context(), ann)[0])
	for range 2 {
		damaged := store.Item{Key: key, Value: []byte(`{"v":`), Version: 7, Expires: time.Now().Add(time.Hour)}
		if err := db.Write(t.Context(), store.Put(damaged)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if text, err := call(t, g, sessionBased("s1"), "t"); err != nil || !strings.Contains(text, `"content":[]`) {
				t.Errorf("got %s, %v", text, err)
			}
		}
	}
	if got := g.broken.Count("session with a backend"); got != 2 {
		t.Errorf("counted %d", got)
	}
	if n := len(s.received("tools/call")); n != 4 {
		t.Errorf("the backend got %d calls", n)
	}
}

// GWN-09: given a stored question that cannot be decoded, then an answer to it is an answer to an unknown question.
func TestAnUndecodableQuestion(t *testing.T) {
	s := newScripted(t)
	db := memory(t)
	g := gatewayOver(t, db, at("b", s))
	id, err := g.elicitations.ask(t.Context(), sessionBased("s1"), g.VisibleTo(t.Context(), ann)[0], backendSession{}, json.RawMessage(`1`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Write(t.Context(), store.Put(store.Item{Key: elicitationKey(id), Value: []byte(`[`), Expires: time.Now().Add(time.Hour)})); err != nil {
		t.Fatal(err)
	}
	if err := g.Answer(t.Context(), sessionBased("s1"), id, json.RawMessage(`{}`)); !fault.Is(err, fault.NotFound) {
		t.Errorf("got %v", err)
	}
	if got := g.broken.Count("request of a backend"); got != 1 {
		t.Errorf("counted %d", got)
	}
}

// GWN-03: a lease that cannot be decoded belongs to another relay until it expires. Then any relay can take it.
func TestAnUndecodableLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t)
		db := memory(t)
		g := gatewayOver(t, db, at("b", s))
		key := store.Key{Table: store.Sessions, Partition: "relay#default#b", Sort: "-"}
		if err := db.Write(t.Context(), store.Put(store.Item{Key: key, Value: []byte(`{`), Expires: time.Now().Add(2 * time.Second)})); err != nil {
			t.Fatal(err)
		}
		relaying(t, "r", g, newLog())
		until(t, "the stream is open", func() bool { return s.open() == 1 })
	})
}

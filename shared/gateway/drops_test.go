package gateway

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
)

// journal keeps the lines that a gateway logs about what it dropped.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

// dropped adds up what the lines say, by reason, and counts the lines.
func (j *journal) dropped(t *testing.T, backend string) (counts map[string]int64, lines int) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	counts = map[string]int64{}
	for text := range strings.Lines(j.buf.String()) {
		var line struct {
			Workspace, Backend, Reason string
			GatewayMessagesDropped     int64
			AWS                        json.RawMessage `json:"_aws"`
		}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatal(err)
		}
		if line.GatewayMessagesDropped == 0 {
			continue
		}
		if line.Workspace != auth.DefaultWorkspace || line.AWS == nil {
			t.Errorf("got %s", text)
		}
		if line.Backend == backend {
			counts[line.Reason] += line.GatewayMessagesDropped
			lines++
		}
	}
	return counts, lines
}

// GWN-05: every message that is dropped within a call is counted, once, by backend and reason; the counters and the lines
// of the log add up to the same; and however many there are, there are few lines.
func TestDroppedMessagesAreCounted(t *testing.T) {
	const each = 200
	script := func(t *turn) {
		for i := range each {
			t.write(`{"jsonrpc":"2.0","id":99,"result":{}}`)                                                           // another request
			t.write(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"x","progress":1}}`) // another's
			t.write(`{nonsense`)                                                                                       // no JSON
			t.write(`{"jsonrpc":"2.0","method":"notifications/%d"}`, i)                                                // not within a call
			t.write(`{"jsonrpc":"1.0","id":%d,"result":{}}`, i)                                                        // no JSON-RPC
			t.write(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`)                    // is handed on
		}
		t.result(`{}`)
	}
	bad := newScripted(t, func(s *scripted) {
		s.call = script
		s.lists = func(method, _ string) string {
			if method == "tools/list" {
				return `{"tools":[{"name":"t"},{"title":"none"},{"name":""}]}`
			}
			return emptyList(method)
		}
	})
	good := newScripted(t, func(s *scripted) { s.call = func(t *turn) { t.result(`{}`) } })
	j := &journal{}
	g := gatewayOver(t, memory(t), at("bad", bad, prefix("bad_")), at("good", good, prefix("good_")))
	g.drops.Log, g.drops.Every = slog.New(slog.NewJSONHandler(j, nil)), 300*time.Millisecond
	began := time.Now()
	var calls sync.WaitGroup
	for i := range 3 {
		calls.Go(func() {
			x := start(t, g, sessionBased(fmt.Sprint("s", i)), "bad_t", "1", `{"name":"bad_t"}`)
			if err := x.end(t); err != nil {
				t.Error(err)
			}
			if n := len(x.messages); n != each+1 {
				t.Errorf("the client got %d messages, want %d", n, each+1)
			}
		})
		if _, err := call(t, g, sessionBased(fmt.Sprint("s", i)), "good_t"); err != nil {
			t.Error(err)
		}
	}
	calls.Wait()
	want := map[string]int64{
		dropOther: 3 * each, dropProgress: 3 * each, upstream.NotJSON: 3 * each, dropOutOfPlace: 3 * each, upstream.NotMessage: 3 * each,
		dropNameless: 2 * int64(len(bad.received("tools/list"))),
	}
	if got := g.Dropped(); len(got) != 1 || !maps.Equal(got["default/bad"], want) {
		t.Errorf("counted %v, want %v of the one", got, want)
	}
	until(t, "the log tells of all", func() bool { got, _ := j.dropped(t, "bad"); return maps.Equal(got, want) })
	_, lines := j.dropped(t, "bad")
	if most := len(want) * (2 + int(time.Since(began)/g.drops.Every)); lines > most {
		t.Errorf("%d lines, want %d at most", lines, most)
	}
}

// GWN-05: a backend of 2026-07-28 may not send requests. Nobody is asked, it is counted, and
// the call goes on, however long it takes then.
func TestRequestsOfA2026BackendAreDropped(t *testing.T) {
	s := newScripted(t, func(s *scripted) {
		s.stateless = true
		s.call = func(t *turn) {
			t.write(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"m"}}`)
			time.Sleep(5 * gather)
			t.result(`{"content":[]}`)
		}
	})
	g := gatewayOver(t, memory(t), at("b", s))
	able := statelessClient(ann)
	able.Capabilities = sessionBased("").Capabilities
	for n, c := range []api.Client{able, sessionBased("s1")} {
		text, err := call(t, g, c, "t")
		if err != nil || !strings.Contains(text, `"content":[]`) {
			t.Errorf("client of %s: got %s, %v", c.Version, text, err)
		}
		if got := g.Dropped()["default/b"][dropOutOfPlace]; got != int64(n+1) {
			t.Errorf("client of %s: %d messages were counted", c.Version, got)
		}
	}
}

// GWN-05: the same of what comes on the notification stream.
func TestDroppedNotificationsAreCounted(t *testing.T) {
	for name, stateless := range map[string]bool{"2025": false, "2026": true} {
		t.Run(name, func(t *testing.T) {
			s := newScripted(t, func(s *scripted) { s.stateless = stateless })
			l := newLog()
			g := gatewayOver(t, memory(t), at("b", s))
			defer relaying(t, "holder", g, l)()
			s.only(t, 1)
			const each = 30
			for range each {
				s.notify(`{`)
				s.notify(`[]`)
				s.notify(`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}`)
				s.notify(`{"jsonrpc":"2.0","method":"notifications/resources/updated"}`)
				s.notify(`{"jsonrpc":"2.0","method":"notifications/progress"}`)
				s.notify(`{"jsonrpc":"2.0","method":"notifications/message"}`) // without a receiver, and no fault
			}
			want := map[string]int64{upstream.NotJSON: 2 * each, "it asks a client outside of a call": each, "an update without a URI, or too large": each, "its method is none that is relayed": each}
			until(t, "all are counted", func() bool { return maps.Equal(g.Dropped()["default/b"], want) })
		})
	}
}

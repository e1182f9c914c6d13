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
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
)

// journal keeps the log lines of a gateway about dropped messages.
type journal struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.buf.Write(b)
}

// dropped adds up the counts in the log lines about a backend, by reason, and counts the lines.
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

// deep is JSON that is nested too deeply.
var deep = strings.Repeat("[", 500) + strings.Repeat("]", 500)

// GWN-05: messages that do not belong into a call are dropped, and the call continues. Each is counted once, by backend and
// reason. The counters and the sum of the log lines agree, and there are few lines even for many messages.
func TestDroppedMessagesAreCounted(t *testing.T) {
	const each, calls = 100, 3
	progress := func(token string) string {
		return `{"jsonrpc":"2.0","method":"notifications/progress","params":{` + token + `"progress":1}}`
	}
	dropped := map[string][]string{
		dropOther:           {`{"jsonrpc":"2.0","id":99,"result":{}}`, `{"jsonrpc":"2.0","id":"another","result":{"secret":1}}`},
		dropProgress:        {progress(`"progressToken":2,`), progress(`"progressToken":"1",`), progress(`"progressToken":{},`), progress("")},
		upstream.NotJSON:    {`nonsense`, deep},
		dropOutOfPlace:      {`{"jsonrpc":"2.0","method":"notifications/initialized"}`, `{"jsonrpc":"2.0","method":"notifications/made/up","params":{}}`},
		upstream.NotMessage: {`{}`, `5`, `{"jsonrpc":"1.0","method":"notifications/progress"}`, `{"jsonrpc":"2.0","id":1,"id":2,"result":{}}`},
	}
	bad := newScripted(t, func(s *scripted) {
		s.call = func(t *turn) {
			for range each {
				for _, texts := range dropped {
					for _, text := range texts {
						t.write("%s", text)
					}
				}
				t.write(`{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}`) // is handed on
			}
			t.write("%s", progress(`"progressToken":1.0,`)) // however the backend writes the token
			t.result(`{"ok":true}`)
		}
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
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			x := start(t, g, sessionBased(fmt.Sprint("s", i)), "bad_t", "1", `{"name":"bad_t","_meta":{"progressToken":1}}`)
			if err := x.end(t); err != nil {
				t.Error(err)
			}
			for range each {
				if m := x.next(t); !strings.Contains(m.text, `"level":"info"`) {
					t.Errorf("the client got %s", m.text)
				}
			}
			if m := x.next(t); m.text != progress(`"progressToken":1,`) {
				t.Errorf("the client got %s", m.text)
			}
			if m := x.next(t); m.text != `{"jsonrpc":"2.0","id":1,"result":{"ok":true}}` || len(x.messages) > 0 {
				t.Errorf("the client got %s, and %d more", m.text, len(x.messages))
			}
		})
		if _, err := call(t, g, sessionBased(fmt.Sprint("s", i)), "good_t"); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
	want := map[string]int64{"an entry of a list without a name": 2 * int64(len(bad.received("tools/list")))}
	for reason, texts := range dropped {
		want[reason] = int64(calls * each * len(texts))
	}
	if got := g.Dropped(); len(got) != 1 || !maps.Equal(got["default/bad"], want) {
		t.Errorf("counted %v, want %v of the one", got, want)
	}
	until(t, "the log has counted all", func() bool { got, _ := j.dropped(t, "bad"); return maps.Equal(got, want) })
	_, lines := j.dropped(t, "bad")
	if most := len(want) * (2 + int(time.Since(began)/g.drops.Every)); lines > most {
		t.Errorf("%d lines, want %d at most", lines, most)
	}
}

// GWN-05: a backend of 2026-07-28 may not send requests. The gateway drops and counts them, asks no client, and continues the
// call.
func TestRequestsOfA2026BackendAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScripted(t, func(s *scripted) {
			s.stateless = true
			s.call = func(t *turn) {
				t.write(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"m"}}`)
				time.Sleep(5 * gather)
				t.result(`{"content":[]}`)
			}
		})
		g := gatewayOver(t, memory(t), at("b", s))
		for n, c := range []api.Client{someone(v2026), sessionBased("s1")} {
			text, err := call(t, g, c, "t")
			if err != nil || !strings.Contains(text, `"content":[]`) {
				t.Errorf("client of %s: got %s, %v", c.Version, text, err)
			}
			if got := g.Dropped()["default/b"][dropOutOfPlace]; got != int64(n+1) {
				t.Errorf("client of %s: %d messages were counted", c.Version, got)
			}
		}
	})
}

// GWN-05: messages that do not belong on a notification stream are dropped and counted. The messages after them are announced.
func TestDroppedNotificationsAreCounted(t *testing.T) {
	update := func(params string) string {
		return `{"jsonrpc":"2.0","method":"notifications/resources/updated"` + params + `}`
	}
	dropped := map[string][]string{
		upstream.NotJSON:                     {`{`, `nonsense`, `[]`, deep},
		upstream.NotMessage:                  {`{}`, `5`, `{"jsonrpc":"1.0","method":"notifications/tools/list_changed"}`},
		"it asks a client outside of a call": {`{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}`},
		"an update without a URI, or too large": {
			update(""), update(`,"params":{"uri":7}`), update(`,"params":{"uri":""}`), update(`,"params":{"uri":"x","x":"` + strings.Repeat("x", 200<<10) + `"}`),
		},
		"its method is none that is relayed": {
			`{"jsonrpc":"2.0","method":"notifications/progress"}`, `{"jsonrpc":"2.0","method":"notifications/made/up"}`,
			`{"jsonrpc":"2.0","method":"tools/call","params":{}}`, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`,
		},
		"": {`{"jsonrpc":"2.0","method":"notifications/message"}`}, // without a receiver, and no fault
	}
	for name, stateless := range map[string]bool{"2025": false, "2026": true} {
		t.Run(name, func(t *testing.T) {
			s := newScripted(t, func(s *scripted) { s.stateless = stateless })
			l := newLog()
			g := gatewayOver(t, memory(t), at("b", s))
			relaying(t, "holder", g, l)
			l.until(t, s)
			const each = 20
			want := map[string]int64{}
			for reason, texts := range dropped {
				for range each {
					for _, text := range texts {
						s.notify(text)
					}
				}
				if reason != "" {
					want[reason] = int64(each * len(texts))
				}
			}
			if got := l.until(t, s); len(got) > 0 || s.open() != 1 {
				t.Errorf("announced %q, with %d streams", got, s.open())
			}
			if got := g.Dropped()["default/b"]; !maps.Equal(got, want) {
				t.Errorf("counted %v, want %v", got, want)
			}
		})
	}
}

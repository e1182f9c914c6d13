package gateway

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/gateway/upstream"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/test/expect"
)

// journal keeps the log lines of a gateway about dropped messages.
type journal struct{ expect.Buffer }

// dropped adds up the counts in the log lines about a backend, by reason, and counts the lines.
func (j *journal) dropped(t *testing.T, backend string) (counts map[string]int64, lines int) {
	t.Helper()
	counts = map[string]int64{}
	for text := range strings.Lines(j.String()) {
		var line struct {
			Msg, Workspace, Backend, Reason string
			Count                           int64
		}
		expect.OK(t, json.Unmarshal([]byte(text), &line))
		if line.Msg != "backend messages dropped" {
			continue
		}
		if line.Workspace != auth.DefaultWorkspace || line.Count == 0 {
			t.Errorf("got %s", text)
		}
		if line.Backend == backend {
			counts[line.Reason] += line.Count
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
		s.lists = listing("tools/list", `{"tools":[{"name":"t"},{"title":"none"},{"name":""}]}`)
	})
	good := newScripted(t)
	j := &journal{}
	g := gatewayOver(t, memory(t), at("bad", bad, prefix("bad_")), at("good", good, prefix("good_")))
	g.drops.Log, g.drops.Every = slog.New(slog.NewJSONHandler(j, nil)), 300*time.Millisecond
	began := time.Now()
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() {
			x := start(t, g, sessionBased(fmt.Sprint("s", i)), "bad_t", "1", `{"name":"bad_t","_meta":{"progressToken":1}}`)
			expect.OK(t, x.end(t))
			for range each {
				expect.Contains(t, "the client's message", x.next(t).text, `"level":"info"`)
			}
			expect.Equal(t, "the client", x.next(t).text, progress(`"progressToken":1,`))
			expect.Equal(t, "the message", x.next(t).text, `{"jsonrpc":"2.0","id":1,"result":{"ok":true}}`)
			expect.Equal(t, "the number of further messages", len(x.messages), 0)
		})
		expect.OK(t, expect.ErrOf(call(t, g, sessionBased(fmt.Sprint("s", i)), "good_t")))
	}
	all.Wait()
	want := map[string]int64{"an entry of a list without a name": 2 * int64(len(bad.received("tools/list")))}
	for reason, texts := range dropped {
		want[reason] = int64(calls * each * len(texts))
	}
	if got := g.DroppedCounts(); len(got) != 1 || !maps.Equal(got["default/bad"], want) {
		t.Errorf("counted %v, want %v of the one", got, want)
	}
	expect.Eventually(t, "the log has counted all", func() bool { got, _ := j.dropped(t, "bad"); return maps.Equal(got, want) })
	_, lines := j.dropped(t, "bad")
	expect.AtMost(t, "the number of lines", lines, len(want)*(2+int(time.Since(began)/g.drops.Every)))
}

// GWN-05: a backend of 2026-07-28 may not send requests. The gateway drops and counts them, asks no client, and continues the
// call.
func TestRequestsOfA2026BackendAreDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, g := alone(t, func(s *scripted) {
			s.stateless = true
			s.call = func(t *turn) {
				t.write(`{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"message":"m"}}`)
				time.Sleep(5 * gather)
				t.result(`{"content":[]}`)
			}
		})
		for n, c := range []api.Client{someone(v2026), sessionBased("s1")} {
			text, err := call(t, g, c, "t")
			if err != nil || !strings.Contains(text, `"content":[]`) {
				t.Errorf("client of %s: got %s, %v", c.Version, text, err)
			}
			expect.Equal(t, fmt.Sprintf("client of %s: messages were counted", c.Version), g.DroppedCounts()["default/b"][dropOutOfPlace], int64(n+1))
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
	revisions(t, func(t *testing.T, stateless bool) {
		s, g, l := follow(t, func(s *scripted) { s.stateless = stateless })
		want := map[string]int64{}
		for reason, texts := range dropped {
			for _, text := range texts {
				s.notify(text)
			}
			if reason != "" {
				want[reason] = int64(len(texts))
			}
		}
		expect.Len(t, "the announcements", l.until(t, s), 0)
		expect.Equal(t, "the open streams", s.open(), 1)
		expect.Map(t, "the counts", g.DroppedCounts()["default/b"], want)
	})
}

// GWN-04, GWN-05: during a flood of notifications, list changes are coalesced and the last one is announced when the flood is
// over. Updates without a subscriber are dropped and counted.
func TestFloodsAreThrottled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const flood = 3000
		s := newScripted(t)
		db := memory(t)
		g, other := gatewayOver(t, db, at("b", s)), gatewayOver(t, db, at("b", s))
		subscribe(t, g, wants("x://asked", "s"))
		l := newLog()
		relaying(t, "r", g, l)
		s.only(t, 1)
		// Each subscription that takes effect is announced as one update, before or after the mark.
		if asked := func(text string) bool { return strings.Contains(text, "x://asked") }; !slices.ContainsFunc(l.until(t, s), asked) {
			for !asked(l.next(t)) {
			}
		}
		other.List(t.Context(), statelessClient(ann), api.Tools)
		for range flood {
			s.notify(toolsChanged)
			s.notify(updated("x://none"))
		}
		s.list(oneTool("new"))
		s.notify(toolsChanged)
		s.notify(updated("x://asked"))
		changed, unasked, asked := 0, 0, false
		for deadline := time.After(patience); !asked; {
			select {
			case text := <-l:
				asked = strings.Contains(text, "x://asked")
				if strings.Contains(text, "tools/list_changed") {
					changed++
				} else if !asked {
					unasked++
				}
			case <-deadline:
				t.Fatal("the update that was asked for did not come")
			}
		}
		if changed > 50+20 || unasked > 1000 {
			t.Errorf("of %d each, %d changes and %d updates that nothing asked for were announced", flood, changed, unasked)
		}
		expect.Equal(t, "updates that were counted as dropped", g.DroppedCounts()["default/b"]["an update that no client subscribed to"], flood-int64(unasked))
		// The last change is held back, unless it arrived at the moment when another announcement was allowed.
		for !slices.Equal(names(other.List(t.Context(), statelessClient(ann), api.Tools)), []string{"new"}) {
			for !strings.Contains(l.next(t), "list_changed") {
			}
		}
	})
}

// GWN-15: for every pair of revisions, a backend cannot forge members of _meta that only the gateway sets, in the response to a call,
// within the call or in a list. Other members, including the ones that the protocol assigns to servers, reach the client.
func TestBackendCannotForgeOurMembers(t *testing.T) {
	const (
		kept = `"io.modelcontextprotocol/related-task":{"taskId":"1"},"com.example/n":9007199254740993`
		meta = `"_meta":{"io.github.mcp-events/cursor":"forged","io.github.mcp-events/eventId":"forged",` + kept + `}`
	)
	revisions(t, func(t *testing.T, stateless bool) {
		s, g := alone(t, func(s *scripted) {
			s.stateless = stateless
			s.call = func(t *turn) {
				token := jsonrpc.Member(jsonrpc.Member(t.Params, "_meta"), "progressToken")
				t.notify("notifications/progress", fmt.Sprintf(`{"progressToken":%s,"progress":1,%s}`, token, meta))
				t.result(`{"content":[{"type":"text","text":"t",` + meta + `}],` + meta + `}`)
			}
		})
		s.list(listing("tools/list", `{"tools":[{"name":"t","inputSchema":{"type":"object"},`+meta+`}],`+meta+`}`))
		for _, version := range []string{v2025, v2026} {
			x := start(t, g, someone(version), "t", "1", `{"name":"t","_meta":{"progressToken":"p"}}`)
			expect.OK(t, x.end(t))
			received := []string{x.next(t).text, x.next(t).text}
			for _, entry := range g.List(t.Context(), someone(version), api.Tools).Entries {
				received = append(received, string(entry.JSON))
			}
			expect.Equal(t, "messages and entries", len(received), 3)
			for _, text := range received {
				if strings.Contains(text, "forged") || !strings.Contains(text, kept) {
					t.Errorf("client of %s: got %s, want no member that is ours, and %s", version, text, kept)
				}
			}
		}
	})
}

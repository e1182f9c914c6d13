package mcp

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/stream"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// giveUpOrder makes ci.deploy an unordered event type. The streams hear of it, if at all, three seconds later.
func (b *bubbled) giveUpOrder(announced bool) {
	b.f.catalogs.Replace(mustParse(b.f.t, strings.Replace(testCatalog, "  - name: ci.deploy\n", "  - name: ci.deploy\n    order: none\n", 1)))
	if announced {
		must(b.f.t, b.f.log.Notify(context.Background(), auth.DefaultWorkspace, stream.TopicCatalog, json.RawMessage(`{"version":"2"}`)))
	}
}

// An event type gives up its order while clients read it. Where writers stamp, its events then go to other partitions of
// the log. The clients must get all of them, and so must those that resume.
func TestAnEventTypeGivesUpItsOrderWhileClientsReadIt(t *testing.T) {
	const uri = "event://ci/deploy"
	for name, request := range map[string]func(f *fixture) *http.Request{
		"events/stream": func(f *fixture) *http.Request {
			return f.statelessRequest(alice, spec.MethodEventsStream, `"name":"ci.deploy"`)
		},
		"subscriptions/listen": listenTo(`{"resourceSubscriptions":["event://ci/deploy"]}`),
	} {
		for _, announced := range []bool{true, false} {
			if !announced && name != "events/stream" { // a listen learns of changes only from announcements
				continue
			}
			t.Run("EVX-06 SUB-08 "+name+map[bool]string{true: ", announced", false: ", found by a heartbeat"}[announced], func(t *testing.T) {
				inBubble(t, several, nil, request, func(b *bubbled) {
					time.Sleep(time.Second)
					b.f.publish(uri, `{"n":"before"}`)
					time.Sleep(3 * time.Second)
					b.giveUpOrder(announced)
					b.f.publish(uri, `{"n":"at the change"}`)
					time.Sleep(40 * time.Second)
					b.f.publish(uri, `{"n":"after"}`)
					time.Sleep(2 * time.Minute)
					for _, want := range []string{`"before"`, `"at the change"`, `"after"`} {
						if n := strings.Count(b.text(), want); n == 0 {
							t.Errorf("the stream brought the event %s %d times, want once", want, n)
						}
					}
				})
			})
		}
	}

	t.Run("RCH-04 wait_for_event", func(t *testing.T) {
		inWait(t, several, func(o *Options) { o.MaxAge = time.Hour }, aWait(false, 0, `,"seconds":600`), func(b *bubbled) {
			time.Sleep(time.Minute)
			b.giveUpOrder(false)
			b.f.publish(uri, `{"n":1}`)
			got, _ := b.events()
			if !slices.Equal(got.data(), []string{`{"n":1}`}) || b.took > time.Minute+10*time.Second {
				t.Errorf("after %v the wait returned %v, want the event within ten seconds of its publication", b.took, got.data())
			}
		})
	})

	t.Run("RCH-04 wait_for_event that ends right after the change, and the next call", func(t *testing.T) {
		inWait(t, several, func(o *Options) { o.MaxAge = time.Hour }, aWait(false, 0, `,"seconds":12`), func(b *bubbled) {
			time.Sleep(11 * time.Second)
			b.giveUpOrder(false)
			b.f.publish(uri, `{"n":1}`)
			got, _ := b.events()
			var next shownEvents
			params := toolParams("recent_events", at(got.Subscription))
			answer := b.f.served(b.f.request("POST", alice, statelessBody("1", spec.MethodToolsCall, params), statelessHeaders(spec.MethodToolsCall, params)...))
			toolResult(t, reply{200, nil, answer.Body.String()}, &next)
			if all := append(got.data(), next.data()...); !slices.Equal(all, []string{`{"n":1}`}) {
				t.Errorf("the wait and the next call returned %v, want the event once", all)
			}
		})
	})
}

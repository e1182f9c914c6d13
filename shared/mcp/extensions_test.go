package mcp

import (
	"net/http"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/conversation"
	"github.com/mcp-events/mcpevents/shared/mcp/eventtools/logsource"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// TestEndpointWithoutExtensions checks that each optional feature can be left out. The endpoint must not serve or advertise
// the missing feature, and the other features must still work.
func TestEndpointWithoutExtensions(t *testing.T) {
	features := []string{"the dialect", "conversations", "event tools"}
	build := func(t *testing.T, missing ...string) *fixture {
		return newFixture(t, func(o *Options) {
			o.Conversation, o.EventTools = newTalk(t, o.Sessions, "userMessages: true"), logsource.New
			for _, name := range missing {
				switch name {
				case "the dialect":
					o.Dialect = nil
				case "conversations":
					o.Conversation = nil
				case "event tools":
					o.EventTools = nil
				}
			}
		})
	}
	check := func(t *testing.T, f *fixture, missing ...string) {
		advertised := f.stateless(alice, spec.MethodDiscover, "").Body
		serves := func(got reply) bool {
			return got.Status != http.StatusNotFound || !strings.Contains(got.Body, `"code":-32601`)
		}
		for name, works := range map[string]bool{
			"the dialect": f.dialect(alice, rpcText("1", spec.MethodResources, ""), jsonOnly).Status == http.StatusOK,
			"conversations": serves(f.stateless(alice, conversation.UserMessage.Method(), message("m1"))) &&
				strings.Contains(advertised, "conversationEvents") && strings.Contains(advertised, spec.ConversationExtension),
			"event tools": serves(f.stateless(alice, spec.MethodToolsList, "")) && strings.Contains(advertised, `"tools"`) && strings.Contains(advertised, "instructions"),
			"the rest":    strings.Contains(f.stateless(alice, spec.MethodResources, "").Body, "event://ci/build-finished"),
		} {
			want := true
			for _, m := range missing {
				want = want && m != name
			}
			if works != want {
				t.Errorf("%s works: got %t, want %t; server/discover says %s", name, works, want, advertised)
			}
		}
	}
	t.Run("EVS-01 with all features", func(t *testing.T) { check(t, build(t)) })
	for _, name := range features {
		t.Run("EVS-01 SSE-06 without "+name, func(t *testing.T) { check(t, build(t, name), name) })
	}
	t.Run("EVS-01 without any of them, nothing about them is advertised", func(t *testing.T) {
		f := build(t, features...)
		check(t, f, features...)
		got := f.stateless(alice, spec.MethodDiscover, "").Body
		for _, member := range []string{"conversationEvents", spec.ConversationExtension, `"tools"`, "instructions"} {
			if strings.Contains(got, member) {
				t.Errorf("server/discover has %s, want nothing about it: %s", member, got)
			}
		}
	})
}

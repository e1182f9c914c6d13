package config

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/conversation/rules"
)

func TestParseConversation(t *testing.T) {
	c, err := Parse([]byte(`
conversation:
  userMessages: true
  assistantResponses: true
  budget: 1500ms
  maxContext: 4096
  providers:
    - {name: notes, title: Notes, description: What you wrote., backend: n}
    - {name: memory, url: "https://memory.example.com/context", headers: {authorization: env:MEMORY, X-Team: blue}, priority: 5, principal: true}
    - {name: notes, url: "http://10.0.0.1/x", workspace: other}
  events: {userMessage: true, workspace: other}
backends:
  - {name: n, url: "https://n.example.com/mcp"}
`))
	must(t, err)
	v := c.Conversation
	if !v.UserMessages || !v.AssistantResponses || v.Budget != 1500*time.Millisecond || v.MaxContext != 4096 || !v.Enabled() ||
		v.Events != (rules.Events{UserMessage: true, Workspace: "other"}) {
		t.Errorf("got %+v", v)
	}
	memory, notes, other := v.Providers[0], v.Providers[1], v.Providers[2]
	if memory.Name != "memory" || memory.Priority != 5 || !memory.Principal || memory.Headers["Authorization"].String() != "env:MEMORY" {
		t.Errorf("got %+v", memory)
	}
	if notes.Backend != "n" || notes.Title != "Notes" || notes.Description != "What you wrote." || notes.Workspace != "default" || other.Workspace != "other" {
		t.Errorf("got %+v and %+v", notes, other)
	}
	if s := fmt.Sprint(memory.Headers); strings.Contains(s, "blue") {
		t.Errorf("a header's value is printed: %s", s)
	}
}

// CNV-01: all features for conversations are off by default.
func TestConversationIsOffByDefault(t *testing.T) {
	for _, src := range []string{"", "keys: []\n", "conversation: {}\n", "conversation: {providers: [{name: a, url: 'http://x'}]}\n"} {
		c, err := Parse([]byte(src))
		if err != nil || c.Conversation.Enabled() || c.Conversation.Events.Any() {
			t.Errorf("%q: got %+v, %v", src, c, err)
		}
	}
	c, err := Parse([]byte("conversation: {userMessages: true}\n"))
	if err != nil || c.Conversation.Budget != 500*time.Millisecond || c.Conversation.MaxContext != 32768 || c.Conversation.AssistantResponses {
		t.Errorf("got %+v, %v", c, err)
	}
}

func TestConversationFaults(t *testing.T) {
	provider := func(members string) string {
		return "backends: [{name: b, url: 'http://b/mcp', workspace: other}]\nconversation:\n  providers:\n    - {" + members + "}\n"
	}
	for name, tc := range map[string]struct{ src, want string }{
		"unknown member":          {"conversation: {userMesages: true}\n", `config.yaml:1: conversation: unknown member "userMesages"`},
		"a text for a flag":       {"conversation: {userMessages: 'yes'}\n", "conversation: userMessages must be true or false"},
		"a number for a time":     {"conversation: {budget: 500}\n", "conversation: budget must be text"},
		"no time":                 {"conversation: {budget: soon}\n", `conversation: budget: "soon" is not a duration from 10ms to 10s`},
		"too long a time":         {"conversation: {budget: 1m}\n", "is not a duration from 10ms to 10s"},
		"a text for a size":       {"conversation: {maxContext: big}\n", "conversation: maxContext must be a whole number"},
		"too large a size":        {"conversation: {maxContext: 1000000}\n", "conversation: maxContext is 1000000 and must be from 256 to 49152"},
		"a fraction":              {"conversation: {maxContext: 1000.5}\n", "must be a whole number"},
		"events of nothing":       {"conversation: {events: {userMessage: true}}\n", "events of user messages need userMessages: true"},
		"events of no responses":  {"conversation: {userMessages: true, events: {assistantResponse: true}}\n", "events of assistant responses need assistantResponses: true"},
		"unknown event":           {"conversation: {events: {toolCall: true}}\n", `unknown member "toolCall"`},
		"no workspace":            {"conversation: {events: {workspace: a/b}}\n", "not the name of a workspace"},
		"no name":                 {provider("url: 'http://x'"), "config.yaml:4: a provider has no name"},
		"a bad name":              {provider("name: 'a: b', url: 'http://x'"), "does not match"},
		"the reserved name":       {provider("name: events, url: 'http://x'"), "no provider can have the name events"},
		"two of a name":           {provider("name: a, url: 'http://x'") + "    - {name: a, url: 'http://y'}\n", "config.yaml:5: provider a was already given in line 4"},
		"neither URL nor backend": {provider("name: a"), "provider a: either url or backend is needed"},
		"both":                    {provider("name: a, url: 'http://x', backend: b"), "either url or backend is needed"},
		"no URL":                  {provider("name: a, url: 'ftp://x'"), "is not an http or https URL"},
		"an unknown backend":      {provider("name: a, backend: c"), "provider a: backend c does not belong to the workspace default"},
		"another's backend":       {provider("name: a, backend: b"), "provider a: backend b does not belong to the workspace default"},
		"headers for a backend":   {provider("name: a, backend: b, workspace: other, headers: {X-A: b}"), "headers are those of the backend"},
		"a secret":                {provider("name: a, url: 'http://x', headers: {Authorization: hunter2}"), "a secret must not stand in this file"},
		"an own header":           {provider("name: a, url: 'http://x', headers: {x-mcp-principal: x}"), "is set by the gateway"},
		"another own header":      {provider("name: a, url: 'http://x', headers: {mcp-method: x}"), "Mcp-Method is set by the gateway"},
		"two lines":               {provider(`name: a, url: 'http://x', title: "a\nb"`), "title must be one line"},
		"a long title":            {provider("name: a, url: 'http://x', title: " + strings.Repeat("x", 201)), "title is longer than 200 bytes"},
		"an unknown member":       {provider("name: a, url: 'http://x', timeout: 1s"), `unknown member "timeout"`},
		"priority":                {provider("name: a, url: 'http://x', priority: first"), "priority must be a whole number"},
		"no list":                 {"conversation: {providers: {}}\n", "conversation: providers must be a list"},
	} {
		t.Run(name, func(t *testing.T) { refuses(t, tc.src, tc.want) })
	}
}

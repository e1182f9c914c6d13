package config

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth/quota"
)

func TestQuotas(t *testing.T) {
	c, err := Parse([]byte(`quotas:
  - {principal: alice, subscriptions: 5000, publishRate: 0, calls: 20}
  - {workspace: small, subscriptions: 10, streams: 2, sessions: 7, registrationRate: 0.5, workspaceSubscriptions: 30}
  - {workspace: small, principal: alice, streams: 5, conversationRate: 3, verifications: 7}
`))
	must(t, err)
	l := DefaultLimits()
	for _, x := range []struct {
		who  string
		want []float64 // in the order of quota.Names
	}{
		{"default alice", []float64{5000, 100, 20, 1000, 0, 20, 10, 200, 0}},
		{"default bob", []float64{1000, 100, 100, 1000, 1000, 20, 10, 200, 0}},
		{"small bob", []float64{10, 2, 100, 7, 1000, 0.5, 10, 200, 30}},
		{"small alice", []float64{10, 5, 100, 7, 1000, 0.5, 3, 7, 30}},
	} {
		workspace, principal, _ := strings.Cut(x.who, " ")
		for i, name := range quota.Names() {
			if got := c.Most(name, workspace, principal, l); got != x.want[i] {
				t.Errorf("OPS-15: %s of %s is %g, want %g", name, x.who, got, x.want[i])
			}
		}
	}
	_, err = Parse([]byte(`quotas:
  - {principal: alice}
  - {subscriptions: 0}
  - {streams: 1.5}
  - {publishRate: -1}
  - {publishRate: fast}
  - {workspace: "a b", streams: 1}
  - {principal: "", streams: 1}
  - {stream: 1, streams: 2}
  - {principal: bob, streams: 1}
  - {principal: bob, streams: 2}
  - {principal: eve, workspaceSubscriptions: 2}
  - {workspace: w, workspaceSubscriptions: 0}
`))
	for _, want := range []string{
		":2: a quota: it has none of subscriptions, streams,", ":3: subscriptions is 0 and must be", ":4: streams must be", ":5: publishRate must be",
		":6: publishRate must be", `:7: workspace: "a b" is not`, ":8: principal: must not be empty",
		`:9: a quota: unknown member "stream"`, ":11: a quota: bob of workspace default already has one in line 10",
		":12: a quota: workspaceSubscriptions is of a workspace, not of a principal", ":13: workspaceSubscriptions is 0 and must be",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("OPS-15: no %q in\n%v", want, err)
		}
	}
}

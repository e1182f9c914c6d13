package catalog

import (
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

func TestAccess(t *testing.T) {
	rule := &Access{Scopes: []string{"github"}, Claims: map[string]string{"owner": "org"}}
	member := auth.Principal{Scopes: []string{"github"}, Claims: map[string][]string{"org": {"acme"}}}
	several := auth.Principal{Scopes: []string{"github"}, Claims: map[string][]string{"org": {"acme", "globex"}}}
	for name, tc := range map[string]struct {
		rule *Access
		vars map[string]string
		p    auth.Principal
		want string
	}{
		"no rule":                       {nil, nil, auth.Principal{}, ""},
		"the claim's own value":         {rule, map[string]string{"owner": "acme", "repo": "x"}, member, ""},
		"another value":                 {rule, map[string]string{"owner": "evil"}, member, "must be equal"},
		"a prefix of the value":         {rule, map[string]string{"owner": "acm"}, member, "must be equal"},
		"the variable omitted":          {rule, map[string]string{"repo": "x"}, member, "must be given"},
		"the variable empty":            {rule, map[string]string{"owner": ""}, member, "must be given"},
		"no such claim":                 {rule, map[string]string{"owner": "acme"}, auth.Principal{Scopes: member.Scopes}, `claim "org"`},
		"an empty claim":                {rule, map[string]string{"owner": ""}, auth.Principal{Scopes: member.Scopes, Claims: map[string][]string{"org": {""}}}, `claim "org"`},
		"one of several values":         {rule, map[string]string{"owner": "globex"}, several, ""},
		"none of several values":        {rule, map[string]string{"owner": "evil"}, several, "must be equal"},
		"no values":                     {rule, map[string]string{"owner": ""}, auth.Principal{Scopes: member.Scopes, Claims: map[string][]string{"org": {}}}, `claim "org"`},
		"no scope":                      {rule, map[string]string{"owner": "acme"}, auth.Principal{Claims: member.Claims}, "scope github"},
		"anonymous has none of a claim": {rule, map[string]string{"owner": "acme"}, auth.Principal{Anonymous: true, Scopes: member.Scopes}, "claim"},
	} {
		t.Run("AUT-04 "+name, func(t *testing.T) {
			err := tc.rule.Check(tc.p, tc.vars)
			if tc.want == "" {
				if err != nil {
					t.Error(err)
				}
			} else if !fault.Is(err, fault.Forbidden) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
	var open *Access
	if !open.VisibleTo(auth.Principal{}) || !rule.VisibleTo(member) || rule.VisibleTo(auth.Principal{Scopes: member.Scopes}) || rule.VisibleTo(auth.Principal{Claims: member.Claims}) {
		t.Error("VisibleTo does not follow the rule")
	}
}

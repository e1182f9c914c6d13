//go:build unix

package interop

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http/httputil"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/client/check"
	"github.com/mcp-events/mcpevents/test/expect"
)

// TestCheckOfServersOfOthers holds servers that others made against the specification. What it finds in them is in docs/how-to/check-a-server.md.
func TestCheckOfServersOfOthers(t *testing.T) {
	t.Parallel()
	t.Run("RCH-06 mcp-webhook-events", func(t *testing.T) {
		t.Parallel()
		// Without a key, the rule webhook-principal is not testable on this machine. The server ignores the key.
		checked(t, startTheirs(t, "webhook"), check.Options{Key: "any"}, map[string][]string{
			check.Passed: {"list", "webhook-secret", "webhook-challenge", "webhook-challenge-failed", "webhook-signature", "webhook-rotation", "webhook-redirect"},
			check.Failed: {"capability", "error-unknown-event", "webhook-principal", "webhook-url", "webhook-unsubscribe"},
		})
	})
	t.Run("RCH-06 mcp-handler", func(t *testing.T) {
		t.Parallel()
		s := startHandler(t)
		l := place(t)
		receiver := net.JoinHostPort(l[0], l[1])
		s.hooks.Config.Handler = httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: receiver})
		checked(t, s, check.Options{Listen: receiver, Receiver: s.hooks.URL}, map[string][]string{
			check.Passed: {
				"list", "error-unknown-event", "error-arguments", "webhook-principal", "webhook-https", "webhook-url", "webhook-secret",
				"webhook-challenge", "webhook-challenge-failed", "webhook-ttl", "webhook-key", "webhook-key-url", "webhook-signature", "webhook-rotation", "webhook-unsubscribe",
			},
			check.Failed: {"capability"},
		})
	})
}

// checked checks a server, and compares the results of some rules.
func checked(t *testing.T, s *theirs, o check.Options, want map[string][]string) {
	t.Helper()
	o.URL, o.Key, o.Agent, o.Event, o.Arguments, o.Wait = s.url, cmp.Or(o.Key, s.key), "check/1", "ticket.updated", []byte(`{"ticket":"T1"}`), 10*time.Second // which some rules wait in vain
	n := 0
	o.Publish = func(context.Context) error {
		n++
		s.publish(fmt.Sprint("T1-", n))
		return nil
	}
	report, err := check.Run(t.Context(), o)
	expect.OK(t, err)
	for result, ids := range want {
		for _, id := range ids {
			i := slices.IndexFunc(report.Results, func(r check.Result) bool { return r.ID == id })
			if i < 0 || report.Results[i].Result != result {
				t.Errorf("%s is not %s: %+v", id, result, report.Results[max(i, 0)])
			}
		}
	}
}

//go:build unix

package e2e

import (
	"bytes"
	"encoding/base64"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestRegister tests resources/subscriptions/register and deregister (SEP-1803).
func TestRegister(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--retry-schedule", "0s,1s,1s,1s,1s,1s"}})
	registering(t, &s.Target, 0)
}

// registering runs the tests. An attempt may still start until late after the response to deregister.
func registering(t *testing.T, s *harness.Target, late time.Duration) {
	receiver := harness.NewReceiver(t)
	c := s.Stateless("alice")
	t.Run("EVS-11 under load, no attempt starts after the response", func(t *testing.T) {
		hook := receiver.Endpoint("load")
		r := register(t, c, hook, "event://incidents/load/created")
		var wg sync.WaitGroup
		for p := range 4 {
			wg.Go(func() {
				for i := range 25 {
					s.Publish(t, incident("load-"+string(rune('a'+p))+"-"+string(rune('A'+i)), "load"))
				}
			})
		}
		hook.WaitAttempts(t, 20)
		deregister(t, c, r.Subscription.URI)
		answered := time.Now()
		wg.Wait()
		control := receiver.Endpoint("load-control")
		register(t, c, control, "event://incidents/load/created")
		time.Sleep(time.Until(answered.Add(late)))
		s.Publish(t, incident("load-last", "load"))
		harness.Eventually(t, harness.Patience, "the last event", func() bool { return control.IDs()["load-last"] > 0 })
		expect.AtMost(t, "the deliveries of an event that was published after the response", hook.IDs()["load-last"], 0)
		for _, d := range hook.Deliveries() { // each attempt contains the second in which it was made; one that had already started may arrive later
			made, err := strconv.ParseInt(d.Header.Get("webhook-timestamp"), 10, 64)
			if err != nil || made > answered.Add(late).Unix() {
				t.Errorf("an attempt of %s was made %d s after the response, want at most %v", d.ID(), made-answered.Unix(), late)
			}
		}
	})
}

// TestSecrets checks that a secret appears only in the response that creates it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--log-level", "debug"}})
	receiver := harness.NewReceiver(t)
	c := s.Stateless("alice")
	hook, flaky := receiver.Endpoint("hook"), receiver.Endpoint("flaky")
	flaky.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Status: 500} })
	r := register(t, c, hook, "event://ci/build-finished")
	registered := hook.Secret()
	f := register(t, c, flaky, "event://ci/build-finished")
	clients := receiver.Endpoint("clients")
	subscribe(t, c, clients, "ci.build_finished", nil)
	s.Publish(t, build("one", 1))
	hook.Wait(t, 1)
	clients.Wait(t, 1)
	waitStatus(t, c, f.Subscription.URI, func(s subscriptionStatus) bool { return s.DeliveryStatus.LastError != nil })

	secrets := map[string]string{
		"registered": registered, "of a failing one": flaky.Secret(), "the client's": clients.Secret(),
		"alice's key": s.Keys["alice"],
	}
	clear := func(t *testing.T, where string, text []byte) {
		t.Helper()
		for what, secret := range secrets {
			bare := strings.TrimPrefix(secret, "whsec_")
			raw, _ := base64.StdEncoding.DecodeString(bare)
			if bytes.Contains(text, []byte(bare)) || len(raw) > 0 && bytes.Contains(text, raw) {
				t.Errorf("the secret %s is in %s", what, where)
			}
		}
	}
	t.Run("EVS-10 not in lists, reads and errors", func(t *testing.T) {
		calls := []struct {
			method string
			params object
		}{
			{"resources/list", nil},
			{"resources/read", object{"uri": r.Subscription.URI}},
			{"resources/read", object{"uri": f.Subscription.URI}},
			{"events/list", nil},
			{"events/subscribe", subscription("no.such", nil, clients.URL(), clients.Secret())},
			{"events/subscribe", subscription("ci.build_finished", object{"wrong": 1}, clients.URL(), clients.Secret())},
			{"resources/subscriptions/deregister", object{"uri": "subscription://x"}},
		}
		for _, call := range calls {
			clear(t, call.method, c.Do(t, call.method, call.params).Body)
		}
	})
	s.Stop()
	t.Run("EVS-10 not in the log", func(t *testing.T) { clear(t, "the log", []byte(s.Output())) })
	t.Run("EVS-10 not unencrypted in the store", func(t *testing.T) {
		files := 0
		err := filepath.WalkDir(s.Data, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files++
			b, err := os.ReadFile(path)
			clear(t, filepath.Base(path), b)
			info, ierr := d.Info()
			if ierr == nil && strings.Contains(filepath.Base(path), "key") && info.Mode().Perm() != 0o600 {
				t.Errorf("%s has the mode %v, want 0600", path, info.Mode())
			}
			return err
		})
		if err != nil || files == 0 {
			t.Errorf("%d files: %v", files, err)
		}
	})
}

// TestSubscriptionResources tests subscription:// resources.
func TestSubscriptionResources(t *testing.T) {
	t.Parallel()
	subscriptionResources(t, &harness.StartServer(t, harness.ServerOptions{}).Target)
}

func subscriptionResources(t *testing.T, s *harness.Target) {
	receiver := harness.NewReceiver(t)
	owner, other := s.Stateless("bob"), s.Stateless("reader")
	listen := owner.Listen(t, 1, object{"resourcesListChanged": true}, nil)
	session := s.SessionBased(t, "bob", harness.V20251125)
	sessionBased := session.Open(t, "")
	changes := func(st *harness.Stream) int { return count(st, "notifications/resources/list_changed") }
	waitChanges := func(t *testing.T, n int) {
		t.Helper()
		for name, st := range map[string]*harness.Stream{"listen": listen, "GET": sessionBased} {
			harness.Eventually(t, harness.Patience, "list_changed on the stream "+name, func() bool { return changes(st) >= n })
		}
	}
	hook := receiver.Endpoint("hook")
	uri := register(t, owner, hook, "event://incidents/owned/created", "event://github/owned").Subscription.URI
	t.Run("EVS-12 registering sends list_changed to that principal", func(t *testing.T) { waitChanges(t, 1) })

	listed := func(c *harness.Client) (uris []string) {
		for _, r := range c.All(t, "resources/list", "resources") {
			if u, _ := r["uri"].(string); strings.HasPrefix(u, "subscription://") {
				uris = append(uris, u)
			}
		}
		return uris
	}
	t.Run("EVS-12 readable only by its owner", func(t *testing.T) {
		st := readStatus(t, owner, uri)
		if st.URI != uri || st.TargetURI != hook.URL() || len(st.EventURIs) != 2 || st.State != "active" || !st.DeliveryStatus.Active || st.DeliveryStatus.LastDeliveryAt != nil {
			t.Errorf("read: %+v", st)
		}
		other.Refused(t, -32602, "resources/read", object{"uri": uri})
		s.Publish(t, incident("one", "owned"))
		waitStatus(t, owner, uri, func(s subscriptionStatus) bool { return s.DeliveryStatus.LastDeliveryAt != nil })
	})
	t.Run("EVS-12 WHK-08 a change of state notifies", func(t *testing.T) {
		gone := receiver.Endpoint("gone")
		gone.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Status: 410} })
		goneURI := register(t, owner, gone, "event://incidents/owned/created").Subscription.URI
		waitChanges(t, 2)
		states := owner.Listen(t, "state", object{"resourceSubscriptions": []string{goneURI}}, nil)
		session.Call(t, "resources/subscribe", object{"uri": goneURI}, nil)
		s.Publish(t, incident("two", "owned"))
		for name, st := range map[string]*harness.Stream{"listen": states, "GET": sessionBased} {
			harness.Eventually(t, harness.Patience, "the update on "+name, func() bool {
				return slices.ContainsFunc(st.Updates(), func(u *harness.Update) bool { return u.URI == goneURI })
			})
		}
		if st := readStatus(t, owner, goneURI); st.State != "disabled" || st.Reason == "" {
			t.Errorf("after 410: %+v", st)
		}
		s.Publish(t, incident("three", "owned"))
		hook.Wait(t, 3)
		if n, _ := gone.Count(); n != 1 {
			t.Errorf("%d attempts at an endpoint that answered 410", n)
		}
	})
	t.Run("EVS-12 deregistering sends list_changed and removes it", func(t *testing.T) {
		before := map[*harness.Stream]int{listen: changes(listen), sessionBased: changes(sessionBased)}
		deregister(t, owner, uri)
		for st, n := range before {
			harness.Eventually(t, harness.Patience, "list_changed", func() bool { return changes(st) > n })
		}
		expect.True(t, "it is not listed any more", !slices.Contains(listed(owner), uri))
		owner.Refused(t, -32602, "resources/read", object{"uri": uri})
	})
}

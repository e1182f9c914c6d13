//go:build unix

package e2e

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/harness"
)

var subscriptionURI = regexp.MustCompile(`^subscription://[A-Za-z0-9_-]{22,}$`)

// TestRegister tests resources/subscriptions/register and deregister (SEP-1803).
func TestRegister(t *testing.T) {
	t.Parallel()
	s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--retry-schedule", "0s,1s,1s,1s,1s,1s"}})
	registering(t, &s.Target, 0)
}

// registering runs the tests. After is how long after the response to deregister an attempt may still start.
func registering(t *testing.T, s *harness.Target, late time.Duration) {
	receiver := harness.NewReceiver(t)
	// silent checks that no attempt started after that. Each attempt contains the second in which it was made; one
	// that had already started may arrive later.
	silent := func(t *testing.T, e *harness.Endpoint, answered time.Time) {
		t.Helper()
		for _, d := range e.Deliveries() {
			made, err := strconv.ParseInt(d.Header.Get("webhook-timestamp"), 10, 64)
			if after := d.At.Sub(answered); err != nil || made > answered.Add(late).Unix() || after > late+2*time.Second {
				t.Errorf("an attempt of %s, made at %d, arrived %v after the response", d.ID(), made, after)
			}
		}
	}

	for _, c := range []*harness.Client{s.Stateless("alice"), s.SessionBased(t, "alice", harness.V20251125)} {
		t.Run("EVS-08 the result, in "+c.Version, func(t *testing.T) {
			hook := receiver.Endpoint("answer-" + c.Version)
			uris := []string{"event://ci/build-finished", "event://github/acme/website/pull_request", "event://incidents"}
			r := register(t, c, hook, uris...).Subscription
			if !subscriptionURI.MatchString(r.URI) || r.TargetURI != hook.URL() || strings.Join(r.EventURIs, " ") != strings.Join(uris, " ") {
				t.Errorf("registered as %+v", r)
			}
			t.Run("EVS-09 a standard secret of 32 random bytes", func(t *testing.T) {
				key, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(r.WebhookSecret.Key, "whsec_"))
				if r.WebhookSecret.Type != "standard" || !strings.HasPrefix(r.WebhookSecret.Key, "whsec_") || err != nil || len(key) != 32 {
					t.Errorf("secret %+v, %v", r.WebhookSecret, err)
				}
			})
			other := register(t, c, hook, uris...).Subscription
			if other.URI == r.URI || other.WebhookSecret.Key == r.WebhookSecret.Key {
				t.Error("two registrations share their URI or secret")
			}
			deregister(t, c, other.URI)
			hook.SetSecret(r.WebhookSecret.Key)
			// An event that is published after the response is always delivered.
			for i := range 20 {
				id := "r-" + c.Version + "-" + string(rune('a'+i))
				s.Publish(t, build(id, i+1))
			}
			hook.Wait(t, 20)
			deregister(t, c, r.URI)
		})
	}
	t.Run("EVS-08 with 50 URIs, all or nothing", func(t *testing.T) {
		hook := receiver.Endpoint("fifty")
		uris := make([]string, 50)
		for i := range uris {
			uris[i] = "event://incidents/s" + string(rune('a'+i%26)) + string(rune('a'+i/26)) + "/created"
		}
		c := s.Stateless("bob")
		bad := append(append([]string(nil), uris[:49]...), "event://no/such")
		c.Refused(t, -32602, "resources/subscriptions/register", object{"uris": bad, "targetUri": hook.URL()})
		r := register(t, c, hook, uris...)
		s.Publish(t, incident("fifty-1", "saa", "info"), incident("fifty-2", "sxb", "info"))
		hook.Wait(t, 2)
		deregister(t, c, r.Subscription.URI)
		for _, d := range hook.Deliveries() {
			if id := d.Header.Get("X-MCP-Subscription-Id"); id != strings.TrimPrefix(r.Subscription.URI, "subscription://") {
				t.Errorf("a delivery for %s: the refused registration receives events", id)
			}
		}
	})
	t.Run("a repeated registration with the same idempotency key", func(t *testing.T) {
		hook := receiver.Endpoint("again")
		c := s.Stateless("bob")
		params := object{
			"uris": []string{"event://ci/build-finished"}, "targetUri": hook.URL(),
			"_meta": object{harness.Prefix + "idempotencyKey": "k1"},
		}
		var first, second registered
		c.Call(t, "resources/subscriptions/register", params, &first)
		c.Call(t, "resources/subscriptions/register", params, &second)
		if first.Subscription.URI != second.Subscription.URI {
			t.Errorf("two subscriptions: %s, %s", first.Subscription.URI, second.Subscription.URI)
		}
		hook.SetSecret(second.Subscription.WebhookSecret.Key)
		s.Publish(t, build("idem", 1))
		d := hook.Wait(t, 1)[0]
		for _, r := range []registered{first, second} {
			if err := d.Verify(r.Subscription.WebhookSecret.Key); err != nil {
				t.Errorf("not verified by one of the two secrets: %v", err)
			}
		}
		deregister(t, c, first.Subscription.URI)
	})
	t.Run("EVS-11 deregister cancels pending retries", func(t *testing.T) {
		c := s.Stateless("alice")
		failing := receiver.Endpoint("failing")
		failing.Answer(func(int, *harness.Delivery) harness.Reply { return harness.Reply{Status: 500} })
		r := register(t, c, failing, "event://ci/build-finished")
		s.Publish(t, build("retried", 1))
		failing.WaitAttempts(t, 2)
		deregister(t, c, r.Subscription.URI)
		answered := time.Now()
		control := receiver.Endpoint("control")
		register(t, c, control, "event://ci/build-finished")
		control.Answer(func(n int, _ *harness.Delivery) harness.Reply {
			if n < 4 {
				return harness.Reply{Status: 500}
			}
			return harness.Reply{}
		})
		s.Publish(t, build("control", 2))
		control.WaitAttempts(t, 4) // retries would take another three seconds
		silent(t, failing, answered)
	})
	t.Run("EVS-11 missing subscriptions and those of others are refused in the same way", func(t *testing.T) {
		alice := s.Stateless("alice")
		owned := register(t, alice, receiver.Endpoint("owned"), "event://ci/build-finished").Subscription.URI
		for _, bob := range []*harness.Client{s.Stateless("bob"), s.SessionBased(t, "bob", harness.V20251125)} {
			ended := register(t, bob, receiver.Endpoint("ended-"+bob.Version), "event://ci/build-finished").Subscription.URI
			deregister(t, bob, ended)
			answers := map[string]string{}
			for what, uri := range map[string]string{
				"unknown": "subscription://sub_00000000000000000000000000000000", "malformed": "subscription://x", "not owned": owned,
				"ended": ended, "of an event": "event://ci/deploy", "no URI": "nonsense",
			} {
				a := bob.Do(t, "resources/subscriptions/deregister", object{"uri": uri})
				if a.Error == nil {
					t.Fatalf("%s, %s: %s", bob.Version, what, a.Body)
				}
				answers[strconv.Itoa(a.Status)+" "+strings.ReplaceAll(a.Error.Error(), uri, "URI")] = what
			}
			if len(answers) != 1 {
				t.Errorf("%s: the errors differ: %v", bob.Version, answers)
			}
		}
		readStatus(t, alice, owned) // it still exists
	})
	t.Run("EVS-11 under load, no attempt starts after the response", func(t *testing.T) {
		c := s.Stateless("alice")
		hook := receiver.Endpoint("load")
		r := register(t, c, hook, "event://incidents/load/created")
		var wg sync.WaitGroup
		for p := range 4 {
			wg.Go(func() {
				for i := range 25 {
					s.Publish(t, incident("load-"+string(rune('a'+p))+"-"+string(rune('A'+i)), "load", "info"))
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
		s.Publish(t, incident("load-last", "load", "info"))
		harness.Eventually(t, harness.Patience, "the last event", func() bool { return control.IDs()["load-last"] > 0 })
		if hook.IDs()["load-last"] > 0 {
			t.Error("an event that was published after the response was delivered")
		}
		silent(t, hook, answered)
	})
}

// TestSecretKinds tests the kinds of secrets that an operator can choose.
func TestSecretKinds(t *testing.T) {
	t.Parallel()
	receiver := harness.NewReceiver(t)
	t.Run("EVS-09 raw", func(t *testing.T) {
		s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--webhook-secret", "raw"}})
		hook := receiver.Endpoint("raw")
		r := register(t, s.Stateless("alice"), hook, "event://ci/build-finished").Subscription.WebhookSecret
		if r.Type != "raw" || len(r.Value) < 32 || r.Key != "" {
			t.Fatalf("secret %+v", r)
		}
		s.Publish(t, build("raw", 1))
		d := hook.Wait(t, 1)[0]
		mac := hmac.New(sha256.New, []byte(r.Value))
		mac.Write(d.Body)
		if got, want := d.Header.Get("X-Hub-Signature-256"), "sha256="+hex.EncodeToString(mac.Sum(nil)); got != want {
			t.Errorf("X-Hub-Signature-256 %q, want %q", got, want)
		}
		for _, h := range []string{"webhook-id", "webhook-timestamp", "webhook-signature"} {
			if d.Header.Get(h) == "" {
				t.Errorf("the header %s is missing", h)
			}
		}
	})
	t.Run("EVS-09 no secret, only if the operator allows it", func(t *testing.T) {
		s := harness.StartServer(t, harness.ServerOptions{Args: []string{"--webhook-secret", "none"}})
		hook := receiver.Endpoint("none")
		r := register(t, s.Stateless("alice"), hook, "event://ci/build-finished").Subscription.WebhookSecret
		if r.Type != "none" || r.Key != "" || r.Value != "" {
			t.Fatalf("secret %+v", r)
		}
		s.Publish(t, build("none", 1))
		if d := hook.Wait(t, 1)[0]; d.Header.Get("webhook-signature") != "" || d.ID() != "none" {
			t.Errorf("headers %v", d.Header)
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

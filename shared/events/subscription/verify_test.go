package subscription

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/quota"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

// endpoints answer challenges as a function says.
type endpoints struct {
	*outside
	answer     func(ctx context.Context, url string) error
	challenges atomic.Int64
}

func (e *endpoints) Verify(ctx context.Context, url, _ string, _ []byte) error {
	e.challenges.Add(1)
	return e.answer(ctx, url)
}

var errNoEcho = fault.New(fault.Unavailable, "no echo").With(map[string]any{"reason": "challenge_failed"})

func principal(format string, args ...any) auth.Principal {
	return auth.Principal{ID: fmt.Sprintf(format, args...), Workspace: "default", Scopes: auth.Scopes()}
}

// verifier subscribes principals to URLs, with the clock at the start of a window of all limits.
type verifier struct {
	*fixture
	*endpoints
}

func newVerifier(t *testing.T, answer func(ctx context.Context, url string) error) *verifier {
	f := newFixture(t, Options{})
	f.clock = f.clock.Truncate(time.Hour).Add(time.Hour) // the store, which has a clock of its own, must not count items as expired
	v := &verifier{f, &endpoints{outside: f.outside, answer: answer}}
	f.Targets = v.endpoints
	return v
}

func (v *verifier) ask(p auth.Principal, format string, args ...any) error {
	return v.askIn(v.t.Context(), p, fmt.Sprintf(format, args...))
}

func (v *verifier) askIn(ctx context.Context, p auth.Principal, url string) error {
	_, err := v.Subscribe(ctx, p, SubscribeRequest{Name: "github.push", URL: url, Secret: "whsec_one"})
	return err
}

func (v *verifier) wantLimit(err error, limit string) {
	v.t.Helper()
	if !fault.Is(err, fault.Exhausted) || fault.LimitOf(err) != limit {
		v.t.Errorf("got %v of the limit %q, want the limit %q", err, fault.LimitOf(err), limit)
	}
	data, _ := json.Marshal(fault.DataOf(err))
	most := map[string]int{"verifications": 60, "pendingVerifications": 1}[limit]
	var wait struct {
		Seconds int `json:"retryAfterSeconds"`
	}
	if err := json.Unmarshal(data, &wait); err != nil || wait.Seconds < 1 || wait.Seconds > cmp.Or(most, int(failureWindow/time.Second)) {
		v.t.Errorf("EVX-12 the data of the limit %q is %s, want a time within the window", limit, data)
	}
}

func echo(context.Context, string) error   { return nil }
func silent(context.Context, string) error { return errNoEcho }

// The limits of package challenge, as docs/reference promises them.
const (
	maxPending     = 20
	maxFailed      = 20
	maxFailedByAll = 100
	failureWindow  = 5 * time.Minute
)

// TestLimitsOnVerifications shows that one caller's challenges do not block another caller's challenges to the same host.
func TestLimitsOnVerifications(t *testing.T) {
	t.Run("EVX-12 a principal has so many challenges a minute, and another at the same host has its own", func(t *testing.T) {
		v := newVerifier(t, echo)
		for n := range quota.DefaultVerifications {
			if err := v.ask(alice, "https://chat.example/a/%d", n); err != nil {
				t.Fatal(n, err)
			}
		}
		for range 3 {
			v.wantLimit(v.ask(alice, "https://chat.example/more"), "verifications")
		}
		v.wantLimit(v.ask(alice, "https://another.example/"), "verifications")
		if err := v.ask(alice, "https://chat.example/a/0"); err != nil {
			t.Errorf("a verified endpoint: %v", err)
		}
		if err := v.ask(bob, "https://chat.example/b"); err != nil {
			t.Errorf("another principal: %v", err)
		}
		v.clock = v.clock.Add(time.Minute)
		if err := v.ask(alice, "https://chat.example/more"); err != nil {
			t.Errorf("a minute later: %v", err)
		}
		expect.Equal(t, "challenges", v.challenges.Load(), int64(quota.DefaultVerifications+2))
	})
	t.Run("EVX-12 a principal may be given another number", func(t *testing.T) {
		v := newVerifier(t, echo)
		v.Options.Verifications = func(_ context.Context, workspace, principal string) int64 {
			return map[string]int64{"default alice": 3}[workspace+" "+principal]
		}
		for n := range 3 {
			if err := v.ask(alice, "https://chat.example/a/%d", n); err != nil {
				t.Fatal(n, err)
			}
		}
		v.wantLimit(v.ask(alice, "https://chat.example/more"), "verifications")
	})
	t.Run("EVX-12 SRF-07 a principal that fails at a host is stopped there, and nowhere else", func(t *testing.T) {
		v := newVerifier(t, silent)
		for n := range maxFailed {
			if err := v.ask(alice, "https://host.example/%d", n); !errors.Is(err, errNoEcho) {
				t.Fatal(n, err)
			}
		}
		for n := range 100 {
			v.wantLimit(v.ask(alice, []string{"https://host.example/more/%d", "https://HOST.example:8443/%d", "https://host.example./%d"}[n%3], n), "failedVerifications")
		}
		expect.Equal(t, "challenges", v.challenges.Load(), maxFailed)
		v.answer = echo
		if err := v.ask(bob, "https://host.example/b"); err != nil {
			t.Errorf("another principal: %v", err)
		}
		// Refused attempts were not counted, so the principal has the rest of its minute.
		for n := range quota.DefaultVerifications - maxFailed {
			if err := v.ask(alice, "https://other.example/%d", n); err != nil {
				t.Fatal(n, err)
			}
		}
		v.clock = v.clock.Add(failureWindow)
		if err := v.ask(alice, "https://host.example/a"); err != nil {
			t.Errorf("in the next window: %v", err)
		}
	})
	t.Run("EVX-12 SRF-07 many principals that fail at a host stop each other, but not one that has not failed", func(t *testing.T) {
		v := newVerifier(t, silent)
		attackers := maxFailedByAll / 10
		for n := range maxFailedByAll {
			if err := v.ask(principal("attacker%d", n%attackers), "https://host.example/%d", n); !errors.Is(err, errNoEcho) {
				t.Fatal(n, err)
			}
		}
		for n := range attackers {
			v.wantLimit(v.ask(principal("attacker%d", n), "https://host.example/more"), "failedVerificationsPerHost")
		}
		// A principal more is a challenge more, and not ten.
		if err := v.ask(principal("newcomer"), "https://host.example/1"); !errors.Is(err, errNoEcho) {
			t.Error(err)
		}
		v.wantLimit(v.ask(principal("newcomer"), "https://host.example/2"), "failedVerificationsPerHost")
		expect.Equal(t, "challenges", v.challenges.Load(), maxFailedByAll+1)
		v.answer = echo
		for n := range 50 {
			if err := v.ask(bob, "https://host.example/b/%d", n); err != nil {
				t.Fatalf("an honest principal at the same host: %d: %v", n, err)
			}
		}
	})
	t.Run("SRF-07 challenges that are waiting for an answer are bounded, and end with it", func(t *testing.T) {
		arrived, answer := make(chan struct{}), make(chan struct{})
		v := newVerifier(t, func(context.Context, string) error { arrived <- struct{}{}; <-answer; return nil })
		results := make(chan error)
		for n := range maxPending {
			go func() { results <- v.ask(alice, "https://host.example/%d", n) }()
			<-arrived
		}
		v.wantLimit(v.ask(alice, "https://host.example/more"), "pendingVerifications")
		close(answer)
		for range maxPending {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		v.answer = echo
		if err := v.ask(alice, "https://host.example/more"); err != nil {
			t.Errorf("after the answers: %v", err)
		}
	})
	t.Run("SRF-07 a caller that hangs up has failed", func(t *testing.T) {
		v := newVerifier(t, func(ctx context.Context, _ string) error {
			return fault.Wrap(fault.Unavailable, ctx.Err(), "verify the target")
		})
		for n := range maxFailed {
			ctx, hangUp := context.WithCancel(t.Context())
			v.answer = func(context.Context, string) error {
				hangUp()
				return fault.Wrap(fault.Unavailable, ctx.Err(), "verify the target")
			}
			if err := v.askIn(ctx, alice, fmt.Sprintf("https://host.example/%d", n)); !fault.Is(err, fault.Unavailable) {
				t.Fatal(n, err)
			}
		}
		v.wantLimit(v.ask(alice, "https://host.example/more"), "failedVerifications")
	})
	t.Run("SRF-07 all processes together have the limits", func(t *testing.T) {
		v := newVerifier(t, silent)
		other := *v.fixture
		registrar := *v.Registrar
		registrar.Service = &Service{Records: Records{DB: v.db, Now: v.Now}, Catalog: v.Catalog, Log: v.Log}
		other.Registrar = &registrar
		for n := range maxFailed {
			if err := []*verifier{v, {&other, v.endpoints}}[n%2].ask(alice, "https://host.example/%d", n); !errors.Is(err, errNoEcho) {
				t.Fatal(n, err)
			}
		}
		v.wantLimit(v.ask(alice, "https://host.example/more"), "failedVerifications")
	})
}

package conversation

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
)

// Reason says why a provider's context is missing.
type Reason string

// The reasons.
const (
	Late        Reason = "timeout"
	Resting     Reason = "resting"     // it was late too often, see [breaker]
	Unreachable Reason = "unreachable" // no connection, or one that broke
	Refused     Reason = "refused"     // an answer that is an error
	Malformed   Reason = "malformed"   // an answer that is no context
	TooLarge    Reason = "too large"
	Incapable   Reason = "incapable" // a backend that does not ask for such messages
	Abandoned   Reason = "abandoned" // the caller no longer waits for the answer
	Internal    Reason = "internal"
)

// failure is an error of a provider that says nothing but its reason.
type failure struct{ reason Reason }

func (f failure) Error() string {
	return "conversation: the provider's answer is missing: " + string(f.reason)
}

// reasonOf finds the reason of what went wrong while a provider was asked.
func reasonOf(asked, asker context.Context, err error) Reason {
	f, known := errors.AsType[failure](err)
	switch {
	case errors.Is(err, gobreaker.ErrOpenState), errors.Is(err, gobreaker.ErrTooManyRequests):
		return Resting
	case asker.Err() != nil:
		return Abandoned
	case asked.Err() != nil:
		return Late
	case known:
		return f.reason
	}
	return Internal
}

// Caller is who sends a message.
type Caller struct {
	Principal auth.Principal
	// Client is the caller as backends know it.
	Client api.Client
}

// asker hands a message to one of those that may get it, who knows the caller by the
// name principal, and returns a context that is not checked yet. Its errors are failures.
type asker func(ctx context.Context, c Caller, m *Message, principal string) (json.RawMessage, error)

// provider is one of those that may get messages. It may be used concurrently.
type provider struct {
	name, title, description string
	workspace                string
	to                       string // what a consent is bound to
	kinds                    []Kind // what it gets
	plain                    bool   // gets the principal's own name
	visible                  func(ctx context.Context, p auth.Principal) bool
	ask                      asker
	breaker                  *breaker
}

func (p *provider) gets(kind Kind) bool { return slices.Contains(p.kinds, kind) }

// breaker lets a provider rest that has not answered in time several times one after
// another. When it is rested, one message is let through, and its answer decides.
type breaker = gobreaker.CircuitBreaker[json.RawMessage]

// The bounds of a breaker.
const (
	tripAfter = 5
	restFor   = 30 * time.Second
)

// newBreaker makes one that counts what makes callers wait or would again: what is late or
// cannot be reached. An error is no reason to rest: it may be about one caller's message.
func (s *Service) newBreaker(p *provider) *breaker {
	return gobreaker.NewCircuitBreaker[json.RawMessage](gobreaker.Settings{
		MaxRequests: 1, Timeout: s.options.Rest,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= tripAfter },
		IsSuccessful: func(err error) bool {
			f, _ := errors.AsType[failure](err)
			return f.reason != Late && f.reason != Unreachable
		},
		IsExcluded: func(err error) bool {
			f, _ := errors.AsType[failure](err)
			return f.reason == Abandoned
		},
		OnStateChange: func(_ string, from, to gobreaker.State) {
			s.options.Log.Info("provider state changed",
				"provider", p.name, "workspace", p.workspace, "from", from.String(), "to", to.String())
		},
	})
}

package ingest

import (
	"context"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Outcome is what became of a request to a source, or of a bus's message.
type Outcome struct {
	Time              time.Time
	Workspace, Source string
	Kind              Kind
	// Reason says why it was refused, without anything secret; it may repeat names of the sender's.
	Reason string
	// Name, URI and ID are those of the event, as far as they are known.
	Name, URI, ID string
}

// of is the outcome with an error, if there is one.
func (o Outcome) of(err error, now time.Time) Outcome {
	o.Time = now
	if err != nil {
		o.Kind, o.Reason = kindOf(err), strings.ToValidUTF8(fault.Public(err), "")
	}
	return o
}

// Kind is a kind of outcome.
type Kind string

// The kinds of outcomes.
const (
	Accepted    Kind = "accepted"
	Duplicate   Kind = "duplicate"   // the event was accepted before
	Unmatched   Kind = "unmatched"   // no mapping matches
	Verified    Kind = "verified"    // the provider asked whether the URL is ours, and got its challenge
	Unverified  Kind = "unverified"  // not signed by the provider, or too long ago
	Invalid     Kind = "invalid"     // not a document
	Unfit       Kind = "unfit"       // no event type takes it; a dead letter
	Limited     Kind = "limited"     // over the rate
	Unavailable Kind = "unavailable" // a failure of ours
)

// Kinds are all of them.
func Kinds() []Kind {
	return []Kind{Accepted, Duplicate, Unmatched, Verified, Unverified, Invalid, Unfit, Limited, Unavailable}
}

// Refused reports whether something should have become an event and could not. What no mapping matches is not.
func (k Kind) Refused() bool {
	switch k {
	case Unverified, Invalid, Unfit, Limited, Unavailable:
		return true
	}
	return false
}

// succeeded reports whether the provider got what it asked for.
func (k Kind) succeeded() bool { return k == Accepted || k == Duplicate || k == Verified }

// Recorder keeps outcomes for operators. Record must not block on what is slow, nor fail.
type Recorder interface {
	Record(ctx context.Context, o Outcome)
}

func kindOf(err error) Kind {
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		return Unverified
	case fault.Exhausted:
		return Limited
	case fault.Unprocessable:
		return Unfit
	case fault.Unavailable, fault.Internal, fault.Conflict:
		return Unavailable
	}
	return Invalid
}

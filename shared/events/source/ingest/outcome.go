package ingest

import (
	"context"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Outcome is the result of a request to a source, or of a document in a bus message.
type Outcome struct {
	Time              time.Time
	Workspace, Source string
	Kind              Kind
	// Reason says why it was refused. It contains no secrets, but may contain names that the sender chose.
	Reason string
	// Name, URI and ID describe the event, as far as they are known.
	Name, URI, ID string
}

// of returns the outcome with the time and, if there is one, the error.
func (o Outcome) of(err error, now time.Time) Outcome {
	o.Time = now
	if err != nil {
		o.Kind, o.Reason = kindOf(err), strings.ToValidUTF8(fault.Public(err), "")
	}
	return o
}

// Kind classifies outcomes.
type Kind string

// The kinds of outcomes.
const (
	Accepted    Kind = "accepted"
	Duplicate   Kind = "duplicate"   // the event was accepted before
	Unmatched   Kind = "unmatched"   // no mapping matches
	Verified    Kind = "verified"    // the provider checked that we own the URL, and got its challenge back
	Unverified  Kind = "unverified"  // the signature is missing, wrong or too old
	Invalid     Kind = "invalid"     // not a valid document
	Unfit       Kind = "unfit"       // a mapping matches but no valid event results; dead-lettered
	Limited     Kind = "limited"     // over the quota
	Unavailable Kind = "unavailable" // an error on our side
)

// Kinds returns all kinds.
func Kinds() []Kind {
	return []Kind{Accepted, Duplicate, Unmatched, Verified, Unverified, Invalid, Unfit, Limited, Unavailable}
}

// Refused reports whether a document should have become an event but could not. It is false for documents that no
// mapping matches.
func (k Kind) Refused() bool {
	switch k {
	case Unverified, Invalid, Unfit, Limited, Unavailable:
		return true
	}
	return false
}

// succeeded reports whether the provider's request had the effect that it asked for.
func (k Kind) succeeded() bool { return k == Accepted || k == Duplicate || k == Verified }

// Recorder keeps outcomes for operators. Record must not block on slow operations, and it does not return errors.
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

// Package fault gives errors a kind, so that each border of the system (HTTP,
// JSON-RPC, the command line, the queues) translates them in one table.
//
// A package wraps an error once, where it leaves the package, and says there
// what was attempted and on what. The kind travels with the error; [KindOf]
// finds it again. An error without a kind is [Internal]: its text is for the
// log, never for a client.
package fault

import (
	"errors"
	"fmt"
)

// Kind says what went wrong in terms that a caller can act on.
type Kind uint8

const (
	// Internal is a failure of ours; the text stays in the log.
	Internal Kind = iota
	// Invalid is input that cannot be accepted as it is.
	Invalid
	// NotFound is a reference to something that does not exist for this caller.
	NotFound
	// Forbidden is a caller without the right to do this.
	Forbidden
	// Unauthenticated is a caller that did not say who it is, or not validly.
	Unauthenticated
	// Exhausted is a limit or quota that was reached.
	Exhausted
	// Unavailable is a dependency that did not answer; trying again may help.
	Unavailable
	// Conflict is a write whose condition no longer held.
	Conflict
	// TooLarge is input over a stated size.
	TooLarge
	// Unprocessable is well-formed input that breaks a schema.
	Unprocessable
	// Unsupported is a request for something that this deployment does not offer.
	Unsupported
)

var names = [...]string{
	"internal", "invalid", "not found", "forbidden", "unauthenticated", "exhausted",
	"unavailable", "conflict", "too large", "unprocessable", "unsupported",
}

func (k Kind) String() string { return names[k] }

// Error makes a kind an error, so that errors.Is(err, fault.NotFound) works and the public packages can export kinds as
// error values without exporting this package.
func (k Kind) Error() string { return names[k] }

// Error is an error with a kind and, where it helps the caller, typed data.
type Error struct {
	Kind Kind
	// Message is shown to the caller unless Kind is [Internal].
	Message string
	// Data is shown to the caller as it is; it must marshal to JSON.
	Data any
	// Err is the cause, for the log.
	Err error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the kind of e.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// New makes an error of the given kind.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Wrap says what was attempted when err came up. The kind of err is kept; an
// error without one becomes k. Wrap(k, nil, …) is nil.
func Wrap(k Kind, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if inner := KindOf(err); inner != Internal {
		k = inner
	}
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...), Err: err}
}

// With returns a copy of e that carries data.
func (e *Error) With(data any) *Error {
	c := *e
	c.Data = data
	return &c
}

// KindOf reports the kind of the first [Error] in err's chain.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// Is reports whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }

// DataOf returns the data of the first [Error] in err's chain that has any.
func DataOf(err error) any {
	for err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return nil
		}
		if e.Data != nil {
			return e.Data
		}
		err = e.Err
	}
	return nil
}

// Limit is the data of an error about a limit: its name, and how much it allows.
type Limit struct {
	Limit string  `json:"limit"`
	Max   float64 `json:"max"`
}

// LimitName makes Limit, and data that embeds it, known to [LimitOf].
func (l Limit) LimitName() string { return l.Limit }

// AtLimit returns a copy of e that names the limit that was met.
func (e *Error) AtLimit(name string, most float64) *Error { return e.With(Limit{name, most}) }

// LimitOf is the name of the limit that err is about, or empty.
func LimitOf(err error) string {
	if l, ok := DataOf(err).(interface{ LimitName() string }); ok {
		return l.LimitName()
	}
	return ""
}

// Public is the text that a caller may see: the messages of the chain that
// have a kind other than [Internal], and nothing of a foreign cause. Of what is
// [Unavailable] for a cause it says only that: the steps that led there are internal, too.
func Public(err error) string {
	e, ok := errors.AsType[*Error](err)
	switch {
	case !ok || e.Kind == Internal:
		return "internal error"
	case e.Kind == Unavailable && e.Err != nil:
		return "this cannot be done now; try again"
	}
	msg := e.Message
	for inner := e.Err; inner != nil; {
		ie, ok := errors.AsType[*Error](inner)
		if !ok || ie.Kind == Internal {
			break
		}
		msg += ": " + ie.Message
		inner = ie.Err
	}
	return msg
}

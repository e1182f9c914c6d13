// Package fault gives errors a kind. HTTP, JSON-RPC, the command line and the queues each have a table that maps kinds to their own
// codes.
//
// A package wraps an error once, when it returns it to other packages, and adds the attempted operation and its object. [KindOf] returns
// the kind of the first error in the chain that has a kind. An error without a kind counts as [Internal], so its text goes to the log and
// never to a client.
package fault

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
)

// Kind classifies an error by the caller's possible reactions: correct the request, authenticate, wait, or report a defect.
type Kind uint8

const (
	// Internal means that this program failed. The error's text stays in the log.
	Internal Kind = iota
	// Invalid means that the input cannot be accepted as it is.
	Invalid
	// NotFound means that something to which the request refers does not exist for this caller.
	NotFound
	// Forbidden means that the caller may not make the request.
	Forbidden
	// Unauthenticated means that the request has no valid credentials.
	Unauthenticated
	// Exhausted means that a limit or quota was reached.
	Exhausted
	// Unavailable means that a dependency failed or did not answer. A retry may help.
	Unavailable
	// Conflict means that a write was refused because its condition did not hold.
	Conflict
	// TooLarge means that the input is larger than a limit.
	TooLarge
	// Unprocessable means that the input is well-formed but does not match a schema.
	Unprocessable
	// Unsupported means that the request is for something that this deployment does not offer.
	Unsupported
)

var names = [...]string{
	"internal", "invalid", "not found", "forbidden", "unauthenticated", "exhausted",
	"unavailable", "conflict", "too large", "unprocessable", "unsupported",
}

func (k Kind) String() string { return names[k] }

// Error makes a kind an error itself, so that errors.Is(err, fault.NotFound) works and the public packages can export kinds.
func (k Kind) Error() string { return names[k] }

// Error is an error with a kind and, where it helps the caller, data with details.
type Error struct {
	Kind Kind
	// Message is shown to the caller unless Kind is [Internal].
	Message string
	// Data has details that are shown to the caller, or nil. It must marshal to JSON.
	Data any
	// Err is the cause of the error, or nil. The function [Public] decides which part of its text a caller may see.
	Err error
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Message
	}
	return e.Message + ": " + e.Err.Error()
}

func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the kind of e. The function [errors.Is] calls it.
func (e *Error) Is(target error) bool {
	k, ok := target.(Kind)
	return ok && k == e.Kind
}

// New returns an error of kind k without a cause.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...)}
}

// Wrap returns an error that adds the attempted operation to err. Its kind is the kind of err, or k if err is [Internal] or has no kind.
// Wrap returns nil if err is nil.
func Wrap(k Kind, err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	if inner := KindOf(err); inner != Internal {
		k = inner
	}
	return &Error{Kind: k, Message: fmt.Sprintf(format, args...), Err: err}
}

// With returns a copy of e with the given data.
func (e *Error) With(data any) *Error {
	c := *e
	c.Data = data
	return &c
}

// KindOf returns the kind of the first [Error] in err's chain, or [Internal] if the chain has no such error.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// Is reports whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }

// DataOf returns the data of the first [Error] in err's chain that has data, or nil.
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

// Limit is the data of an error about a reached limit: the limit's name and its value.
type Limit struct {
	Limit string  `json:"limit"`
	Max   float64 `json:"max"`
}

// LimitName returns the limit's name. [LimitOf] calls it on a Limit, or on data that embeds a Limit.
func (l Limit) LimitName() string { return l.Limit }

// AtLimit returns a copy of e whose data is a [Limit] with the name and the value of the reached limit.
func (e *Error) AtLimit(name string, value float64) *Error { return e.With(Limit{name, value}) }

// LimitOf returns the name of the reached limit that caused err, or "" if err has another cause.
func LimitOf(err error) string {
	if l, ok := DataOf(err).(interface{ LimitName() string }); ok {
		return l.LimitName()
	}
	return ""
}

// Public returns the text of err that a caller may see. For an [Internal] error, and for an [Unavailable] error with a cause, that is a
// fixed text, because the messages of such errors describe internal steps. Otherwise Public joins the messages of all [Error]s in the
// chain, up to the first [Internal] one.
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

// Clip shortens a text that is longer than limit bytes and appends "…". It does not split a character. Use it before you put a caller's
// text into an error or a record.
func Clip(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	return strings.ToValidUTF8(s[:limit], "") + "…"
}

// Recovered stores a panic as an error in *err. Goroutines defer it, because an unrecovered panic would end the process.
func Recovered(err *error) {
	if p := recover(); p != nil {
		*err = FromPanic(p)
	}
}

// FromPanic returns an error with the value p of a recovered panic and the stack trace.
func FromPanic(p any) error { return fmt.Errorf("panic: %v\n%s", p, debug.Stack()) }

// PrintData prints the data of an error for the command line, which has already printed the error's text (the parameter shown). Each
// schema fault gets a line, for example "/number: must be integer, not string". Other data is printed as JSON.
//
// PrintData skips data that would only repeat the shown text: the faults of a file, which the text lists, and a single fault that the
// text contains.
func PrintData(w io.Writer, data any, shown string) {
	b, err := json.Marshal(data)
	if err != nil {
		return
	}
	var faults []struct {
		Pointer, Message *string
		Line             *int
	}
	if json.Unmarshal(b, &faults) != nil || len(faults) == 0 {
		if text := string(b); text != "null" && text != "{}" && text != "[]" {
			fmt.Fprintf(w, "  %s\n", text)
		}
		return
	}
	if faults[0].Line != nil {
		return
	}
	for _, f := range faults {
		if f.Pointer == nil || f.Message == nil {
			fmt.Fprintf(w, "  %s\n", b)
			return
		}
	}
	for _, f := range faults {
		line := fmt.Sprintf("%s: %s", cmp.Or(*f.Pointer, "(the whole document)"), strings.TrimSpace(*f.Message))
		if len(faults) == 1 && strings.Contains(shown, line) {
			return
		}
		fmt.Fprintf(w, "  %s\n", line)
	}
}

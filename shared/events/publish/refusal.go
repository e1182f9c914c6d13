package publish

import (
	"fmt"
	"slices"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/jsonpointer"
)

// Refusal is the data of errors of [Service.Accept] and of the decoders. It locates the faults.
type Refusal struct {
	// URI is the first URI that matches no event type, in canonical form. It is empty if all URIs match.
	URI string `json:"uri,omitempty"`
	// Faults are at most 100 faults, with JSON Pointers into the request.
	Faults []jsonpointer.Fault `json:"faults,omitempty"`
	// Limit is the first limit that was exceeded, or nil.
	*fault.Limit
}

// LimitName returns the limit's name for [fault.LimitOf].
func (r Refusal) LimitName() string {
	if r.Limit == nil {
		return ""
	}
	return r.Limit.Limit
}

// maxFaults limits the faults in one response.
const maxFaults = 100

// refused collects the faults of a request.
type refused struct {
	Refusal
	kind  fault.Kind // of the most severe fault
	count int
	first string // message of the first fault of that kind
}

// severity orders the kinds. Malformed input comes before unknown names, because the caller must fix it first.
func severity(k fault.Kind) int {
	return 1 + slices.Index([]fault.Kind{fault.Unprocessable, fault.NotFound, fault.TooLarge, fault.Unsupported, fault.Invalid}, k)
}

func (r *refused) add(k fault.Kind, pointer, format string, args ...any) {
	msg := fmt.Sprintf(format, args...)
	if severity(k) > severity(r.kind) {
		r.kind, r.first = k, describe(pointer, msg)
	}
	r.count++
	if len(r.Faults) < maxFaults {
		r.Faults = append(r.Faults, jsonpointer.Fault{Pointer: pointer, Message: msg})
	}
}

// refuse adds a fault for an error, and records the limit that the error is about.
func (r *refused) refuse(pointer string, err error) {
	if l, ok := fault.DataOf(err).(fault.Limit); ok && r.Limit == nil {
		r.Limit = &l
	}
	r.add(fault.KindOf(err), pointer, "%s", fault.Public(err))
}

// describe returns a fault as a sentence.
func describe(pointer, msg string) string {
	if pointer == "" {
		return "the body " + msg
	}
	return pointer + ": " + msg
}

// unknown adds a fault for a URI that matches no event type.
func (r *refused) unknown(pointer, uri string) {
	if r.URI == "" {
		r.URI = uri
	}
	r.add(fault.NotFound, pointer, "belongs to no event type")
}

// schema adds the faults of a schema check. If below is true, their pointers are relative to pointer.
func (r *refused) schema(pointer string, err error, below bool) {
	faults, ok := fault.DataOf(err).([]jsonpointer.Fault)
	if !ok {
		r.add(fault.KindOf(err), pointer, "%s", fault.Public(err))
		return
	}
	for _, x := range faults {
		at, msg := pointer, fault.Public(err)
		if below {
			at, msg = pointer+x.Pointer, x.Message
		}
		r.add(fault.Unprocessable, at, "%s", msg)
		if !below {
			return
		}
	}
}

// err returns an error with all faults, or nil if the request has no faults. n is the number of events in the request.
func (r *refused) err(n int) error {
	if r.count == 0 {
		return nil
	}
	msg := r.first
	if r.count > 1 {
		msg += fmt.Sprintf(" (and %d more faults)", r.count-1)
	}
	if n > 1 {
		msg += "; none of the events was accepted"
	}
	return fault.New(r.kind, "%s", msg).With(r.Refusal)
}

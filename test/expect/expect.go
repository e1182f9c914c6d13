// Package expect checks values in tests. Every failure names the value and prints what the test got and wanted.
package expect

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// OK ends the test if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("got the error %v, want none", err)
	}
}

// Equal compares two values.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// List compares two lists.
func List[T comparable](t testing.TB, what string, got, want []T) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// Contains checks that a text has the parts.
func Contains(t testing.TB, what, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(got, part) {
			t.Errorf("%s: got %s, want it to contain %q", what, got, part)
		}
	}
}

// Receive returns the next value of a channel, or the zero value if the channel is closed. It ends the test if nothing arrives.
func Receive[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: got nothing within %v", what, patience)
		panic("unreachable")
	}
}

// Eventually waits until holds returns true. Tests of other processes and of real time cannot tell in another way when that is.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("did not happen within %v: %s", patience, what)
		}
	}
}

// Fault checks the kind of an error, and that its text has the parts.
func Fault(t testing.TB, what string, err error, want fault.Kind, parts ...string) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Errorf("%s: got the error %v, want a fault of kind %v", what, err, want)
		return
	}
	Error(t, what, err, parts...)
}

// Error checks that an error is not nil, and that its text has the parts.
func Error(t testing.TB, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: got no error, want one", what)
		return
	}
	Contains(t, what, err.Error(), parts...)
}

// ErrOf drops the value that a call returned and keeps its error.
func ErrOf[T any](_ T, err error) error { return err }

// Value returns the value of a call, and ends the test if the call returned an error:
//
//	db := expect.Value(sqlite.Open(path, options))(t)
func Value[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return v
	}
}

// Package expect checks values in tests. Every failure names the value and prints what the test got and wanted.
package expect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// OK ends the test if err is not nil. Its message also has the context, for example the case of a table or the output of a command.
func OK(t testing.TB, err error, context ...any) {
	t.Helper()
	if err == nil {
		return
	}
	text := ""
	for _, c := range context {
		if v := reflect.ValueOf(c); v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Uint8 {
			c = string(v.Bytes())
		}
		text += fmt.Sprint(c, " ")
	}
	t.Fatalf("%sgot the error %v, want none", text, err)
}

// Equal compares two values.
func Equal[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// MustEqual compares two values, and ends the test if they differ.
func MustEqual[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// Differ checks that two values differ.
func Differ[T comparable](t testing.TB, what string, got, other T) {
	t.Helper()
	if got == other {
		t.Errorf("%s: got %v, want another value", what, got)
	}
}

// True checks a statement, for example "the process has ended".
func True(t testing.TB, what string, got bool) {
	t.Helper()
	Equal(t, what, got, true)
}

// Deep compares two values that Go cannot compare with ==.
func Deep[T any](t testing.TB, what string, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: got %+v, want %+v", what, got, want)
	}
}

// Map compares two maps.
func Map[K, V comparable](t testing.TB, what string, got, want map[K]V) {
	t.Helper()
	if !maps.Equal(got, want) {
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

// Len checks the length of a slice, a map or a channel.
func Len(t testing.TB, what string, got any, want int) {
	t.Helper()
	if n := reflect.ValueOf(got).Len(); n != want {
		t.Errorf("%s: got %d, want %d: %+v", what, n, want, got)
	}
}

// MustLen checks a length like [Len], and ends the test if it is wrong.
func MustLen(t testing.TB, what string, got any, want int) {
	t.Helper()
	if Len(t, what, got, want); reflect.ValueOf(got).Len() != want {
		t.FailNow()
	}
}

// Has checks that a list has a value.
func Has[T comparable](t testing.TB, what string, got []T, want T) {
	t.Helper()
	if !slices.Contains(got, want) {
		t.Errorf("%s: got %v, want %v in them", what, got, want)
	}
}

// AtMost checks that a value is not larger than a limit.
func AtMost[T cmp.Ordered](t testing.TB, what string, got, limit T) {
	t.Helper()
	if got > limit {
		t.Errorf("%s: got %v, want at most %v", what, got, limit)
	}
}

// AtLeast checks that a value is not smaller than a limit.
func AtLeast[T cmp.Ordered](t testing.TB, what string, got, limit T) {
	t.Helper()
	if got < limit {
		t.Errorf("%s: got %v, want at least %v", what, got, limit)
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

// Lacks checks that a text does not contain any of the parts. It prints only the surroundings of a part, because the text may be a long log.
func Lacks(t testing.TB, what, got string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if at := strings.Index(got, part); at >= 0 {
			t.Errorf("%s: got …%s…, want it not to contain %q", what, got[max(0, at-300):min(len(got), at+len(part)+300)], part)
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

// Is checks that an error is another one, or wraps it.
func Is(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got the error %v, want %v", what, err, want)
	}
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

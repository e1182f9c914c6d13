package gateway

import (
	"testing"
	"time"
)

// GWN-17: a requestState is valid for an hour, for the same caller and under the same key.
func TestRequestStateExpires(t *testing.T) {
	s, err := newStates(make([]byte, 32))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	sealed := s.seal([]byte("state"), []byte("alice"), now)
	if got, err := s.open(sealed, []byte("alice"), now.Add(stateLife-time.Second)); err != nil || string(got) != "state" {
		t.Errorf("in time: %q, %v", got, err)
	}
	if _, err := s.open(sealed, []byte("alice"), now.Add(stateLife)); err == nil {
		t.Error("an hour later it is still good")
	}
	if _, err := s.open(sealed, []byte("bob"), now); err == nil {
		t.Error("another may use it")
	}
	other, err := newStates([]byte("another key of thirty-two bytes!"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.open(sealed, []byte("alice"), now); err == nil {
		t.Error("another key opens it")
	}
}

package eventlog

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

func sealer(t testing.TB, fill byte) *Sealer {
	t.Helper()
	s, err := NewSealer(bytes.Repeat([]byte{fill}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestCursor(t *testing.T) {
	s := sealer(t, 1)
	many := make([]uint64, MaxSent+20)
	for i := range many {
		many[i] = uint64(i)
	}
	for _, c := range []Cursor{{}, {At: 1}, {At: 1 << 60, Sent: []uint64{7, 1 << 63}}, {At: 5, Sent: many}} {
		got, err := s.Open("default", s.Seal("default", c))
		if err != nil {
			t.Fatal(err)
		}
		if want := c.Sent[:min(len(c.Sent), MaxSent)]; got.At != c.At || !slices.Equal(got.Sent, want) {
			t.Errorf("got %+v, want %+v", got, c)
		}
	}
	t.Run("EVX-07 with positions of partitions", func(t *testing.T) {
		c := Cursor{At: 5, Given: 9, Last: 3, Sent: many[:MaxSent]}
		for i := range MaxPlaces {
			c.Places = append(c.Places, s.PlaceOf(Own("default", fmt.Sprint(i)), int64(100+i)))
		}
		token := s.Seal("default", c)
		got, err := s.Open("default", token)
		if err != nil || !reflect.DeepEqual(got, c) || len(token) > maxToken {
			t.Errorf("%d bytes: got %+v, %v, want %+v", len(token), got, err, c)
		}
		for uri, want := range map[string]int64{"0": 100, "15": 115, "16": 5} {
			if at := s.From(got, Own("default", uri)); at != want {
				t.Errorf("from %d in %s, want %d", at, uri, want)
			}
		}
	})
	t.Run("EVX-07 tokens of earlier releases are read", func(t *testing.T) {
		for token, want := range map[string]Cursor{
			"AQAGCiQYHkAAAAAAAAAAAAEAAAAAAAAAAhknqx2JbwFlpi0bb-KbJ-A": {At: 1700000000000000, Sent: []uint64{1, 2}},
			"AgAGCiQYHkAAAAWvMQekAAAAAAAAAAAAA4EEQYjxvzhIii6p1tEGbMs": {At: 1700000000000000, Last: 1600000000000000, Sent: []uint64{3}},
		} {
			if got, err := s.Open("default", token); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("got %+v, %v, want %+v", got, err, want)
			}
		}
	})
	token := s.Seal("default", Cursor{At: 1700000000000000, Sent: []uint64{1, 2}})
	if len(token) > 1024 {
		t.Errorf("a token has %d bytes", len(token))
	}
	t.Run("EVX-07 a foreign cursor is refused", func(t *testing.T) {
		for name, open := range map[string]func() (Cursor, error){
			"of another workspace":  func() (Cursor, error) { return s.Open("other", token) },
			"of another deployment": func() (Cursor, error) { return sealer(t, 2).Open("default", token) },
			"empty":                 func() (Cursor, error) { return s.Open("default", "") },
			"with padding":          func() (Cursor, error) { return s.Open("default", token+"=") },
			"with a line break":     func() (Cursor, error) { return s.Open("default", token+"\n") },
		} {
			if _, err := open(); !fault.Is(err, fault.Invalid) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	t.Run("EVX-07 every changed bit is noticed", func(t *testing.T) {
		raw, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil {
			t.Fatal(err)
		}
		for i := range len(raw) * 8 {
			raw[i/8] ^= 1 << (i % 8)
			if _, err := s.Open("default", base64.RawURLEncoding.EncodeToString(raw)); err == nil {
				t.Fatalf("bit %d", i)
			}
			raw[i/8] ^= 1 << (i % 8)
		}
	})
}

func FuzzCursor(f *testing.F) {
	s := sealer(f, 1)
	f.Add(s.Seal("default", Cursor{At: 1, Sent: []uint64{1}}))
	f.Add("AQ")
	f.Fuzz(func(t *testing.T, token string) {
		c, err := s.Open("default", token)
		if err == nil && s.Seal("default", c) != token {
			t.Fatalf("%q opens to what seals otherwise", token)
		}
	})
}

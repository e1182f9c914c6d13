package event

import (
	"strings"
	"testing"
	"time"
)

func TestTimesOfRFC3339(t *testing.T) {
	want := time.Date(2026, 11, 23, 7, 0, 0, 500_000_000, time.UTC)
	for _, text := range []string{"2026-11-23T07:00:00.5Z", "2026-11-23t07:00:00.5z", "2026-11-23T08:00:00.500+01:00", "2026-11-23t08:00:00.5+01:00"} {
		if got, err := ParseTime(text); err != nil || !got.Equal(want) {
			t.Errorf("RCH-09 OPS-03 %s: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{
		"", "2026-11-23", "2026-11-23T07:00:00,5Z", "2026-11-23 07:00:00Z", "2026-11-23T7:00:00Z", "2026-11-23T07:00:00", "2026-11-23T07:00:00+25:00", "2026-11-31T07:00:00Z", "2026-11-23T07:00:00." + strings.Repeat("1", 64) + "Z",
	} {
		if got, err := ParseTime(text); err == nil {
			t.Errorf("RCH-09 OPS-03 %q: got %v, want an error", text, got)
		}
	}
}

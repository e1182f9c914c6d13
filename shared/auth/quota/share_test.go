package quota

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMemoryIsSharedBetweenPrincipals(t *testing.T) {
	s := NewShare("answerBytes", "answers", 100)
	take := func(who string) (releases []func()) {
		for {
			release, err := s.Take(auth.Principal{ID: who}, 10)
			if fault.LimitOf(err) == "answerBytes" {
				return releases
			}
			expect.OK(t, err)
			releases = append(releases, release)
		}
	}
	first := take("first")
	if n := len(first); n != 5 {
		t.Errorf("AUT-07 one principal got %d tenths, want half", n)
	}
	if n := len(take("second")); n != 2 {
		t.Errorf("AUT-07 another one got %d tenths, want as much as it leaves free", n)
	}
	for _, release := range first {
		release()
	}
	if n := len(take("third")); n != 4 {
		t.Errorf("AUT-07 after the first one has left, a third one got %d tenths, want 4", n)
	}
}

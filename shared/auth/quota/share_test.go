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
	expect.Equal(t, "AUT-07 the tenths of one principal", len(first), 5)
	expect.Equal(t, "AUT-07 the tenths of another one", len(take("second")), 2)
	for _, release := range first {
		release()
	}
	expect.Equal(t, "AUT-07 the tenths of a third one after the first one has left", len(take("third")), 4)
}

package review_test

import (
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/events/subscription/review"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestRightsWithoutACheck(t *testing.T) {
	e := &event.Event{Workspace: "default", Name: "ci.build_finished", URI: "event://ci/build-finished"}
	expect.Equal(t, "the zero value permits the event", expect.Value(review.Right{}.MayReceive(t.Context(), e))(t), false)
	expect.Equal(t, "All permits the event", expect.Value(review.All().MayReceive(t.Context(), e))(t), true)
}

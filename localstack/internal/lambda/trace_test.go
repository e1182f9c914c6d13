package lambda

import (
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

func TestATraceCountsTheInvocationsOfEachFunction(t *testing.T) {
	begun := parseTrace("")
	if got := begun.enter("a"); got != 0 || !strings.HasPrefix(begun.String(), "Root=1-") {
		t.Errorf("a chain begins with %d invocations as %s", got, &begun)
	}
	header := begun.String()
	for n := range 3 {
		// The SDK escapes the header that the function received.
		next := parseTrace(strings.ReplaceAll(header, "|", "%7C"))
		expect.Equal(t, "how often b was invoked before", next.enter("b"), n)
		header = next.String()
	}
	end := parseTrace(header)
	if a, b := end.enter("a"), end.enter("b"); a != 1 || b != 3 {
		t.Errorf("got %d and %d invocations from %s", a, b, header)
	}
	for _, broken := range []string{"Lineage", ";;", "Lineage=;Root=x", "%zz"} {
		odd := parseTrace(broken)
		expect.Equal(t, fmt.Sprintf("the earlier invocations with the header %q", broken), odd.enter("a"), 0)
	}
}

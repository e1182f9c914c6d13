package lambda

import (
	"strings"
	"testing"
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
		if got := next.enter("b"); got != n {
			t.Errorf("b was invoked %d times before, want %d", got, n)
		}
		header = next.String()
	}
	end := parseTrace(header)
	if a, b := end.enter("a"), end.enter("b"); a != 1 || b != 3 {
		t.Errorf("got %d and %d invocations from %s", a, b, header)
	}
	for _, broken := range []string{"Lineage", ";;", "Lineage=;Root=x", "%zz"} {
		odd := parseTrace(broken)
		if got := odd.enter("a"); got != 0 {
			t.Errorf("%q: got %d", broken, got)
		}
	}
}

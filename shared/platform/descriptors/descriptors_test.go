package descriptors

import "testing"

func TestSharesStayWithinTheLimit(t *testing.T) {
	for _, limit := range []int{1, 8, 64, 127, 128, 256, 1024, 1 << 20} {
		accepted, outgoing := incomingOf(limit), outgoingOf(limit)
		if accepted < 1 || outgoing < 1 {
			t.Errorf("WHK-17: got %d accepted and %d outgoing of %d, want at least one each", accepted, outgoing, limit)
		}
		if limit >= 8 && accepted+2*outgoing > limit {
			t.Errorf("WHK-17: got %d accepted and twice %d outgoing, want at most %d together", accepted, outgoing, limit)
		}
	}
	if n := incomingOf(20_000); n < 10_000 {
		t.Errorf("SUB-12: got %d connections with 20,000 descriptors, want at least 10,000", n)
	}
	if MaxIncoming() < 1 || MaxOutgoing() < 1 || MaxOutgoing() > 4096 {
		t.Errorf("WHK-17: got %d accepted and %d outgoing on this machine, want at least 1, and at most %d outgoing", MaxIncoming(), MaxOutgoing(), 4096)
	}
}

package descriptors

import "testing"

func TestShares(t *testing.T) {
	for _, limit := range []int{1, 8, 64, 127, 128, 256, 1024, 1 << 20} {
		accepted, outgoing := accepted(limit), outgoing(limit)
		if accepted < 1 || outgoing < 1 {
			t.Errorf("WHK-17 limit %d: %d accepted, %d outgoing", limit, accepted, outgoing)
		}
		if limit >= 8 && accepted+2*outgoing > limit {
			t.Errorf("WHK-17 limit %d is exceeded by %d accepted and twice %d outgoing", limit, accepted, outgoing)
		}
	}
	if n := accepted(20_000); n < 10_000 {
		t.Errorf("SUB-12 with 20,000 descriptors %d connections", n)
	}
	if Accepted() < 1 || Outgoing() < 1 || Outgoing() > most {
		t.Errorf("WHK-17 %d accepted, %d outgoing", Accepted(), Outgoing())
	}
}

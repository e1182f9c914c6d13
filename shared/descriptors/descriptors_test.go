package descriptors

import "testing"

func TestShares(t *testing.T) {
	for _, limit := range []int{1, 8, 64, 127, 128, 256, 1024, 1 << 20} {
		accepted, outgoing := share(limit, 2), share(limit, 4)
		if accepted < 1 || outgoing < 1 {
			t.Errorf("WHK-17 limit %d: %d accepted, %d outgoing", limit, accepted, outgoing)
		}
		if limit >= 8 && accepted+2*outgoing > limit {
			t.Errorf("WHK-17 limit %d is exceeded by %d accepted and twice %d outgoing", limit, accepted, outgoing)
		}
	}
	if Accepted() < 1 || Outgoing() < 1 || Outgoing() > most {
		t.Errorf("WHK-17 %d accepted, %d outgoing", Accepted(), Outgoing())
	}
}

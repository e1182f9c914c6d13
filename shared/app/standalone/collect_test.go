package standalone

import "testing"

func TestTheHeapMayGrowByTheReserveOrDouble(t *testing.T) {
	for live, want := range map[uint64]int{
		0: maxPercent, 1 << 20: maxPercent, 16 << 20: 400, 32 << 20: 200, 64 << 20: 100, 4 << 30: 100,
	} {
		if got := gcPercent(live); got != want {
			t.Errorf("with %d MiB live: %d %%, want %d", live>>20, got, want)
		}
	}
}

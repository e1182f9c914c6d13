package standalone

import "testing"

func TestAttemptsThatHangLeaveConnectionsToOthers(t *testing.T) {
	for _, conns := range []int{4, 48, 240, 1008, 4096} {
		if l := newAttemptLimits(conns); l.detached+l.slow > conns/2 || l.first+l.detached+l.slow > conns {
			t.Errorf("WHK-17: got %+v with %d connections, want at most half of them for detached and slow attempts", l, conns)
		}
	}
	if l, want := newAttemptLimits(4096), (attemptLimits{first: 256, detached: 1024, slow: 512}); l != want {
		t.Errorf("WHK-17: got %+v, want %+v", l, want)
	}
	if l := newAttemptLimits(1); l.first < 1 || l.slow < 1 {
		t.Errorf("WHK-17: got %+v, want at least one attempt of each lane", l)
	}
}

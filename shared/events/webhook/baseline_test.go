package webhook

import (
	"net/http"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"testing"
	"time"
)

// baseline counts goroutines and descriptors, and returns a check that there are no
// more of them later, and that the process rests.
func baseline(t *testing.T) (check func()) {
	t.Helper()
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	goroutines, descriptors := runtime.NumGoroutine(), countDescriptors(t)
	return func() {
		t.Helper()
		deadline := time.Now().Add(20 * time.Second)
		for runtime.NumGoroutine() > goroutines || countDescriptors(t) > descriptors {
			if time.Now().After(deadline) {
				var all strings.Builder
				_ = pprof.Lookup("goroutine").WriteTo(&all, 1)
				t.Errorf("WHK-17 %d goroutines and %d descriptors, before there were %d and %d\n%s",
					runtime.NumGoroutine(), countDescriptors(t), goroutines, descriptors, &all)
				return
			}
			time.Sleep(10 * time.Millisecond) // nothing tells when the last goroutine has ended
		}
	}
}

func countDescriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// rests fails if the process uses more than a fifteenth of a core for a while: a goroutine that turns uses all of one.
func rests(t *testing.T) {
	t.Helper()
	before := cpu()
	const while = 300 * time.Millisecond
	time.Sleep(while) // what is measured is that nothing happens in it
	if used := cpu() - before; used > 20*time.Millisecond {
		t.Errorf("WHK-17 at rest %s of CPU in %s", used, while)
	}
}

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

// baseline counts goroutines and descriptors. The returned function checks that there are no more than that later,
// and that the process is idle.
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
			time.Sleep(10 * time.Millisecond) // there is no signal for the end of the last goroutine
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

// rests fails if the process uses more than a fifteenth of a core for a while. A goroutine in a busy loop would use a
// whole core.
func rests(t *testing.T) {
	t.Helper()
	before := cpu()
	const while = 300 * time.Millisecond
	time.Sleep(while) // the process must stay idle for this time
	if used := cpu() - before; used > 20*time.Millisecond {
		t.Errorf("WHK-17 at rest %s of CPU in %s", used, while)
	}
}

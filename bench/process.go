package bench

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// cpuSeconds returns a process's CPU time so far (Linux; 0 elsewhere).
func cpuSeconds(pid int) float64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(b), ") ") // the name may hold spaces
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100 // USER_HZ
}

// memory returns a figure of a process in bytes (Linux; 0 elsewhere), e.g. VmRSS for its resident memory or VmHWM for the
// peak of it.
func memory(pid int, figure string) int64 {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, figure+":"); ok {
			kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
			return kib << 10
		}
	}
	return 0
}

// fsyncTimes returns the durations of 200 syncs of 4 KiB in a directory, sorted.
func fsyncTimes(dir string) []time.Duration {
	f, err := os.CreateTemp(dir, "mcpevents-fsync-")
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close(); _ = os.Remove(f.Name()) }()
	took := make([]time.Duration, 200)
	block := make([]byte, 4096)
	for i := range took {
		_, _ = f.Write(block)
		started := time.Now()
		_ = f.Sync()
		took[i] = time.Since(started)
	}
	slices.Sort(took)
	return took
}

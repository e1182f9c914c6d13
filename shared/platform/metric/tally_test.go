package metric

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestTally(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		tally := Tally{Name: "Spills", Text: "milk was spilt", Log: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{ReplaceAttr: Plain}))}
		spill := func(n int, where, why string) {
			for range n {
				tally.Add(t.Context(), slog.String("where", where), slog.String("why", why))
			}
		}
		lines := func() (got []string) {
			synctest.Wait()
			tally.mu.Lock() // stops writers
			defer tally.mu.Unlock()
			for line := range strings.Lines(out.String()) {
				_, rest, _ := strings.Cut(strings.TrimSpace(line), `msg="milk was spilt" `)
				got = append(got, rest)
			}
			out.Reset()
			return got
		}
		wants := func(want ...string) {
			t.Helper()
			if got := lines(); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		spill(100, "kitchen", "cat")
		spill(1, "kitchen", "dog")
		wants("where=kitchen why=cat Spills=1", "where=kitchen why=dog Spills=1")
		time.Sleep(LogEvery - time.Second)
		spill(1, "kitchen", "cat")
		wants()
		time.Sleep(2 * time.Second)
		wants("where=kitchen why=cat Spills=100")
		time.Sleep(time.Minute)
		wants()
		spill(1, "kitchen", "cat")
		wants("where=kitchen why=cat Spills=1")
		var all []string
		tally.Each(func(values []string, n int64) { all = append(all, fmt.Sprint(values, n)) })
		slices.Sort(all)
		if want := []string{"[kitchen cat] 102", "[kitchen dog] 1"}; !slices.Equal(all, want) {
			t.Errorf("got %q, want %q", all, want)
		}
		time.Sleep(time.Minute) // lets the last timer end
	})
}

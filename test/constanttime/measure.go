package constanttime

import (
	"math"
	"slices"
	"testing"
	"time"
)

// Measure reports how far the times of two calls are apart, as t of Welch's test over samples that are taken in turns. An
// absolute value below 4.5 is the usual bound for "no difference is seen"; one benchmark run proves nothing, many
// that all stay below tell something. Samples beyond the 90th percentile are left out: those are the machine's.
func Measure(b *testing.B, one, other func() bool) {
	const calls = 100 // in a sample: one is shorter than the clock's step
	var samples [2][]float64
	sink := false
	for i := 0; b.Loop(); i++ {
		call := one
		if i%2 == 1 {
			call = other
		}
		begin := time.Now()
		for range calls {
			sink = call() || sink
		}
		samples[i%2] = append(samples[i%2], float64(time.Since(begin).Nanoseconds()))
	}
	if sink {
		b.Fatal("a comparison of different texts is true")
	}
	if len(samples[0]) > 1 && len(samples[1]) > 1 {
		b.ReportMetric(welch(samples[0], samples[1]), "t")
	}
}

func welch(x, y []float64) float64 {
	all := slices.Sorted(slices.Values(slices.Concat(x, y)))
	most := all[len(all)*9/10]
	mx, vx := moments(x, most)
	my, vy := moments(y, most)
	if vx+vy == 0 {
		return 0
	}
	return (mx - my) / math.Sqrt(vx+vy)
}

// moments returns the mean of the values up to a bound, and the variance of this mean.
func moments(x []float64, most float64) (mean, variance float64) {
	var n, sum, squares float64
	for _, v := range x {
		if v <= most {
			n, sum = n+1, sum+v
		}
	}
	mean = sum / n
	for _, v := range x {
		if v <= most {
			squares += (v - mean) * (v - mean)
		}
	}
	return mean, squares / (n - 1) / n
}

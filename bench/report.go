package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/wcharczuk/go-chart/v2"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Report has the results of a benchmark.
type Report struct {
	At      time.Time `json:"at"`
	Shape   Shape     `json:"shape"`
	Machine Machine   `json:"machine"`
	Results []Result  `json:"results"`
}

// Machine describes the machine on which the benchmark ran.
type Machine struct {
	Go       string  `json:"go"`
	Platform string  `json:"platform"`
	CPUs     int     `json:"cpus"`
	Load     float64 `json:"load"`           // average load during the minute before the run
	FsyncP50 float64 `json:"fsyncP50Millis"` // of writing and syncing 4 KiB in the folder of the database
	FsyncP99 float64 `json:"fsyncP99Millis"`
}

// Result has the measurements of one sender under the load [Report.Shape].
type Result struct {
	Sender  string `json:"sender"`
	Hanging int    `json:"hanging"` // further endpoints that hang, which no other figure counts

	Published          int     `json:"published"`
	Delivered          int64   `json:"delivered"`
	PublishedPerSecond float64 `json:"publishedPerSecond"`
	DeliveredPerSecond float64 `json:"deliveredPerSecond"` // first publish to last arrival

	// SenderCPU is the CPU time of the sender. DriverCPU is the CPU time of this process, which publishes events and receives webhooks.
	// CPUPer10k is the sum of both per 10,000 deliveries. The pointers are nil if the CPU time of the sender is unknown.
	SenderCPU       *float64 `json:"senderCPUSeconds"`
	DriverCPU       float64  `json:"driverCPUSeconds"`
	CPUPer10k       *float64 `json:"cpuSecondsPer10k"`
	SenderCPUPer10k *float64 `json:"senderCPUSecondsPer10k"`
	PeakRSS         int64    `json:"peakRSSBytes,omitempty"` // of the sender, since it began
	// SourceRatio compares the sender's CPU time per delivery for a source and for POST /events. It is the time for the source (the
	// previous result), divided by the time for POST /events (this result). It is set only if the two results are for the same events.
	SourceRatio *float64 `json:"sourceCPURatio,omitempty"`

	Latency Latency `json:"latencyMillis"` // publish to arrival

	CommitsPerEvent *float64 `json:"commitsPerEvent"` // nil if the sender does not tell
	SyncsPerEvent   *float64 `json:"syncsPerEvent"`
	WrittenPerEvent *float64 `json:"writtenBytesPerEvent"` // to the database and its log

	Lost       int64 `json:"lost"` // deliveries that have not arrived within [Options.Wait]
	Duplicates int64 `json:"duplicates"`
	Forged     int64 `json:"forged"`  // deliveries with a wrong signature, of which one in 64 is verified
	Strange    int64 `json:"strange"` // deliveries to an endpoint that did not subscribe to the event

	all []time.Duration
}

// Latency has percentiles of the latency, in milliseconds (nearest rank).
type Latency struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

func newReport(o Options) Report {
	took := fsyncTimes(o.Data)
	m := Machine{
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.GOMAXPROCS(0),
		FsyncP50: millis(percentile(took, 50)), FsyncP99: millis(percentile(took, 99)),
	}
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(b), &m.Load)
	}
	return Report{At: time.Now().UTC().Truncate(time.Second), Shape: o.Shape, Machine: m}
}

type sample struct {
	driver, sender float64
	store          *storeCounts
}

func (p *pass) sample(ctx context.Context) sample {
	return sample{driver: cpuSeconds(os.Getpid()), sender: cpuSeconds(p.server.pid), store: p.server.counts(ctx)}
}

func (p *pass) result(l *ledger, before, after sample, publishing time.Duration) Result {
	all := l.latencies()
	r := Result{
		Sender: p.adapter.Name, Hanging: p.hanging, Published: len(l.sent), Delivered: l.arrived.Load(),
		PublishedPerSecond: float64(len(l.sent)) / publishing.Seconds(),
		DriverCPU:          after.driver - before.driver,
		Latency: Latency{
			P50: millis(percentile(all, 50)), P90: millis(percentile(all, 90)), P99: millis(percentile(all, 99)), Max: millis(percentile(all, 100)),
		},
		Lost: l.lost(), Duplicates: l.duplicates.Load(), Forged: l.forged.Load(), Strange: l.strange.Load(), all: all,
	}
	if last := time.Duration(l.last.Load()); last > 0 {
		r.DeliveredPerSecond = float64(r.Delivered) / last.Seconds()
	}
	if p.server.pid != 0 && r.Delivered > 0 {
		sender := after.sender - before.sender
		each := 10_000 / float64(r.Delivered)
		both, alone := (sender+r.DriverCPU)*each, sender*each
		r.SenderCPU, r.CPUPer10k, r.SenderCPUPer10k = &sender, &both, &alone
		r.PeakRSS = memory(p.server.pid, "VmHWM")
	}
	if before.store != nil && after.store != nil {
		perEvent := func(n int64) *float64 { return new(float64(n) / float64(len(l.sent))) }
		r.CommitsPerEvent = perEvent(after.store.Commits - before.store.Commits)
		r.SyncsPerEvent = perEvent(after.store.Syncs - before.store.Syncs)
		r.WrittenPerEvent = perEvent(after.store.Written - before.store.Written)
	}
	return r
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Err returns an error if deliveries were lost, had wrong signatures, or arrived at the wrong endpoint.
func (r Report) Err() error {
	for _, x := range r.Results {
		if x.Lost > 0 || x.Forged > 0 || x.Strange > 0 {
			return fault.New(fault.Unavailable, "%s: %d of %d deliveries did not arrive in time, %d signatures were wrong, %d webhooks came to the wrong endpoint",
				x.Sender, x.Lost, x.Lost+x.Delivered, x.Forged, x.Strange)
		}
	}
	return nil
}

// WriteTo creates a file and calls the function f with a writer to it. If the name is -, f writes to standard output. If the name is
// empty, WriteTo does nothing.
func WriteTo(name string, stdout io.Writer, f func(io.Writer) error) error {
	switch name {
	case "":
		return nil
	case "-":
		return f(stdout)
	}
	file, err := os.Create(name)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "write the results")
	}
	if err := f(file); err != nil {
		_ = file.Close()
		return err
	}
	return fault.Wrap(fault.Unavailable, file.Close(), "write the results")
}

// WriteJSON writes the report as JSON, for programs.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// ratio returns a text with the 99th percentile of the latency with hanging endpoints, divided by the percentile without them. The ratio
// is unknown if deliveries were lost, because a lost delivery has no latency.
func ratio(with, without Result) string {
	if with.Lost > 0 || without.Latency.P99 == 0 {
		return "unknown: deliveries are lost"
	}
	return fmt.Sprintf("%.2f", with.Latency.P99/without.Latency.P99)
}

// WriteText writes the report as text, for people.
func (r Report) WriteText(w io.Writer) error {
	var err error
	say := func(format string, args ...any) {
		if err == nil {
			_, err = fmt.Fprintf(w, format+"\n", args...)
		}
	}
	say("%s", r.Shape)
	say("%s, %d CPUs, load %.1f, fsync p50 %.2f ms, p99 %.2f ms", r.Machine.Platform, r.Machine.CPUs, r.Machine.Load, r.Machine.FsyncP50, r.Machine.FsyncP99)
	for i, x := range r.Results {
		say("")
		if x.Hanging > 0 {
			say("%s next to %d endpoints that hang", x.Sender, x.Hanging)
		} else {
			say("%s", x.Sender)
		}
		say("  published          %.0f/s", x.PublishedPerSecond)
		say("  delivered          %.0f/s", x.DeliveredPerSecond)
		say("  publish → arrival  p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, max %.2f ms", x.Latency.P50, x.Latency.P90, x.Latency.P99, x.Latency.Max)
		if i > 0 && x.Hanging > 0 {
			say("  p99 with ÷ without %s", ratio(x, r.Results[i-1]))
		}
		if x.CPUPer10k != nil {
			say("  CPU                %.2f s per 10,000 deliveries: sender %.2f, driver and receiver %.2f",
				*x.CPUPer10k, *x.SenderCPUPer10k, *x.CPUPer10k-*x.SenderCPUPer10k)
			if x.SourceRatio != nil {
				say("  CPU of the source  %.2f times that", *x.SourceRatio)
			}
			say("  sender peak memory %.0f MiB", float64(x.PeakRSS)/(1<<20))
		}
		if x.SyncsPerEvent != nil {
			say("  store, per event   %.2f fsyncs, %.2f commits, %.1f KB written",
				*x.SyncsPerEvent, *x.CommitsPerEvent, *x.WrittenPerEvent/1000)
		}
		say("  lost               %d of %d", x.Lost, x.Lost+x.Delivered)
		say("  duplicates         %d", x.Duplicates)
		if x.Forged > 0 || x.Strange > 0 {
			say("  wrong signatures   %d; webhooks at a wrong endpoint %d", x.Forged, x.Strange)
		}
	}
	return err
}

// percentiles has the values on the horizontal axis of the chart.
var percentiles = []float64{50, 75, 90, 95, 99, 99.9, 100}

// WriteSVG draws a chart with the latency at each percentile.
func (r Report) WriteSVG(w io.Writer) error {
	c := chart.Chart{
		Title: "Publish to arrival: " + r.Shape.String(), TitleStyle: chart.Style{FontSize: 10},
		Width: 960, Height: 480,
		Background:     chart.Style{Padding: chart.Box{Top: 70, Left: 40, Right: 20, Bottom: 20}},
		XAxis:          chart.XAxis{Name: "percentile"},
		YAxis:          chart.YAxis{Name: "ms", ValueFormatter: func(v any) string { return fmt.Sprintf("%.4g", v) }, Range: &chart.ContinuousRange{}},
		YAxisSecondary: chart.HideYAxis(),
	}
	highest := 0.0
	for i, p := range percentiles {
		name := fmt.Sprintf("p%g", p)
		if p == 100 {
			name = "max"
		}
		c.XAxis.Ticks = append(c.XAxis.Ticks, chart.Tick{Value: float64(i), Label: name})
	}
	for _, x := range r.Results {
		series := chart.ContinuousSeries{Name: fmt.Sprintf("%s, %.0f delivered/s", x.Sender, x.DeliveredPerSecond)}
		if x.Hanging > 0 {
			series.Name += fmt.Sprintf(", %d hang", x.Hanging)
		}
		if x.Lost > 0 {
			series.Name += fmt.Sprintf(", %d lost", x.Lost)
		}
		for i, p := range percentiles {
			y := millis(percentile(x.all, p))
			series.XValues = append(series.XValues, float64(i))
			series.YValues = append(series.YValues, y)
			highest = max(highest, y)
		}
		c.Series = append(c.Series, series)
	}
	c.YAxis.Range.SetMax(highest*1.05 + 0.01) // 0.01, because a range from 0 to 0 cannot be drawn
	c.Elements = []chart.Renderable{chart.Legend(&c)}
	return fault.Wrap(fault.Internal, c.Render(chart.SVG, w), "draw the chart")
}

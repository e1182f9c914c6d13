package bench

import (
	"fmt"
	"io"

	"github.com/wcharczuk/go-chart/v2"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// percentiles of the chart, from the middle to the rarest.
var percentiles = []float64{50, 75, 90, 95, 99, 99.9, 100}

// WriteSVG draws how long deliveries took, a line for each result.
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
	c.YAxis.Range.SetMax(highest*1.05 + 0.01) // a range of nothing cannot be drawn
	c.Elements = []chart.Renderable{chart.Legend(&c)}
	return fault.Wrap(fault.Internal, c.Render(chart.SVG, w), "draw the chart")
}

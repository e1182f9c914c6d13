package metric

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

// GWN-05: CloudWatch reads a count as a metric. The members that its directive names are in no group, the dimensions are strings, and
// the value is a number.
func TestCountIsAMetric(t *testing.T) {
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Warn("dropped", Count("Dropped", 3, slog.String("backend", "b"), slog.String("reason", "r")))
	var line map[string]any
	expect.OK(t, json.Unmarshal(out.Bytes(), &line))
	var about struct {
		AWS struct {
			Timestamp         int64
			CloudWatchMetrics []struct {
				Namespace  string
				Dimensions [][]string
				Metrics    []struct{ Name, Unit string }
			}
		} `json:"_aws"`
	}
	expect.OK(t, json.Unmarshal(out.Bytes(), &about))
	if len(about.AWS.CloudWatchMetrics) != 1 || time.Since(time.UnixMilli(about.AWS.Timestamp)).Abs() > time.Minute {
		t.Fatalf("got %s, want one directive with the current time", out.Bytes())
	}
	m := about.AWS.CloudWatchMetrics[0]
	if m.Namespace != Namespace || len(m.Metrics) != 1 || m.Metrics[0].Unit != "Count" || len(m.Dimensions) != 1 || len(m.Dimensions[0]) != 2 {
		t.Fatalf("got %s, want a metric with the unit Count and two dimensions in %s", out.Bytes(), Namespace)
	}
	for _, name := range m.Dimensions[0] {
		if text, ok := line[name].(string); !ok || text == "" {
			t.Errorf("got the dimension %s = %v, want a text", name, line[name])
		}
	}
	if line[m.Metrics[0].Name] != 3.0 {
		t.Errorf("got the value %v, want 3", line[m.Metrics[0].Name])
	}
}

func TestPlainRemovesTheDirective(t *testing.T) {
	for name, handler := range map[string]func(*bytes.Buffer, *slog.HandlerOptions) slog.Handler{
		"text": func(b *bytes.Buffer, o *slog.HandlerOptions) slog.Handler { return slog.NewTextHandler(b, o) },
		"json": func(b *bytes.Buffer, o *slog.HandlerOptions) slog.Handler { return slog.NewJSONHandler(b, o) },
	} {
		var out bytes.Buffer
		slog.New(handler(&out, &slog.HandlerOptions{ReplaceAttr: Plain})).Warn("dropped", Count("Dropped", 3, slog.String("backend", "b")))
		if text := out.String(); strings.Contains(text, Member) || strings.Contains(text, "Metrics") || !strings.Contains(text, "Dropped") {
			t.Errorf("%s: got %s, want the count without a directive", name, text)
		}
	}
}

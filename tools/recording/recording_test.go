package main

import (
	"bytes"
	"encoding/xml"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
)

// TestTheRecordingIsTheOutputOfTheDemo fails if the demo prints other lines than docs/demo.svg shows, apart from times, ids and ports.
// Events may arrive in any order.
func TestTheRecordingIsTheOutputOfTheDemo(t *testing.T) {
	shown := textOf(t, expect.Value(os.ReadFile("../../"+file))(t))
	printed := expect.Value(record("../.."))(t)
	if got, want := normalize(shown), normalize(printed); !slices.Equal(got, want) {
		t.Errorf("%s shows\n%s\nbut the demo prints\n%s\nrun go run ./tools/recording", file, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, want := range []string{"webhook, SEP-1803", "signature verified", "killed with SIGKILL", "all 1,000 arrived"} {
		expect.Contains(t, file, strings.Join(shown, "\n"), want)
	}
}

// TestTheRecordingIsDrawnByThisProgram fails if docs/demo.svg was changed by hand or by an older version of the program.
func TestTheRecordingIsDrawnByThisProgram(t *testing.T) {
	b := expect.Value(os.ReadFile("../../" + file))(t)
	if again := render(withBlankLines(textOf(t, b))); !bytes.Equal(again, b) {
		t.Errorf("%s differs from what the program draws now; run go run ./tools/recording", file)
	}
}

// textOf returns the lines of a picture.
func textOf(t *testing.T, svg []byte) (lines []string) {
	t.Helper()
	var picture struct {
		Text []string `xml:"text"`
	}
	expect.OK(t, xml.Unmarshal(svg, &picture))
	if len(picture.Text) < 15 {
		t.Fatalf("it has only the lines %q", picture.Text)
	}
	return picture.Text
}

// withBlankLines puts back the blank lines before titles, which a picture has no text for.
func withBlankLines(lines []string) (all []string) {
	for i, l := range lines {
		if i > 0 && class(l) == "title" {
			all = append(all, "")
		}
		all = append(all, l)
	}
	return all
}

var (
	times = regexp.MustCompile(`^ *\+?[0-9]+\.[0-9] ms`)
	names = regexp.MustCompile(`(evt|sub)_[0-9A-Za-z_-]+|127\.0\.0\.1:[0-9]+(/[0-9A-Za-z_-]{8,})?`)
)

// normalize returns the lines without what differs from run to run, in an order that does not depend on the run.
func normalize(lines []string) (all []string) {
	start := 0
	for _, l := range lines {
		if l == "" {
			continue
		}
		if class(l) == "title" {
			slices.Sort(all[start:])
			start = len(all) + 1
		}
		all = append(all, names.ReplaceAllString(times.ReplaceAllString(l, "TIME"), "NAME"))
	}
	return all
}

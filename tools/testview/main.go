// Command testview makes the stream of "go test -json" readable again, and keeps the stream in a file, from which the conformance table
// counts tests.
//
//	go test -json ./... | go run ./tools/testview -log build/test.json
//
// Its output is like the output of go test without -json: one line per package as it ends, and the output of failed tests. Its exit code
// is 1 if a test failed, a package did not build, or the stream ended early.
//
// The flag -left names tests that a run leaves out on purpose, and the summary lists them. The flag -with names tests that a run must
// have. It fails without them, so that the list contains only existing tests.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.log, "log", "", "write the stream to this file too, one JSON object per line")
	left := flag.String("left", "", "names of tests that are left to another run, separated by spaces: the summary names them")
	with := flag.String("with", "", "names of tests that must be in the stream, separated by spaces")
	flag.Parse()
	o.left, o.with = strings.Fields(*left), strings.Fields(*with)
	ok, err := run(os.Stdin, os.Stdout, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testview:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

type options struct {
	log        string
	left, with []string // names of top-level tests
}

func run(in io.Reader, out io.Writer, o options) (ok bool, err error) {
	if o.log != "" {
		f, err := create(o.log)
		if err != nil {
			return false, err
		}
		w := bufio.NewWriter(f)
		defer func() {
			if ferr := w.Flush(); err == nil {
				err = ferr
			}
			if cerr := f.Close(); err == nil {
				err = cerr
			}
		}()
		in = io.TeeReader(in, w)
	}
	v := newViewer(out, o)
	if err := v.view(in); err != nil {
		return false, err
	}
	return !v.bad, nil
}

func create(name string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	return os.Create(name)
}

// line is one object of the stream ("go doc test2json", "go help buildjson").
type line struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
}

// maxKept bounds the output in bytes that is kept of one running test.
const maxKept = 1 << 20

type counts struct{ passed, failed, skipped int }

type viewer struct {
	out    io.Writer
	tests  map[string]*strings.Builder // by package and test
	failed []string
	ends   []string        // the last line of every package, in the order in which they ended
	ran    map[string]bool // tests that have ended
	names  options
	counts counts
	bad    bool
}

func newViewer(out io.Writer, names options) *viewer {
	return &viewer{out: out, tests: map[string]*strings.Builder{}, ran: map[string]bool{}, names: names}
}

func (v *viewer) view(in io.Reader) error {
	began := time.Now()
	r := bufio.NewReaderSize(in, 1<<16)
	for {
		raw, err := r.ReadBytes('\n')
		if len(raw) > 0 {
			v.take(raw)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	v.finish(time.Since(began))
	return nil
}

func (v *viewer) take(raw []byte) {
	var l line
	if json.Unmarshal(raw, &l) != nil { // go itself had something to say
		fmt.Fprint(v.out, string(raw))
		return
	}
	switch {
	case l.Action == "build-output":
		fmt.Fprint(v.out, l.Output)
	case l.Action == "build-fail":
		v.bad = true
	case l.Action == "output" && l.Test != "":
		v.keep(l)
	case l.Action == "output":
		v.packageLine(l.Output)
	case l.Test != "":
		v.test(l)
	case l.Action == "fail":
		v.bad = true
		v.unfinished(l.Package)
	}
}

func (v *viewer) keep(l line) {
	key := l.Package + " " + l.Test
	b := v.tests[key]
	if b == nil {
		b = &strings.Builder{}
		v.tests[key] = b
	}
	if strings.HasPrefix(strings.TrimLeft(l.Output, " "), "=== ") || b.Len() > maxKept {
		return
	}
	b.WriteString(l.Output)
}

// packageLine leaves out the lines PASS and FAIL before a package's last line.
func (v *viewer) packageLine(text string) {
	switch trimmed := strings.TrimRight(text, "\n"); {
	case trimmed == "PASS" || trimmed == "FAIL":
		return
	case strings.HasPrefix(trimmed, "ok  \t"), strings.HasPrefix(trimmed, "FAIL\t"), strings.HasPrefix(trimmed, "?   \t"):
		v.ends = append(v.ends, trimmed)
	}
	fmt.Fprint(v.out, text)
}

func (v *viewer) test(l line) {
	key := l.Package + " " + l.Test
	switch l.Action {
	case "pass":
		v.counts.passed++
	case "skip":
		v.counts.skipped++
		v.print(key)
	case "fail":
		v.counts.failed++
		v.bad = true
		v.failed = append(v.failed, key)
		v.print(key)
	default:
		return
	}
	v.ran[l.Test] = true
	delete(v.tests, key)
}

// unfinished prints the tests that were running when a package failed. An empty pkg means all packages.
func (v *viewer) unfinished(pkg string) {
	for _, key := range slices.Sorted(maps.Keys(v.tests)) {
		if pkg == "" || strings.HasPrefix(key, pkg+" ") {
			v.counts.failed++
			v.failed = append(v.failed, key)
			v.print(key)
			delete(v.tests, key)
		}
	}
}

func (v *viewer) print(key string) {
	if b := v.tests[key]; b != nil {
		fmt.Fprint(v.out, b.String())
	}
}

func (v *viewer) finish(took time.Duration) {
	if len(v.tests) > 0 { // the stream broke off
		v.bad = true
		v.unfinished("")
	}
	if len(v.ends) == 0 {
		v.bad = true
	}
	fmt.Fprintf(v.out, "\n%d tests passed, %d failed, %d skipped in %s\n",
		v.counts.passed, v.counts.failed, v.counts.skipped, took.Round(100*time.Millisecond))
	for _, name := range v.failed {
		fmt.Fprintln(v.out, "--- FAIL:", name)
	}
	for _, end := range v.ends {
		if !strings.HasPrefix(end, "?") {
			fmt.Fprintln(v.out, end)
		}
	}
	for _, name := range v.names.with {
		if !v.ran[name] {
			v.bad = true
			fmt.Fprintln(v.out, "--- MISSING:", name, "is named to run, and there is no such test")
		}
	}
	if n := len(v.names.left); n > 0 {
		fmt.Fprintf(v.out, "%d tests are left to make test-full: %s\n", n, strings.Join(v.names.left, ", "))
	}
	if v.bad {
		fmt.Fprintln(v.out, "FAIL")
	}
}

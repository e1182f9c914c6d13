// Command testview makes the stream of "go test -json" readable again, while
// keeping it for whoever wants to count: the conformance table does.
//
//	go test -json ./... | go run ./tools/testview -log build/test.json
//
// It prints what go test prints without -json: one line per package as it ends,
// and the output of the tests that failed. Its exit code is 1 when a test failed,
// a package did not build or the stream ended early.
//
// A run that leaves tests out on purpose says so in the summary (-left); the run that has
// them fails without them (-with), so that the list names tests there are.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	log := flag.String("log", "", "write the stream to this file too, one JSON object per line")
	left := flag.String("left", "", "names of tests that are left to another run, separated by spaces: the summary tells of them")
	with := flag.String("with", "", "names of tests that must be in the stream, separated by spaces")
	flag.Parse()
	ok, err := run(os.Stdin, os.Stdout, *log, lists{left: strings.Fields(*left), with: strings.Fields(*with)})
	if err != nil {
		fmt.Fprintln(os.Stderr, "testview:", err)
		os.Exit(2)
	}
	if !ok {
		os.Exit(1)
	}
}

// lists are names of top-level tests.
type lists struct{ left, with []string }

func run(in io.Reader, out io.Writer, log string, names lists) (ok bool, err error) {
	if log != "" {
		if err := os.MkdirAll(filepath.Dir(log), 0o755); err != nil {
			return false, err
		}
		f, err := os.Create(log)
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
	return view(in, out, names)
}

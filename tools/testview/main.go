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
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
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

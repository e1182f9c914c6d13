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

// Command testview makes the stream of "go test -json" readable again, while
// keeping it for whoever wants to count: the conformance table does.
//
//	go test -json ./... | go run ./tools/testview -log build/test.json
//
// It prints what go test prints without -json: one line per package as it ends,
// and the output of the tests that failed. Its exit code is 1 when a test failed,
// a package did not build or the stream ended early.
//
// When three top-level tests or fewer failed, and nothing else did, -again names them in a file: on a machine that had
// something else to do, a test that looks at the time may fail, and deserves to be run once more, alone. The second run
// adds its stream to that of the first (-append).
//
// A run that leaves tests out on purpose says so in the summary (-left); the run that has
// them fails without them (-with), so that the list names tests there are.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	var o options
	flag.StringVar(&o.log, "log", "", "write the stream to this file too, one JSON object per line")
	flag.BoolVar(&o.add, "append", false, "keep what the file of -log has")
	flag.StringVar(&o.again, "again", "", "write to this file, one package a line, which tests to run once more; it is removed if there are none or too many")
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
	add        bool
	again      string
	left, with []string // names of top-level tests
}

func run(in io.Reader, out io.Writer, o options) (ok bool, err error) {
	if o.log != "" {
		f, err := create(o.log, o.add)
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
	if o.again != "" {
		if err := writeAgain(o.again, v.again()); err != nil {
			return false, err
		}
	}
	return !v.bad, nil
}

func create(name string, add bool) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	mode := os.O_TRUNC
	if add {
		mode = os.O_APPEND
	}
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|mode, 0o644)
}

// writeAgain writes the lines, or removes the file if there are none.
func writeAgain(name string, lines []string) error {
	if len(lines) == 0 {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	f, err := create(name, false)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, strings.Join(lines, "\n"))
	return errors.Join(err, f.Close())
}

// Command conformance writes the table of what the software is asked to do and
// which tests show it.
//
//	go run ./tools/conformance -requirements docs/requirements.tsv -log build/test.json -out docs/conformance.md
//
// A test shows a requirement when its name carries the number (TestX/WHK-02_…,
// TestWHK02…) or the comment of its function does; tests of other languages are found by their titles in the
// output of the Go test that runs them. A number without a test is open. A third column of the requirements says
// what the tests do not show; such a number is at best passed in part.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	requirements := flag.String("requirements", "docs/requirements.tsv", "numbers, what each asks and what its tests do not show, separated by tabs")
	log := flag.String("log", "build/test.json", "output of go test -json")
	out := flag.String("out", "docs/conformance.md", "the table to write")
	flag.Parse()
	if err := run(*requirements, *log, *out, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

func run(requirements, log, out string, report io.Writer) error {
	rf, err := os.Open(requirements)
	if err != nil {
		return err
	}
	defer rf.Close()
	groups, err := readRequirements(rf)
	if err != nil {
		return fmt.Errorf("%s: %w", requirements, err)
	}
	lf, err := os.Open(log)
	if err != nil {
		return fmt.Errorf("%w; run make test-full first", err)
	}
	defer lf.Close()
	tests, err := readLog(lf)
	if err != nil {
		return fmt.Errorf("%s: %w", log, err)
	}
	if err := document(".", tests); err != nil {
		return err
	}
	table, sum := write(groups, tests)
	if err := os.WriteFile(out, table, 0o644); err != nil {
		return err
	}
	fmt.Fprintf(report, "%s: %d requirements, %d passed, %d in part, %d failed, %d open\n",
		out, sum.total(), sum.passed, sum.partly, sum.failed, sum.open)
	return nil
}

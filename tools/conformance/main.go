// Command conformance writes the table of requirements and the tests that show them.
//
//	go run ./tools/conformance -requirements docs/requirements.tsv -log build/test.json -out docs/internals/conformance.md
//
// A test shows a requirement if its name contains the number (TestX/WHK-02_…, TestWHK02…) or the comment of its function
// does. Tests in other languages are found by their titles in the output of the Go test that runs them. A requirement without
// a test is open. An optional third column of the requirements names the parts that the tests do not show. Such a
// requirement is at best passed in part.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	requirements := flag.String("requirements", "docs/requirements.tsv", "file with one requirement per line: number, text and, optionally, the parts that its tests do not show, separated by tabs")
	log := flag.String("log", "build/test.json", "output of go test -json")
	out := flag.String("out", "docs/internals/conformance.md", "the table to write")
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

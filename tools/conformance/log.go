package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// module is the path of the module, with a slash.
const module = "github.com/mcp-events/mcpevents/"

// state is the result of a test. Larger values are worse.
type state int

const (
	passed state = iota
	skipped
	failed
)

// test is one test of the log, or one of another language that a Go test ran.
type test struct {
	pkg   string // below the module
	name  string
	doc   string // the comment of its function
	state state
}

// readLog reads the output of "go test -json". A test that started but did not end, because its package panicked or timed
// out, counts as failed. If a test ran more than once, the last run counts.
func readLog(r io.Reader) ([]test, error) {
	type key struct{ pkg, name string }
	running := map[key]int{}
	var tests []test
	lines := bufio.NewReaderSize(r, 1<<16)
	for {
		raw, err := lines.ReadBytes('\n')
		if len(raw) > 0 {
			var l struct{ Action, Package, Test, Output string }
			if json.Unmarshal(raw, &l) == nil && l.Test != "" {
				k := key{l.Package, l.Test}
				switch l.Action {
				case "run":
					if _, ok := running[k]; ok {
						forget(tests, short(l.Package), l.Test)
					}
					running[k] = len(tests)
					tests = append(tests, test{pkg: short(l.Package), name: l.Test, state: failed})
				case "pass", "fail", "skip":
					i, ok := running[k]
					if !ok {
						return nil, fmt.Errorf("the log contains the end of %s but not its start", l.Test)
					}
					tests[i].state = map[string]state{"pass": passed, "fail": failed, "skip": skipped}[l.Action]
				case "output":
					if title, st, ok := foreign(l.Output); ok {
						tests = append(tests, test{pkg: short(l.Package), name: l.Test + ": " + title, state: st})
					}
				}
			}
		}
		if err == io.EOF {
			return slices.DeleteFunc(tests, func(t test) bool { return t.name == "" }), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// forget removes the results of a test, its subtests, and the tests in other languages that it ran.
func forget(tests []test, pkg, name string) {
	for i, t := range tests {
		if rest, ok := strings.CutPrefix(t.name, name); ok && t.pkg == pkg && (rest == "" || rest[0] == '/' || rest[0] == ':') {
			tests[i].name = ""
		}
	}
}

func short(pkg string) string {
	rest, ok := strings.CutPrefix(pkg, module)
	if !ok {
		return pkg
	}
	return rest
}

var (
	escapes  = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	logged   = regexp.MustCompile(`^\s*[\w.-]+\.go:\d+: `)
	tap      = regexp.MustCompile(`^\s*(not )?ok \d+ (?:- )?(.+)$`)
	directed = regexp.MustCompile(`(?i)\s+# (skip|todo)\b.*$`)
	marked   = regexp.MustCompile(`^\s*([✔✓√✖✗×✕﹣↓]) (.+?)(?:\s+\(?\d+(?:\.\d+)? ?m?s\)?)?$`)
	pytest   = regexp.MustCompile(`^\S+\.py::(\S+) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b`)
)

// foreign finds the result of a test of JavaScript (TAP, the spec reporters of
// node, vitest and jest) or Python (pytest -v) in a line of output.
func foreign(text string) (title string, st state, ok bool) {
	text = strings.TrimRight(escapes.ReplaceAllString(text, ""), " \r\n")
	text = logged.ReplaceAllString(text, "")
	if m := tap.FindStringSubmatch(text); m != nil {
		title := directed.ReplaceAllString(m[2], "")
		switch {
		case title != m[2]:
			return title, skipped, true
		case m[1] != "":
			return title, failed, true
		}
		return title, passed, true
	}
	if m := marked.FindStringSubmatch(text); m != nil {
		switch m[1] {
		case "✔", "✓", "√":
			return m[2], passed, true
		case "﹣", "↓":
			return m[2], skipped, true
		}
		return m[2], failed, true
	}
	if m := pytest.FindStringSubmatch(text); m != nil {
		switch m[2] {
		case "PASSED":
			return m[1], passed, true
		case "FAILED", "ERROR":
			return m[1], failed, true
		}
		return m[1], skipped, true
	}
	return "", 0, false
}

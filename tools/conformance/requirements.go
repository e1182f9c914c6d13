package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"strings"
)

// group is a part of the table with a heading of its own.
type group struct {
	title        string
	requirements []requirement
}

type requirement struct {
	number string // WHK-02
	asks   string
	// missing says what of it the tests that carry the number do not show; empty is
	// nothing. A requirement with something missing is never passed.
	missing string
}

var number = regexp.MustCompile(`^[A-Z]{3}-[0-9]{2}$`)

// readRequirements reads lines of a number, a tab and a sentence, and where
// something is missing another tab and what. A line that begins with "# " is the
// heading of what follows.
func readRequirements(r io.Reader) ([]group, error) {
	var groups []group
	seen := map[string]bool{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		if title, ok := strings.CutPrefix(text, "# "); ok {
			groups = append(groups, group{title: title})
			continue
		}
		id, asks, ok := strings.Cut(text, "\t")
		switch {
		case !ok || !number.MatchString(id) || strings.TrimSpace(asks) == "":
			return nil, fmt.Errorf("line %d is not a number, a tab and a sentence", n)
		case seen[id]:
			return nil, fmt.Errorf("line %d: %s stands there twice", n, id)
		case len(groups) == 0:
			return nil, fmt.Errorf("line %d stands before the first heading", n)
		}
		seen[id] = true
		asks, missing, _ := strings.Cut(asks, "\t")
		g := &groups[len(groups)-1]
		g.requirements = append(g.requirements, requirement{id, strings.TrimSpace(asks), strings.TrimSpace(missing)})
	}
	return groups, lines.Err()
}

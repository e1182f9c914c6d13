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
	// missing names the parts of the requirement that its tests do not show. If it is not empty, the requirement is never
	// fully passed.
	missing string
}

var number = regexp.MustCompile(`^[A-Z]{3}-[0-9]{2}$`)

// readRequirements reads lines with a number, a tab and a sentence. Another tab and a sentence about the missing parts may
// follow. A line that begins with "# " is the heading of the next group.
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
			return nil, fmt.Errorf("line %d: want a number, a tab and a sentence", n)
		case seen[id]:
			return nil, fmt.Errorf("line %d: %s is defined twice", n, id)
		case len(groups) == 0:
			return nil, fmt.Errorf("line %d: want a heading before the first requirement", n)
		}
		seen[id] = true
		asks, missing, _ := strings.Cut(asks, "\t")
		g := &groups[len(groups)-1]
		g.requirements = append(g.requirements, requirement{id, strings.TrimSpace(asks), strings.TrimSpace(missing)})
	}
	return groups, lines.Err()
}

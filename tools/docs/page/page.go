// Package page reads headings, links and fenced blocks of a Markdown page. It supports only the subset of Markdown that the
// documentation uses.
package page

import (
	"os"
	"regexp"
	"strings"
)

type Page struct {
	Path   string
	Blocks []Block
	Links  []Link
	// Anchors contains the anchors of the headings, which a link can name after the #.
	Anchors map[string]bool
}

type Block struct {
	// Info is the text after the opening fence: the language, and words for the tests.
	Info string
	Text string
	Line int
}

// Language returns the first word of the block's info.
func (b Block) Language() string {
	language, _, _ := strings.Cut(b.Info, " ")
	return language
}

// Is reports whether the block's info has the word.
func (b Block) Is(word string) bool {
	_, words, _ := strings.Cut(b.Info, " ")
	for w := range strings.FieldsSeq(words) {
		if w == word {
			return true
		}
	}
	return false
}

type Link struct {
	To   string
	Line int
}

var (
	links = regexp.MustCompile(`\]\(([^()\s]+)\)|\bsrc="([^"]+)"`)
	code  = regexp.MustCompile("`[^`]*`")
	// dropped matches the characters that GitHub omits from an anchor.
	dropped = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	text    = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
)

// Read reads a file.
func Read(path string) (*Page, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	p := &Page{Path: path, Anchors: map[string]bool{}}
	var block *Block
	for n, line := range strings.Split(string(src), "\n") {
		info, fence := strings.CutPrefix(strings.TrimLeft(line, " "), "```")
		switch {
		case block != nil && fence:
			p.Blocks, block = append(p.Blocks, *block), nil
		case block != nil:
			block.Text += line + "\n"
		case fence:
			block = &Block{Info: info, Line: n + 1}
		default:
			if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
				p.Anchors[Anchor(title)] = true
			}
			for _, m := range links.FindAllStringSubmatch(code.ReplaceAllString(line, "``"), -1) {
				p.Links = append(p.Links, Link{To: m[1] + m[2], Line: n + 1})
			}
		}
	}
	return p, nil
}

// Anchor returns the anchor that GitHub gives to a heading.
func Anchor(title string) string {
	title = text.ReplaceAllString(strings.TrimSpace(title), "$1")
	return strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
}

// Commands joins continued lines, and omits comments and here-documents.
func (b Block) Commands() []string {
	var all []string
	var open, until string
	for line := range strings.Lines(b.Text) {
		line = strings.TrimRight(line, "\n")
		if until != "" {
			if strings.TrimSpace(line) == until {
				until = ""
			}
			continue
		}
		if open += strings.TrimSpace(line); strings.HasSuffix(open, `\`) {
			open = strings.TrimSuffix(open, `\`)
			continue
		}
		if strings.Count(open, "'")%2 == 1 { // a quoted text continues on the next line
			open += "\n"
			continue
		}
		if m := regexp.MustCompile(`<<-?'?(\w+)'?`).FindStringSubmatch(open); m != nil {
			until = m[1]
		}
		if open != "" && !strings.HasPrefix(open, "#") {
			all = append(all, open)
		}
		open = ""
	}
	return all
}

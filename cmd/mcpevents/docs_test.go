//go:build !race

// These tests make hundreds of parsers, which takes long with the race detector. make lint-docs runs them without it.

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/tools/docs/page"
)

// TestTheSettingsAreDocumented holds docs/reference/settings.md to the flags of serve.
func TestTheSettingsAreDocumented(t *testing.T) {
	var cli CLI
	parser := expect.Value(kong.New(&cli, environment(), kong.Vars{"workspace": "default"}))(t)
	doc := expect.Value(os.ReadFile("../../docs/reference/settings.md"))(t)
	rows, headings := map[string]string{}, map[string]string{} // of each flag
	heading := ""
	for line := range strings.Lines(string(doc)) {
		if title, ok := strings.CutPrefix(line, "### "); ok {
			heading = strings.TrimSpace(title)
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range regexp.MustCompile("`--([a-z-]+)`").FindAllStringSubmatch(first, -1) {
			if strings.HasPrefix(line, "|") {
				rows[m[1]], headings[m[1]] = line, heading
			}
		}
	}
	var known []string
	for _, node := range parser.Model.Children {
		if node.Name != "serve" {
			continue
		}
		for _, group := range node.AllFlags(false) {
			for _, f := range group {
				if f.Name == "help" {
					continue
				}
				known = append(known, f.Name)
				row := rows[f.Name]
				switch {
				case row == "":
					t.Errorf("--%s is not in the table of settings", f.Name)
				case !strings.Contains(row, f.Envs[0]):
					t.Errorf("--%s: the row does not name %s: %s", f.Name, f.Envs[0], row)
				case f.Default != "" && !strings.Contains(row, f.Default):
					t.Errorf("--%s: the row does not name the default %s: %s", f.Name, f.Default, row)
				case f.Group != nil && f.Group.Key != headings[f.Name]:
					t.Errorf("--%s: the group of the flag is %q, and the heading above its row %q", f.Name, f.Group.Key, headings[f.Name])
				}
			}
		}
	}
	for name := range rows {
		expect.Has(t, "the flags of serve", known, name)
	}
}

// TestTheCommandsOfThePagesParse parses each command line of mcpevents in the pages, in code blocks and in the text, without running
// it. Subcommands, flags and values must be known.
func TestTheCommandsOfThePagesParse(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "localstack/*.md"} {
		names := expect.Value(filepath.Glob("../../" + pattern))(t)
		pages = append(pages, names...)
	}
	seen := 0
	for _, name := range pages {
		if base := filepath.Base(name); base == "CHANGELOG.md" || base == "permissions.md" {
			continue // the first has old commands; the second is generated and has text that only begins like a command
		}
		p := expect.Value(page.Read(name))(t)
		var lines []string
		for _, b := range p.Blocks {
			if l := b.Language(); l == "" || l == "sh" || l == "ini" {
				lines = append(lines, b.Commands()...)
			}
		}
		src := expect.Value(os.ReadFile(name))(t)
		whole := len(lines) // the lines after these are mentioned in the text, and may lack required arguments
		for _, m := range regexp.MustCompile("`(mcpevents [^`\n]+)`").FindAllStringSubmatch(string(src), -1) {
			lines = append(lines, m[1])
		}
		for i, line := range lines {
			for _, args := range commandLines(line) {
				seen++
				var cli CLI
				parser := expect.Value(kong.New(&cli, environment(), kong.Vars{"workspace": "default"}, kong.Exit(func(int) {})))(t)
				_, err := parser.Parse(args)
				if err != nil && (i < whole || !regexp.MustCompile(`missing flags|expected one of|expected "<|is needed|is missing|got "EOL"`).MatchString(err.Error())) {
					t.Errorf("%s: mcpevents %s: %v", name, strings.Join(args, " "), err)
				}
			}
		}
	}
	expect.AtLeast(t, "the number of command lines", seen, 40)
}

// commandLines returns the arguments of each call of mcpevents in a line of shell.
func commandLines(line string) (all [][]string) {
	for _, command := range regexp.MustCompile(`\s(?:\|\|?|&&|>|2>|<)\s|;\s`).Split(line, -1) {
		words := shellWords(command)
		at := slices.IndexFunc(words, func(w string) bool {
			return w == "mcpevents" || strings.HasSuffix(w, "bin/mcpevents") || w == "./cmd/mcpevents"
		})
		// Skip arguments of other commands, such as cp or go install.
		if at < 0 || at > 0 && !strings.HasPrefix(words[0], "ExecStart=") && words[at-1] != "run" && !strings.Contains(words[at-1], "=") {
			continue
		}
		if args := words[at+1:]; len(args) > 0 && args[len(args)-1] != "…" {
			all = append(all, args)
		}
	}
	return all
}

// shellWords splits a line into words like a shell, including quotes but without expansions.
func shellWords(line string) (words []string) {
	line = strings.TrimPrefix(strings.TrimSpace(line), "ExecStart=")
	var word strings.Builder
	quote, begun := rune(0), false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case quote == 0 && (r == ' ' || r == '\t' || r == '\n'):
			if begun {
				words, begun = append(words, word.String()), false
				word.Reset()
			}
		case quote == 0 && r == '#' && !begun:
			return words
		default:
			begun = true
			word.WriteRune(r)
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

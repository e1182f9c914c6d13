// Command recording writes docs/demo.svg: the output of "mcpevents demo" as a terminal that prints it line by line. It runs the demo,
// so the picture shows what the program really prints. A test fails when the program prints something else.
//
//	go run ./tools/recording
package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const file = "docs/demo.svg"

func main() {
	lines, err := record(".")
	if err == nil {
		err = os.WriteFile(file, render(lines), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recording:", err)
		os.Exit(1)
	}
}

func record(root string) ([]string, error) {
	cmd := exec.Command("go", "run", "./cmd/mcpevents", "demo")
	cmd.Dir, cmd.Stderr = root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, err
	}
	return append([]string{prompt + "mcpevents demo"}, strings.Split(strings.TrimRight(string(out), "\n"), "\n")...), nil
}

const prompt = "$ "

// The measures of the picture, in pixels. Common monospaced fonts have this width of a character at this size.
const (
	charWidth, lineHeight, fontSize = 7.85, 19, 13
	margin, bar                     = 18, 34
)

// Lines appear one after the other, because the demo itself takes a fraction of a second.
const (
	begin = 0.8 // seconds until the second line
	step  = 0.3 // seconds between lines
)

// head has the style of the picture. Without animations, and for readers who prefer none, all lines are visible.
const head = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %[1]d %[2]d" width="%[1]d" height="%[2]d" role="img" aria-labelledby="title">
<title id="title">mcpevents demo publishes an event, which arrives by two webhooks and two streams, and kills the server, which loses nothing</title>
<style>
text { font: %[3]dpx ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; fill: #d6deeb; white-space: pre }
.prompt { fill: #ffffff; font-weight: bold }
.title { fill: #82aaff; font-weight: bold }
.arrival { fill: #addb67 }
@keyframes appear { from { opacity: 0 } to { opacity: 1 } }
@media (prefers-reduced-motion: no-preference) { .line { animation: appear 1ms backwards } }
</style>
<rect width="%[1]d" height="%[2]d" rx="10" fill="#0f1b2d"/>
<circle cx="20" cy="17" r="6" fill="#ff5f57"/><circle cx="40" cy="17" r="6" fill="#febc2e"/><circle cx="60" cy="17" r="6" fill="#28c840"/>
`

func render(lines []string) []byte {
	longest := 0
	for _, l := range lines {
		longest = max(longest, len(l))
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, head, int(2*margin+charWidth*float64(longest)), bar+margin+lineHeight*len(lines), fontSize)
	for i, l := range lines {
		if l == "" {
			continue
		}
		delay := 0.0
		if i > 0 {
			delay = begin + step*float64(i-1)
		}
		fmt.Fprintf(&b, `<text class="%s" x="%d" y="%d" style="animation-delay: %.1fs" xml:space="preserve">`, strings.TrimSpace("line "+class(l)), margin, bar+lineHeight*(i+1)-5, delay)
		_ = xml.EscapeText(&b, []byte(l)) // a buffer takes everything
		b.WriteString("</text>\n")
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func class(line string) string {
	switch {
	case strings.HasPrefix(line, prompt):
		return "prompt"
	case !strings.HasPrefix(line, " "):
		return "title"
	case strings.Contains(line, "+"):
		return "arrival"
	}
	return ""
}

// Package jsonpointer reads, follows and writes JSON Pointers (RFC 6901). A document is a JSON value as [encoding/json] decodes it.
package jsonpointer

import (
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// MaxLength is the largest length of a pointer's text in bytes.
const MaxLength = 1024

// MaxDepth is the deepest nesting of arrays and objects that this project accepts in JSON and YAML. Decoders are recursive, so deeper input
// could exhaust the stack.
const MaxDepth = 64

// Pointer is the path from a document to a value in it. The empty pointer refers to the whole document.
type Pointer []string

var (
	escaper   = strings.NewReplacer("~", "~0", "/", "~1")
	unescaper = strings.NewReplacer("~1", "/", "~0", "~")
)

// Parse parses the text of a pointer. Its errors are of kind fault.Invalid.
func Parse(text string) (Pointer, error) {
	if text == "" {
		return nil, nil
	}
	if len(text) > MaxLength {
		return nil, fault.New(fault.Invalid, "a JSON Pointer of %d bytes is too long (at most %d)", len(text), MaxLength)
	}
	rest, ok := strings.CutPrefix(text, "/")
	if !ok {
		return nil, fault.New(fault.Invalid, "%q is not a JSON Pointer: it does not begin with /", text)
	}
	p := Pointer(strings.Split(rest, "/"))
	for i, token := range p {
		for j := range len(token) {
			if token[j] == '~' && (j+1 == len(token) || token[j+1] != '0' && token[j+1] != '1') {
				return nil, fault.New(fault.Invalid, "%q is not a JSON Pointer: ~ is written ~0, and / in a name ~1", text)
			}
		}
		p[i] = unescaper.Replace(token)
	}
	return p, nil
}

// String returns the pointer as text, for example "/items/0".
func (p Pointer) String() string {
	var b strings.Builder
	for _, token := range p {
		b.WriteString(Member(token))
	}
	return b.String()
}

// Member returns the text of a pointer to a member of the top-level object, for example "/a~1b" for the name a/b.
func Member(name string) string { return "/" + escaper.Replace(name) }

// ValueIn returns the value in the document to which the pointer refers. The result ok is false if the document has no such value.
func (p Pointer) ValueIn(doc any) (value any, ok bool) {
	for _, token := range p {
		switch at := doc.(type) {
		case map[string]any:
			if doc, ok = at[token]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(at) || token != strconv.Itoa(i) {
				return nil, false
			}
			doc = at[i]
		default:
			return nil, false
		}
	}
	return doc, true
}

// Fault is a mistake in a document, with a pointer to the value that has the mistake. An empty pointer refers to the whole document.
type Fault struct {
	Pointer string `json:"pointer"`
	Message string `json:"message"`
}

// String returns the fault as one line of text.
func (f Fault) String() string {
	if f.Pointer == "" {
		return f.Message
	}
	return f.Pointer + ": " + f.Message
}

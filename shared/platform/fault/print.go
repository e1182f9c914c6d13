package fault

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// PrintData prints the data of an error as people read it: schema faults one a
// line, everything else as JSON. The error's text is shown already, and often is the only fault.
func PrintData(w io.Writer, data any, shown string) {
	b, err := json.Marshal(data)
	if err != nil {
		return
	}
	var faults []struct {
		Pointer, Message *string
		Line             *int
	}
	if json.Unmarshal(b, &faults) != nil || len(faults) == 0 {
		if text := string(b); text != "null" && text != "{}" && text != "[]" {
			fmt.Fprintf(w, "  %s\n", text)
		}
		return
	}
	if faults[0].Line != nil {
		return // of a file, whose faults are the message itself
	}
	for _, f := range faults {
		if f.Pointer == nil || f.Message == nil {
			fmt.Fprintf(w, "  %s\n", b)
			return
		}
	}
	for _, f := range faults {
		at := *f.Pointer
		if at == "" {
			at = "(the whole)"
		}
		line := fmt.Sprintf("%s: %s", at, strings.TrimSpace(*f.Message))
		if len(faults) == 1 && strings.Contains(shown, line) {
			return
		}
		fmt.Fprintf(w, "  %s\n", line)
	}
}

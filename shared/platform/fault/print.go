package fault

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// PrintData prints the data of an error whose text the command line has already shown. Each fault of a schema gets a line, for
// example "/number: must be integer, not string". Other data is printed as JSON.
//
// PrintData prints nothing that would only repeat the shown text: faults of a file, which the text lists with their lines, and a
// single fault that the text contains.
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
		return // faults of a file
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
			at = "(the whole document)"
		}
		line := fmt.Sprintf("%s: %s", at, strings.TrimSpace(*f.Message))
		if len(faults) == 1 && strings.Contains(shown, line) {
			return
		}
		fmt.Fprintf(w, "  %s\n", line)
	}
}

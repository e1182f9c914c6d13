package ready

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// List prints one line per provider with its name, its title and its event types.
func List(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, p := range Providers() {
		cat, err := catalog.Parse(Catalog(p))
		if err != nil {
			return fault.Wrap(fault.Internal, err, "read the event types of %s", p.Name)
		}
		var names []string
		for _, e := range cat.Entries() {
			names = append(names, e.Name)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Name, p.Title, strings.Join(names, ", "))
	}
	return fault.Wrap(fault.Internal, w.Flush(), "print")
}

package match

import (
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// AppendOccurrenceMeta appends the members that the _meta of an EventOccurrence has in every delivery mode, without braces.
//
// The arguments are the values of the variables of the event type's URI template, e.g. {"owner":"acme","repo":"web"}. They are
// left out if the catalog has lost the event type or changed its template since the event was published; entry is nil in the first case.
func AppendOccurrenceMeta(b []byte, e *event.Event, entry *catalog.Entry) []byte {
	b = jsonrpc.AppendString(append(b, `"`+spec.MetaURI+`":`...), e.URI)
	if entry == nil {
		return b
	}
	if _, _, arguments, ok := catalog.ParseBackendURI(e.URI); ok && entry.Backend != "" {
		return append(append(b, `,"`+spec.MetaArguments+`":`...), arguments...)
	}
	vars, ok := entry.Bind(e.URI)
	if !ok {
		return b
	}
	b = append(b, `,"`+spec.MetaArguments+`":{`...)
	for i, name := range entry.Variables() {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(jsonrpc.AppendString(b, name), ':')
		b = jsonrpc.AppendString(b, vars[name])
	}
	return append(b, '}')
}

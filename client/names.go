package client

import (
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// What this project adds to MCP, as it is on the wire. The server has these names in shared/mcp,
// which a client is not to import: it would bring the whole server along.
const (
	prefix          = "io.github.mcp-events/"
	metaCursor      = prefix + "cursor"
	metaEventID     = prefix + "eventId"
	metaTime        = prefix + "time"
	metaURI         = prefix + "uri"
	metaTruncated   = prefix + "truncated"
	metaIdempotency = prefix + "idempotencyKey"
)

// kinds are those of the codes of errors. The named errors of MCP Events have two numberings: that of the working group's
// design sketch, and that of SEP-3415.
var kinds = map[int]fault.Kind{
	-32011: fault.NotFound, -32023: fault.NotFound, spec.CodeResourceNotFound: fault.NotFound,
	-32012: fault.Forbidden, -32024: fault.Forbidden,
	-32013: fault.Exhausted, -32025: fault.Exhausted,
	-32014: fault.Unsupported, -32026: fault.Unsupported, jsonrpc.MethodNotFound: fault.Unsupported,
	jsonrpc.InternalError: fault.Unavailable,
}

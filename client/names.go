package client

// What this project adds to MCP, as it is on the wire. The server has these names in shared/mcp,
// which a client is not to import: it would bring the whole server along.
const (
	prefix          = "io.github.mcp-events/"
	metaCursor      = prefix + "cursor"
	metaEventID     = prefix + "eventId"
	metaTime        = prefix + "time"
	metaTruncated   = prefix + "truncated"
	metaIdempotency = prefix + "idempotencyKey"
)

// The codes of the named errors of MCP Events, in both numberings: that of the working group's
// design sketch, and that of SEP-3415.
const (
	sketchNotFound, proposalNotFound       = -32011, -32023
	sketchForbidden, proposalForbidden     = -32012, -32024
	sketchExhausted, proposalExhausted     = -32013, -32025
	sketchUnsupported, proposalUnsupported = -32014, -32026
)

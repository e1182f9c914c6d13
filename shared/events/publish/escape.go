package publish

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// escape compacts JSON and writes some characters as \u escapes:
//
//   - U+FFFE and U+FFFF, which SQS refuses, for XML 1.0 lacks them;
//   - <, >, &, U+2028 and U+2029, which encoding/json escapes wherever it meets
//     raw JSON later on. Done here, once, the size that is checked is the size that
//     travels: 240 KiB of HTML would otherwise outgrow the queue on its way.
//
// The value stays the same, digits of numbers included. Text that is not UTF-8 or
// not JSON is of kind fault.Invalid.
func escape(data json.RawMessage) (json.RawMessage, error) {
	if !utf8.Valid(data) {
		return nil, fault.New(fault.Invalid, "is not UTF-8")
	}
	if !json.Valid(data) {
		return nil, fault.New(fault.Invalid, "is not valid JSON")
	}
	if !jsonrpc.Spaced(data) && !needsEscape(data) {
		return data, nil
	}
	var b bytes.Buffer
	b.Grow(len(data))
	if err := json.Compact(&b, data); err != nil {
		return nil, fault.New(fault.Invalid, "is not valid JSON")
	}
	if !needsEscape(b.Bytes()) {
		return b.Bytes(), nil
	}
	var out bytes.Buffer
	out.Grow(b.Len() + b.Len()/8)
	json.HTMLEscape(&out, b.Bytes())
	return queue.Escape(out.Bytes()), nil
}

func needsEscape(b []byte) bool {
	for _, c := range []byte{'<', '>', '&', 0xE2, 0xEF} {
		if bytes.IndexByte(b, c) >= 0 {
			return true
		}
	}
	return false
}

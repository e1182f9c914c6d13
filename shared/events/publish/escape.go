package publish

import (
	"bytes"
	"encoding/json"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// escape compacts JSON and writes these characters as \u escapes:
//
//   - U+FFFE and U+FFFF, which SQS refuses because XML 1.0 does not allow them;
//   - <, >, &, U+2028 and U+2029, which encoding/json would otherwise escape later, wherever it copies
//     the raw JSON. After this, the size no longer changes. Otherwise 240 KiB of HTML would pass the
//     size check and then become too large for the queue.
//
// The value does not change, not even the digits of numbers. Text that is not UTF-8 or not JSON is a fault of kind
// fault.Invalid.
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

package runner

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
)

// This file simulates what AWS does with functions' requests but no emulator does.

// traced adds the trace header of a request to SQS to its messages, as SQS does. The emulator returns it as a system
// attribute of the message.
func traced(body []byte, header string) []byte {
	var request map[string]json.RawMessage
	if header == "" || json.Unmarshal(body, &request) != nil {
		return body
	}
	attribute, err := json.Marshal(map[string]any{
		lambda.AWSTraceHeader: map[string]string{"DataType": "String", "StringValue": lambda.PlainTrace(header)},
	})
	if err != nil {
		return body
	}
	switch {
	case request["MessageBody"] != nil:
		request["MessageSystemAttributes"] = attribute
	case request["Entries"] != nil:
		var entries []map[string]json.RawMessage
		if json.Unmarshal(request["Entries"], &entries) != nil {
			return body
		}
		for _, e := range entries {
			if e["MessageBody"] != nil { // not a deletion or a change of visibility
				e["MessageSystemAttributes"] = attribute
			}
		}
		if request["Entries"], err = json.Marshal(entries); err != nil {
			return body
		}
	}
	if changed, err := json.Marshal(request); err == nil {
		return changed
	}
	return body
}

// pageSize is the maximum amount of data that a DynamoDB query reads.
const pageSize = 1 << 20

// page cuts the response of a query at [pageSize], as DynamoDB does, and sets the key from which the next query
// continues. It does not change a response without the items' keys.
func (g *gate) page(resp *http.Response, body []byte) []byte {
	var answer map[string]json.RawMessage
	var items []map[string]json.RawMessage
	if len(body) <= pageSize || json.Unmarshal(body, &answer) != nil || json.Unmarshal(answer["Items"], &items) != nil {
		return body
	}
	kept, size := 0, 0
	for ; kept < len(items); kept++ {
		if size += itemSize(items[kept]); size > pageSize && kept > 0 {
			break
		}
	}
	if kept == len(items) {
		return body
	}
	last := map[string]json.RawMessage{}
	for _, name := range g.keysOf(resp.Request) {
		if items[kept-1][name] == nil {
			return body
		}
		last[name] = items[kept-1][name]
	}
	var err error
	if answer["Items"], err = json.Marshal(items[:kept]); err != nil {
		return body
	}
	if answer["LastEvaluatedKey"], err = json.Marshal(last); err != nil || len(last) == 0 {
		return body
	}
	count := json.RawMessage(strconv.Itoa(kept))
	answer["Count"], answer["ScannedCount"] = count, count
	cut, err := json.Marshal(answer)
	if err != nil {
		return body
	}
	resp.ContentLength = int64(len(cut))
	resp.Header.Set("Content-Length", strconv.Itoa(len(cut)))
	resp.Header.Del("X-Amz-Crc32") // the checksum of the whole response
	return cut
}

// tableOf is the context key for the table of a request.
type tableOf struct{}

// keysOf returns the key attributes of the table that a request is for.
func (g *gate) keysOf(r *http.Request) []string {
	name, _ := r.Context().Value(tableOf{}).(string)
	g.mu.RLock()
	defer g.mu.RUnlock()
	return slices.Clone(g.tables[name].keys)
}

// itemSize returns approximately the size that DynamoDB counts for an item: names and values in UTF-8, binary values
// before base64, and other kinds as JSON.
func itemSize(item map[string]json.RawMessage) (size int) {
	for name, raw := range item {
		var v struct{ S, B, N *string }
		size += len(name)
		switch {
		case json.Unmarshal(raw, &v) != nil:
			size += len(raw)
		case v.S != nil:
			size += len(*v.S)
		case v.B != nil:
			size += base64.StdEncoding.DecodedLen(len(*v.B))
		case v.N != nil:
			size += len(*v.N)/2 + 1
		default:
			size += len(raw)
		}
	}
	return size
}

package ingest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// retry is the body of a dead letter for a document that did not fit. Retrying the dead letter sends it back to the
// inbox. It is not verified again, because anyone with permission to send to the inbox may publish. The workspace
// comes first so that it is known even if only the beginning of the body is kept.
type retry struct {
	Workspace string  `json:"workspace"`
	Retry     retried `json:"retry"`
}

type retried struct {
	Source string      `json:"source"`
	From   source.From `json:"from,omitempty"`
	// Hash and Signed are the [identity] of a request.
	Hash   string `json:"hash,omitempty"`
	Signed string `json:"signed,omitempty"`
	// Document is the document to map. Packed is the same in GZIP, if the document is too large for the queue.
	Document json.RawMessage `json:"document,omitempty"`
	Packed   []byte          `json:"packed,omitempty"`
}

// maxUnpacked limits the size of an unpacked document: a body of the maximum size, plus JSON escapes and headers.
const maxUnpacked = 3 * publish.MaxBody

// isRetry reports whether a message in the inbox is a retry.
func isRetry(body []byte) bool {
	return jsonrpc.Member(body, "retry") != nil && jsonrpc.Member(body, "specversion") == nil
}

// keep makes a document a dead letter of the inbox, so that an operator can fix its mapping and retry it. A document
// that is sent repeatedly is kept only once, but one that was retried and still does not fit is kept again. ID is the
// id of the event, if it has one.
func (in *Intake) keep(ctx context.Context, s source.Source, doc any, who identity, id string, why error, again bool, now time.Time) error {
	body := encodeRetry(s, doc, who)
	if who.body == "" {
		who.body, id = bodyID(body), ""
	}
	keys := who.unfit(s, id)
	if !again {
		if known, err := in.Seen.known(ctx, now, keys); err != nil || cmp.Or(known...) != nil {
			return err
		}
	}
	m := queue.Message{Outgoing: queue.Outgoing{Body: body}, Sent: now}
	out := queue.NewDeadLetter(queue.Inbox, m, "source "+s.Name+": "+fault.Public(why), faultsOf(why), now)
	if err := in.Queue.Send(ctx, queue.Dead, out); err != nil {
		return fault.Wrap(fault.Unavailable, err, "dead-letter a document")
	}
	in.Metrics.DeadLettered(string(queue.Inbox), 1)
	in.log().WarnContext(ctx, "source document dead-lettered", "source", s.Name, "workspace", s.Workspace, "reason", clip(fault.Public(why), maxReason))
	in.remember(ctx, s, now, keys, publish.Accepted{})
	return nil
}

// faultsOf returns the faults in an error's data, or nil if the error has no faults.
func faultsOf(err error) any {
	switch data := fault.DataOf(err).(type) {
	case source.Unfit:
		return data.Faults
	case publish.Refusal:
		return data.Faults
	}
	return nil
}

// encodeRetry encodes a retry, compressed if it would otherwise be too large for a queue.
func encodeRetry(s source.Source, doc any, who identity) []byte {
	text := marshal(doc)
	r := retry{s.Workspace, retried{Source: s.Name, From: s.From, Hash: who.body, Signed: who.signed, Document: text}}
	body := marshal(r)
	if len(body) <= queue.MaxBody {
		return body
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(text) // in memory, so it cannot fail
	_ = z.Close()
	r.Retry.Document, r.Retry.Packed = nil, b.Bytes()
	if small := marshal(r); len(small) <= queue.MaxBody {
		return small
	}
	return body // dead-lettered with only its beginning, so it cannot be retried
}

// marshal encodes JSON without the characters that queues refuse because XML cannot hold them.
func marshal(v any) []byte { return queue.Escape(jsonrpc.Encode(v)) }

// parseRetry decodes the result of encodeRetry.
func parseRetry(body []byte) (r retry, doc any, err error) {
	malformed := fault.New(fault.Invalid, "is not the document of a source")
	if json.Unmarshal(body, &r) != nil {
		return r, nil, malformed
	}
	text := []byte(r.Retry.Document)
	if r.Retry.Packed != nil {
		if text, err = unzip(r.Retry.Packed, maxUnpacked); err != nil {
			return r, nil, malformed
		}
	}
	doc, err = source.Document(text)
	return r, doc, err
}

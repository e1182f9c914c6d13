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

// retry is a document that did not fit, as its dead letter holds it and as the inbox gets it back. Whoever may send to the
// inbox may publish, so that it is not verified again. The workspace comes first: it says whose letter it is, even if
// only the beginning is kept.
type retry struct {
	Workspace string  `json:"workspace"`
	Retry     retried `json:"retry"`
}

type retried struct {
	Source string      `json:"source"`
	From   source.From `json:"from,omitempty"`
	// Hash and Signed are the identity of a request.
	Hash   string `json:"hash,omitempty"`
	Signed string `json:"signed,omitempty"`
	// Document is what the mapping is for; Packed is the same in GZIP, if it is too large for the queue.
	Document json.RawMessage `json:"document,omitempty"`
	Packed   []byte          `json:"packed,omitempty"`
}

// maxUnpacked bounds a document of a retry: a body as it is taken, with what JSON escapes of it, and headers.
const maxUnpacked = 3 * publish.MaxBody

// isRetry reports whether a message of the inbox is one.
func isRetry(body []byte) bool {
	return jsonrpc.Member(body, "retry") != nil && jsonrpc.Member(body, "specversion") == nil
}

// keep makes a document a dead letter of the inbox, to which it can be sent back, for who mends its mapping. What is sent again and again is kept once; a letter that was sent back
// and does not fit still is kept again. ID is that of the event, if it has one.
func (in *Intake) keep(ctx context.Context, s source.Source, doc any, who identity, id string, why error, again bool, now time.Time) error {
	body := encodeRetry(s, doc, who)
	if who.body == "" {
		who.body, id = bodyID(body), ""
	}
	keys := who.unfit(s, id)
	if !again {
		if known, err := in.Seen.Known(ctx, now, keys); err != nil || cmp.Or(known...) != nil {
			return err
		}
	}
	m := queue.Message{Outgoing: queue.Outgoing{Body: body}, Sent: now}
	out := queue.NewDeadLetter(queue.Inbox, m, "source "+s.Name+": "+fault.Public(why), faultsOf(why), now)
	if err := in.Queue.Send(ctx, queue.Dead, out); err != nil {
		return fault.Wrap(fault.Unavailable, err, "keep a document that does not fit")
	}
	in.Metrics.DeadLettered(string(queue.Inbox), 1)
	in.log().WarnContext(ctx, "source document dead-lettered", "source", s.Name, "workspace", s.Workspace, "reason", clip(fault.Public(why), maxReason))
	in.remember(ctx, s, now, keys, publish.Accepted{})
	return nil
}

// faultsOf are the places that an error is about; nil if it has none.
func faultsOf(err error) any {
	switch data := fault.DataOf(err).(type) {
	case source.Unfit:
		return data.Faults
	case publish.Refusal:
		return data.Faults
	}
	return nil
}

// encodeRetry writes a retry that the inbox takes, if a queue can hold it in any way.
func encodeRetry(s source.Source, doc any, who identity) []byte {
	text := marshal(doc)
	r := retry{s.Workspace, retried{Source: s.Name, From: s.From, Hash: who.body, Signed: who.signed, Document: text}}
	body := marshal(r)
	if len(body) <= queue.MaxBody {
		return body
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(text) // into memory
	_ = z.Close()
	r.Retry.Document, r.Retry.Packed = nil, b.Bytes()
	if small := marshal(r); len(small) <= queue.MaxBody {
		return small
	}
	return body // of which only the beginning is kept, and cannot go back
}

// marshal writes JSON as queues take it: without the characters that XML lacks.
func marshal(v any) []byte { return queue.Escape(jsonrpc.Encode(v)) }

// parseRetry reads what encodeRetry wrote.
func parseRetry(body []byte) (r retry, doc any, err error) {
	malformed := fault.New(fault.Invalid, "is not a document of a source that is tried again")
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

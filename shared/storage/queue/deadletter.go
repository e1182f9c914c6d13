package queue

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// DeadLetter is the body of a message on [Dead]: a message that no handler could handle, with its queue and the reason.
type DeadLetter struct {
	V      int    `json:"v"`
	Queue  Name   `json:"queue"`
	Reason string `json:"reason"`
	// Faults are details of the reason, from the handler.
	Faults json.RawMessage `json:"faults,omitempty"`
	// Message is the id that the message had on its queue, Group is its group there, and Received is how often it was
	// received.
	Message  string `json:"message,omitempty"`
	Group    string `json:"group,omitempty"`
	Received int    `json:"received,omitempty"`
	// Attributes are the message's attributes. They are left out if they would leave too little room for the body.
	Attributes map[string]string `json:"attributes,omitempty"`
	// Sent is when the queue first took the message, Dead when it was dead-lettered.
	Sent time.Time `json:"sent"`
	Dead time.Time `json:"dead,omitzero"`
	// Body is the body of the message in this Encoding; [DeadLetter.Content] decodes it.
	Body     string `json:"body"`
	Encoding string `json:"encoding,omitempty"`
	// Truncated says that Body is only the beginning of Size bytes.
	Truncated bool `json:"truncated,omitempty"`
	Size      int  `json:"size,omitempty"`
}

const (
	// deadLetterVersion 1 had no message, group, received, dead, encoding and size.
	deadLetterVersion = 2
	// gzipBase64 is the encoding of a body that is not UTF-8 or is too large as text.
	gzipBase64 = "gzip+base64"
	// Limits of the other members, so that most of the room is for the body.
	maxReason     = 2 << 10
	maxFaults     = 32 << 10
	maxAttributes = 32 << 10
)

// NewDeadLetter returns the message to send to [Dead] for a message of a queue. Faults may be nil.
func NewDeadLetter(from Name, m Message, reason string, faults any, now time.Time) Outgoing {
	l := DeadLetter{
		V: deadLetterVersion, Queue: from, Reason: clip(reason, maxReason),
		Message: m.ID, Group: m.Group, Received: m.Received, Sent: m.Sent.UTC(), Dead: now.UTC(),
	}
	if raw, err := json.Marshal(faults); err == nil && faults != nil && len(raw) <= maxFaults {
		l.Faults = raw
	}
	size := 0
	for name, value := range m.Attributes {
		size += len(name) + len(value)
	}
	if size <= maxAttributes {
		l.Attributes = m.Attributes
	}
	if utf8.Valid(m.Body) {
		l.Body = string(m.Body)
		if body := l.encode(); len(body) <= MaxBody {
			return Outgoing{Body: body}
		}
	}
	l.Encoding = gzipBase64
	for size := len(m.Body); ; size = size * 3 / 4 {
		l.Body = compress(m.Body[:size])
		if body := l.encode(); len(body) <= MaxBody {
			return Outgoing{Body: body}
		}
		l.Truncated, l.Size = true, len(m.Body)
	}
}

// encode returns the dead letter as JSON that SQS accepts.
func (l DeadLetter) encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(l) // texts, numbers, times, and JSON that was made here
	return Escape(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
}

// ParseDeadLetter reads the body of a message on [Dead].
func ParseDeadLetter(body []byte) (DeadLetter, error) {
	var l DeadLetter
	if err := json.Unmarshal(body, &l); err != nil {
		return l, fmt.Errorf("decode a dead letter: %w", err)
	}
	if l.V < 1 || l.V > deadLetterVersion {
		return l, fmt.Errorf("decode a dead letter: unknown version %d", l.V)
	}
	return l, nil
}

// Content returns the body of the message, or only its beginning if the dead letter is Truncated.
func (l DeadLetter) Content() ([]byte, error) {
	if l.Encoding == "" {
		return []byte(l.Body), nil
	}
	if l.Encoding != gzipBase64 {
		return nil, fmt.Errorf("a dead letter has the unknown encoding %.32q", l.Encoding)
	}
	r, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(l.Body)))
	if err != nil {
		return nil, fmt.Errorf("read the body of a dead letter: %w", err)
	}
	body, err := io.ReadAll(io.LimitReader(r, 1<<20)) // the largest body that SQS accepts
	if err != nil {
		return nil, fmt.Errorf("read the body of a dead letter: %w", err)
	}
	return body, nil
}

func compress(body []byte) string {
	var b strings.Builder
	text := base64.NewEncoder(base64.StdEncoding, &b)
	z := gzip.NewWriter(text)
	_, _ = z.Write(body) // into memory
	_ = z.Close()
	_ = text.Close()
	return b.String()
}

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// SendItemLetter sends the key and value of a stored item that cannot be decoded to [Dead]. The letter's origin is "table:"
// and the table's name.
func SendItemLetter(ctx context.Context, q Sender, it *store.Item, reason string, now time.Time) error {
	m := Message{ID: it.Partition + " " + it.Sort, Outgoing: Outgoing{Body: it.Value}}
	letter := NewDeadLetter(Name("table:"+it.Table), m, reason, nil, now)
	return fault.Wrap(fault.Unavailable, q.Send(ctx, Dead, letter), "dead-letter an item that cannot be decoded")
}

// DeadLetterItem sends the letter of a stored item that cannot be decoded and deletes the item, so that the next run of a
// periodic job does not fail on it again.
func DeadLetterItem(ctx context.Context, q Sender, db store.DB, it *store.Item, reason error, now time.Time, log *slog.Logger) error {
	if err := SendItemLetter(ctx, q, it, fault.Public(reason), now); err != nil {
		return err
	}
	log.ErrorContext(ctx, "stored item dead-lettered", "table", it.Table, "partition", it.Partition, "sort", it.Sort, "error", reason)
	return fault.Wrap(fault.Unavailable, db.Write(ctx, store.Delete(it.Key)), "delete an item that cannot be decoded")
}

package eventlog

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"time"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Notify appends a notice to a topic.
func (l *Log) Notify(ctx context.Context, workspace, topic string, notice json.RawMessage) error {
	return l.NotifyAs(ctx, workspace, topic, nonce(), notice)
}

// NotifyAs is [Log.Notify] for a notice that several processes may append. Readers treat notices with the same id
// within a few seconds as one.
func (l *Log) NotifyAs(ctx context.Context, workspace, topic, id string, notice json.RawMessage) error {
	return l.notify(ctx, workspace, topic, id, notice, 0)
}

// NotifyFor is [Log.Notify] for a notice that is of no use after a while. Readers no longer get it after life, or
// after the retention if that is shorter.
func (l *Log) NotifyFor(ctx context.Context, workspace, topic string, life time.Duration, notice json.RawMessage) error {
	return l.notify(ctx, workspace, topic, nonce(), notice, life)
}

func (l *Log) notify(ctx context.Context, workspace, topic, id string, notice json.RawMessage, life time.Duration) error {
	s := segment{V: segmentVersion, Notices: []noticeEnvelope{{ID: id, Body: notice}}, life: life}
	if _, err := l.keys().put(ctx, Topic(workspace, topic), s, 0); err != nil {
		return fault.Wrap(fault.Unavailable, err, "notify topic %s", topic)
	}
	return nil
}

func nonce() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand.Read never fails (Go 1.24)
	return hex.EncodeToString(b[:])
}

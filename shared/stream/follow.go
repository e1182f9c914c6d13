package stream

import "github.com/mcp-events/mcpevents/shared/eventlog"

// Follow adds a topic to the feed, from a position on; see [Request.Topics].
func (f *Feed) Follow(topic string, after int64) {
	f.join(&source{part: eventlog.Topic(f.workspace, topic), pattern: topic, topic: true}, after, nil)
}

// Unfollow ends what [Feed.Follow] began.
func (f *Feed) Unfollow(topic string) {
	for name, s := range f.parts {
		if s.pattern == topic && s.topic {
			f.tails.leave(f, s.part)
			delete(f.parts, name)
		}
	}
}

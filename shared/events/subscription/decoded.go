package subscription

import (
	"bytes"
	"encoding/json"
	"hash/maphash"

	"github.com/mcp-events/mcpevents/shared/platform/bounded"
)

// decoded are subscribers by the text that they were decoded from, for the same few are read for each event. What
// changes has another text. Subscribers of one text share their slices, which nobody changes.
var (
	decoded     = bounded.NewMap[uint64, decodedSubscriber](4096)
	decodedSeed = maphash.MakeSeed()
)

type decodedSubscriber struct {
	text       []byte
	subscriber Subscriber
}

// decodeSubscriber reads the value of a pattern item.
func decodeSubscriber(text []byte) (Subscriber, error) {
	key := maphash.Bytes(decodedSeed, text)
	if d, ok := decoded.Get(key); ok && bytes.Equal(d.text, text) {
		return d.subscriber, nil
	}
	var s Subscriber
	if err := json.Unmarshal(text, &s); err != nil {
		return Subscriber{}, err
	}
	if len(text) <= maxDecoded {
		decoded.Put(key, decodedSubscriber{bytes.Clone(text), s})
	}
	return s, nil
}

// maxDecoded is the longest text that is kept; an ordinary one has a tenth of it.
const maxDecoded = 8 << 10

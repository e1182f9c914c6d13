package eventlog

import (
	"fmt"
	"hash/fnv"
	"strconv"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Partition names a part of the log.
type Partition struct {
	name   string
	single bool // one writer at a time; keys grow in commit order
}

// Own returns the partition of one event URI.
func Own(workspace, uri string) Partition {
	return Partition{name: "u#" + workspace + "#" + uri, single: true}
}

// Pattern returns the partitions of a parent or wildcard pattern.
func Pattern(workspace, key string) []Partition {
	parts := make([]Partition, Shards)
	for i := range parts {
		parts[i] = shard(workspace, key, i)
	}
	return parts
}

func shard(workspace, key string, i int) Partition {
	return Partition{name: fmt.Sprintf("w#%s#%d#%s", workspace, i, key)}
}

// shardOf returns the shard for a URI. All events of a URI are in one shard, so that readers see them in order.
func shardOf(uri string) int {
	h := fnv.New32a()
	h.Write([]byte(uri))
	return int(h.Sum32() % Shards)
}

// Topic returns the partition of a topic's notices.
func Topic(workspace, topic string) Partition {
	return Partition{name: "n#" + workspace + "#" + topic}
}

// Name returns the name of the partition in the store, and for a [store.Watcher].
func (p Partition) Name() string { return p.name }

// stampSize is the number of digits of a stamp in a sort key.
const stampSize = 16

func sortKey(stamp int64) string { return fmt.Sprintf("%0*d", stampSize, stamp) }

// afterKey returns a sort key after all items with the given stamp.
func afterKey(stamp int64) string { return sortKey(max(stamp, 0)) + "~" }

func parseKey(sort string) (int64, error) {
	if len(sort) < stampSize {
		return 0, fault.New(fault.Internal, "log key %q is malformed", sort)
	}
	k, err := strconv.ParseInt(sort[:stampSize], 10, 64)
	if err != nil {
		return 0, fault.Wrap(fault.Internal, err, "parse log key")
	}
	return k, nil
}

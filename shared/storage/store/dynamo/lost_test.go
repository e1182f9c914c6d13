package dynamo

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"

	"github.com/mcp-events/mcpevents/shared/storage/store"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

var (
	key   = store.Key{Table: store.Deliveries, Partition: "p", Sort: "s"}
	other = store.Key{Table: store.Deliveries, Partition: "p", Sort: "other"}
)

func read(t *testing.T, db store.DB, key store.Key) *store.Item {
	t.Helper()
	items := expect.Value(db.Get(t.Context(), key))(t)
	return items[0]
}

func write(t *testing.T, db store.DB, ops ...store.Op) {
	t.Helper()
	expect.OK(t, db.Write(t.Context(), ops...))
}

func TestALostAnswerIsNoConflict(t *testing.T) {
	tests := map[string]struct {
		given     store.Op
		operation string
		when      []store.Op
		want      *store.Item
	}{
		"put if absent": {
			operation: "PutItem",
			when:      []store.Op{store.Put(store.Item{Key: key, Version: 1}, store.Absent())},
			want:      &store.Item{Key: key, Version: 1},
		},
		"put over a version": {
			given:     store.Put(store.Item{Key: key, Version: 1}),
			operation: "PutItem",
			when:      []store.Op{store.Put(store.Item{Key: key, Version: 2}, store.VersionIs(1))},
			want:      &store.Item{Key: key, Version: 2},
		},
		"delete of a version": {
			given:     store.Put(store.Item{Key: key, Version: 1}),
			operation: "DeleteItem",
			when:      []store.Op{store.Delete(key, store.VersionIs(1))},
		},
		"a count is added once": {
			given:     store.Add(key, map[string]int64{"n": 5}, nil),
			operation: "UpdateItem",
			when:      []store.Op{store.Add(key, map[string]int64{"n": 2}, nil)},
			want:      &store.Item{Key: key, Counts: map[string]int64{"n": 7}},
		},
		"a count reaches its limit": {
			given:     store.Add(key, map[string]int64{"n": 5}, nil),
			operation: "UpdateItem",
			when:      []store.Op{store.Add(key, map[string]int64{"n": 2}, map[string]int64{"n": 7})},
			want:      &store.Item{Key: key, Counts: map[string]int64{"n": 7}},
		},
		"a count is raised": {
			given:     store.Add(key, map[string]int64{"n": 5}, nil),
			operation: "UpdateItem",
			when:      []store.Op{store.Raise(key, "n", 9)},
			want:      &store.Item{Key: key, Counts: map[string]int64{"n": 9}},
		},
		"a transaction": {
			given:     store.Add(key, map[string]int64{"n": 5}, nil),
			operation: "TransactWriteItems",
			when: []store.Op{
				store.Add(key, map[string]int64{"n": 2}, nil),
				store.Put(store.Item{Key: other, Version: 1}, store.Absent()),
			},
			want: &store.Item{Key: key, Counts: map[string]int64{"n": 7}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			if tt.given.Kind != 0 {
				write(t, db, tt.given)
			}
			db.wire.lose(tt.operation)
			if err := db.Write(t.Context(), tt.when...); err != nil {
				t.Errorf("the write failed: %v", err)
			}
			if db.wire.left() > 0 {
				t.Error("no answer was lost")
			}
			same(t, read(t, db, key), tt.want)
		})
	}
}

func TestALostAnswerDoesNotHideAConflict(t *testing.T) {
	tests := map[string]struct {
		operation string
		when      store.Op
	}{
		"put":    {"PutItem", store.Put(store.Item{Key: key, Version: 2}, store.VersionIs(1))},
		"delete": {"DeleteItem", store.Delete(key, store.VersionIs(1))},
		"add":    {"UpdateItem", store.Add(key, map[string]int64{"n": 2}, map[string]int64{"n": 3})},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			write(t, db, store.Put(store.Item{Key: key, Version: 7, Counts: map[string]int64{"n": 2}}))
			db.wire.lose(tt.operation)
			if err := db.Write(t.Context(), tt.when); !errors.Is(err, store.ErrConflict) {
				t.Errorf("got %v, want a conflict", err)
			}
		})
	}
}

// Two writers with the same content are told apart: only one of them has won.
func TestTheSameContentOfAnotherWriterIsAConflict(t *testing.T) {
	db := open(t)
	op := store.Put(store.Item{Key: key, Value: []byte("same"), Version: 1}, store.Absent())
	write(t, db, op)
	db.wire.lose("PutItem")
	if err := db.Write(t.Context(), op); !errors.Is(err, store.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
}

// A count that is lowered twice would say that there is nothing where there is.
func TestACountIsLoweredOnceWhoeverCountsMeanwhile(t *testing.T) {
	db := open(t)
	write(t, db, store.Put(store.Item{Key: key, Counts: map[string]int64{"n": 5}}))
	other := New(dynamodb.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.DynamoDB).DynamoDB)), db.name)
	for _, operation := range []string{"UpdateItem", "TransactWriteItems"} { // whichever it is
		db.wire.add(wireFault{operation, func(_ []byte, through func() (*http.Response, error)) (*http.Response, error) {
			resp, err := through()
			if err != nil {
				return nil, err
			}
			resp.Body.Close()
			if err := other.Write(t.Context(), store.Add(key, map[string]int64{"n": 1}, nil)); err != nil {
				t.Error(err)
			}
			return nil, &net{"connection reset by peer"}
		}})
	}
	write(t, db, store.Add(key, map[string]int64{"n": -1}, nil))
	expect.Equal(t, "5 and 1 less 1", read(t, db, key).Counts["n"], 5)
}

func TestValuesThatSaveUnitsAreCompressed(t *testing.T) {
	var text strings.Builder
	for n := range 200 {
		fmt.Fprintf(&text, `{"id":"evt_%d","uri":"event://github/a/b/pull_request","n":%d},`, n, n*n)
	}
	random := make([]byte, 20<<10)
	_, _ = rand.Read(random)
	for name, tc := range map[string]struct {
		value  []byte
		packed bool
	}{
		"a large text":       {[]byte(text.String()), true},
		"a text of one unit": {[]byte(text.String()[:unit]), false},
		"a sealed value":     {random, false},
		"an empty value":     {nil, false},
		"the largest value":  {bytes.Repeat([]byte("x"), store.MaxItem), true},
	} {
		t.Run(name, func(t *testing.T) {
			item := store.Item{Key: store.Key{Table: store.Log, Partition: "p", Sort: "s"}, Value: tc.value}
			attrs := encode(item, nil)
			if _, packed := attrs["z"]; packed != tc.packed {
				t.Errorf("compressed: %v, want %v", packed, tc.packed)
			}
			got, err := decode(store.Log, attrs)
			if err != nil || !bytes.Equal(got.Value, tc.value) {
				t.Errorf("got %d bytes of %d, %v", len(got.Value), len(tc.value), err)
			}
		})
	}
	t.Run("a value that is too large is refused", func(t *testing.T) {
		if _, err := inflate(deflate(bytes.Repeat([]byte("x"), store.MaxItem+1))); err == nil {
			t.Error("no error")
		}
	})
}

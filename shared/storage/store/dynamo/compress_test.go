package dynamo

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/shared/storage/store"
)

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

func BenchmarkDeflate(b *testing.B) {
	var text strings.Builder
	for n := range 10 {
		fmt.Fprintf(&text, `{"v":1,"ws":"default","id":"evt_%d","uri":"event://github/a/b/pull_request","t":%d,"data":{"text":"%s"}},`, n, n*n, strings.Repeat("some words ", 50))
	}
	value := []byte(text.String())
	b.SetBytes(int64(len(value)))
	for b.Loop() {
		if deflate(value) == nil {
			b.Fatal("not compressed")
		}
	}
}

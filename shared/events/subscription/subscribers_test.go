package subscription

import (
	"encoding/json"
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/mcp-events/mcpevents/shared/events/match"
)

func TestDecodeSubscriber(t *testing.T) {
	text := func(n int) []byte {
		b, _ := json.Marshal(Subscriber{V: recordVersion, ID: fmt.Sprint("sub_", n), Principal: "p", Skip: []string{"a"}, Filters: []match.Filter{{Pointer: "/a"}}})
		return b
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 12_000 { // more than are kept, and each text twice in turn
				b := text(i / 2)
				got, err := decodeSubscriber(b)
				var want Subscriber
				_ = json.Unmarshal(b, &want)
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("got %+v, %v", got, err)
					return
				}
				clear(b) // the text is the caller's
			}
		})
	}
	wg.Wait()
	for range 2 {
		if _, err := decodeSubscriber([]byte(`{"v":"x"}`)); err == nil {
			t.Error("what is no subscriber is decoded")
		}
	}
}

func BenchmarkDecodeSubscriber(b *testing.B) {
	text, _ := json.Marshal(Subscriber{V: recordVersion, ID: "sub_0123456789abcdef0123456789abcdef", Principal: "alice", Target: Target{URL: "https://example.com/hook", Secret: make([]byte, 200)}})
	b.ReportAllocs()
	for b.Loop() {
		_, _ = decodeSubscriber(text)
	}
}

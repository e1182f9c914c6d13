//go:build unix

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/mcp-events/mcpevents/localstack/runner"
	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// TestManagedInstance tests an instance of the endpoint that holds many streams concurrently, as Lambda allows with
// AWS_LAMBDA_MAX_CONCURRENCY.
func TestManagedInstance(t *testing.T) {
	t.Parallel()
	const atOnce, room = 16, 12 // 80 % of the maximum of one instance
	aws := harness.StartAWS(t, harness.AWSOptions{
		Managed: runner.Managed{Instances: 1, AtOnce: atOnce},
		Env:     map[string]string{"MCPEVENTS_STREAM_CONCURRENCY": "1"},
	})
	uri := "event://chat/managed/general/message"
	notifications := object{"resourceSubscriptions": []string{uri}}
	listen := func(id any, cursor string) *harness.Stream {
		t.Helper()
		if cursor == "" {
			return aws.Stateless("alice").Listen(t, id, notifications, object{})
		}
		var s *harness.Stream
		harness.Eventually(t, harness.Patience, "a resumed stream opens", func() (opened bool) { // a stream that broke off holds its slot a little longer
			var err error
			s, err = aws.Stateless("alice").TryListen(t.Context(), id, notifications, object{harness.Prefix + "cursor": cursor})
			return err == nil
		})
		t.Cleanup(s.Close)
		return s
	}
	var streams []*harness.Stream
	for n := range room {
		streams = append(streams, listen(n, ""))
	}
	expect.Equal(t, "the instances that were started for the streams", aws.Starts("StreamFunction"), 1)
	t.Run("AUT-07 the fleet accepts as many streams as its instances can hold together", func(t *testing.T) {
		req := expect.Value(aws.Stateless("bob").Request(t.Context(), "subscriptions/listen", object{"notifications": notifications}, 1))(t)
		resp := expect.Value(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		if b, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
			t.Errorf("one more got %s: %s", resp.Status, b)
		}
		aws.Stateless("bob").Call(t, "server/discover", nil, nil) // calls are still accepted
	})
	t.Run("SUB-01 SUB-08 every stream gets every event in order", func(t *testing.T) {
		for n := range 3 {
			aws.Publish(t, messageIn("managed", fmt.Sprint("managed-", n), "general"))
		}
		for n, s := range streams {
			for i, u := range s.Wait(t, 3) {
				if want := fmt.Sprint("managed-", i); u.EventID != want || u.URI != uri {
					t.Errorf("stream %d: event %d is %s of %s", n, i, u.EventID, u.URI)
				}
			}
		}
	})
	t.Run("SUB-06 SUB-08 when the instance ends, all streams end and continue at another one", func(t *testing.T) {
		aws.Retire("StreamFunction")
		for n, s := range streams {
			expect.Receive(t, fmt.Sprintf("the end of stream %d", n), s.Ended())
			all := s.Messages()
			// An instance has half a second to end. On a busy machine some streams may break off instead.
			if last := all[len(all)-1]; s.Err() == io.EOF && last.Method == "" && (last.Result == nil || string(last.ID) != fmt.Sprint(n)) {
				t.Errorf("stream %d ended with %s", n, last.Raw)
			}
		}
		aws.Publish(t, messageIn("managed", "managed-3", "general"))
		for n, s := range streams {
			updates := s.Updates()
			if got := listen(n, updates[len(updates)-1].Cursor).Wait(t, 1)[0]; got.EventID != "managed-3" {
				t.Errorf("stream %d continued with %s", n, got.EventID)
			}
		}
	})
}

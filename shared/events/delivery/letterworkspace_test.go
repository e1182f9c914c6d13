package delivery

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/storage/queue"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
)

func TestWorkspaceOfALetter(t *testing.T) {
	var noise strings.Builder
	for range 2 * queue.MaxBody {
		noise.WriteByte(byte('a' + rand.IntN(26)))
	}
	for name, tt := range map[string]struct {
		from       queue.Name
		body, want string
	}{
		"OPS-04 of a stage":                       {queue.Events, `{"v":1,"ws":"red","workspace":"blue"}`, "red"},
		"OPS-04 of a direct sender":               {queue.Inbox, `{"ws":"red","data":{"workspace":"green"},"workspace":"blue"}`, "blue"},
		"OPS-04 that names none":                  {queue.Inbox, `{"uri":"event://a"}`, "default"},
		"OPS-04 that is no text":                  {queue.Inbox, `{"workspace":7}`, "default"},
		"OPS-04 that is no object":                {queue.Inbox, `["workspace","red"]`, "default"},
		"OPS-04 that is no JSON":                  {queue.Inbox, `workspace`, "default"},
		"OPS-04 that is no name":                  {queue.Inbox, `{"workspace":"a#b"}`, "default"},
		"OPS-04 of which only the beginning kept": {queue.Inbox, `{"workspace":"red","retry":"` + noise.String() + `"}`, "red"},
	} {
		t.Run(name, func(t *testing.T) {
			m := queue.Message{Outgoing: queue.Outgoing{Body: []byte(tt.body)}}
			l, err := queue.ParseDeadLetter(queue.NewDeadLetter(tt.from, m, "r", nil, time.Now()).Body)
			if err != nil || l.Truncated != (len(tt.body) > queue.MaxBody) {
				t.Fatalf("truncated %v, %v", l.Truncated, err)
			}
			if got := deadletter.WorkspaceOf(l); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

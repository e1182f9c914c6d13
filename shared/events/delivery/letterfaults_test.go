package delivery

import (
	"fmt"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/delivery/deadletter"
	"github.com/mcp-events/mcpevents/shared/storage/store/storetest"
	"github.com/mcp-events/mcpevents/test/expect"
)

// OPS-05: each call of the store fails once, before or after its writes, while a letter is retried or replayed. After the request was
// repeated, the event is delivered, and the letter is gone.
func TestALetterIsDeliveredAfterARepeatedRequest(t *testing.T) {
	for name, request := range map[string]func(r *rig, rs *deadletter.Replays, l deadletter.Letter, id string) error{
		"a retry": func(r *rig, rs *deadletter.Replays, l deadletter.Letter, id string) error {
			_, err := rs.Operations.Retry(r.t.Context(), "default", l, r.record(id).Subscription, 0)
			return err
		},
		"a replay": func(r *rig, rs *deadletter.Replays, l deadletter.Letter, id string) error {
			job, err := rs.Start(r.t.Context(), "default", "op", nil, deadletter.ReplaySelect{Subscription: id}, 20)
			if err == nil {
				_, err = rs.Begin(r.t.Context(), job)
			}
			return err
		},
	} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("OPS-05 %s, late %v", name, late), func(t *testing.T) {
				for at := 1; ; at++ {
					r, sub := registered(t)
					r.script = tooLarge
					r.work("evt_1")
					letter := r.letterOf(sub)
					r.script = succeeds
					before := posted(r)["evt_1"]
					db := &storetest.Faulty{DB: r.db, At: at, Late: late}
					rs := r.replaysOf(r.operationsOn(db, mortal{r.db, r}))
					err := request(r, rs, letter, sub.ID)
					calls := db.Calls
					for try := 0; err != nil && try < 3; try++ {
						err = request(r, rs, letter, sub.ID)
					}
					expect.OK(t, err)
					for range 3 {
						r.now = r.now.Add(deadletter.ReplayClaim + time.Minute)
						expect.OK(t, expect.ErrOf(r.replays().Run(t.Context())))
						r.run()
					}
					when := fmt.Sprintf("call %d: ", at)
					expect.Equal(t, when+"further posts", posted(r)["evt_1"]-before, 1)
					expect.Equal(t, when+"letters", len(expect.Value(first(r.operations().ListLetters(t.Context(), "default", deadletter.LetterQuery{Subscription: sub.ID}, "", 10)))(t)), 0)
					expect.Equal(t, when+"running replays", len(r.items("replays")), 0)
					if calls < at {
						break
					}
				}
			})
		}
	}
}

func first(l []deadletter.Letter, _ string, err error) ([]deadletter.Letter, error) { return l, err }

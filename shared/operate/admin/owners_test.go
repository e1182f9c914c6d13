package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestOwnersLists: OPS-09, of an owner who names no subscription.
func TestOwnersLists(t *testing.T) {
	f := start(t, nil)
	mine := []string{f.subscribe("alice", "/a", built), f.subscribe("alice", "/b", built)}
	f.subscribe("bob", "/c", built)
	f.answerWith(413)
	for i := range 5 {
		f.publish(built, fmt.Sprintf("evt_%d", i))
	}
	f.eventually("the dead letters", func() bool { return len(f.list("op", "dead-letters").Items) == 15 })
	for _, path := range []string{"deliveries", "dead-letters"} {
		t.Run("OPS-09 OPS-03 an owner pages through all of their own "+path+", newest first, and through nothing else", func(t *testing.T) {
			var got []string
			f.eventually("the list of all", func() bool { return len(f.list("op", path).Items) == 15 })
			l := f.list("alice", path+"?limit=3")
			for pages := 1; ; pages++ {
				for _, it := range l.Items {
					if !slices.Contains(mine, it["subscription"].(string)) {
						t.Fatalf("another's: %v", it)
					}
					at := it["at"]
					if at == nil {
						at = it["dead"]
					}
					got = append(got, fmt.Sprint(at)+" "+it["subscription"].(string)+" "+it["event"].(string))
				}
				if l.Next == "" || pages == 20 {
					break
				}
				l = f.list("alice", path+"?limit=3&cursor="+l.Next)
			}
			var want []string
			for _, it := range f.list("op", path).Items {
				if at := it["at"]; slices.Contains(mine, it["subscription"].(string)) {
					if at == nil {
						at = it["dead"]
					}
					want = append(want, fmt.Sprint(at)+" "+it["subscription"].(string)+" "+it["event"].(string))
				}
			}
			slices.Sort(want)
			sorted := slices.Sorted(slices.Values(got))
			if len(got) != 10 || !slices.Equal(sorted, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			for i := 1; i < len(got); i++ {
				if got[i-1][:19] < got[i][:19] {
					t.Errorf("%s comes before %s", got[i-1], got[i])
				}
			}
		})
	}
}

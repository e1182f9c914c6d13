package relay

import (
	"cmp"
	"slices"
)

// share chooses the subscriptions for which a backend has room. wanted has the principals that want each one.
//
// The principals take turns, and in each turn a principal gets one that no other has got before. So every principal gets
// its equal share of the room, however many subscriptions others want. Within its share, a principal keeps its running subscriptions.
func share(wanted map[string][]string, running func(uri string) bool, room int) map[string]bool {
	chosen := make(map[string]bool, min(len(wanted), room))
	if len(wanted) <= room {
		for uri := range wanted {
			chosen[uri] = true
		}
		return chosen
	}
	order := func(a, b string) int {
		if ra, rb := running(a), running(b); ra != rb {
			if ra {
				return -1
			}
			return 1
		}
		return cmp.Compare(a, b)
	}
	of := map[string][]string{} // the subscriptions that each principal wants
	for uri, principals := range wanted {
		for _, p := range principals {
			of[p] = append(of[p], uri)
		}
	}
	for _, uris := range of {
		slices.SortFunc(uris, order)
	}
	for len(of) > 0 && len(chosen) < room {
		var turn []string
		for p, uris := range of {
			for len(uris) > 0 && chosen[uris[0]] {
				uris = uris[1:]
			}
			if of[p] = uris; len(uris) == 0 {
				delete(of, p)
				continue
			}
			turn = append(turn, uris[0])
		}
		slices.SortFunc(turn, order)
		for _, uri := range turn {
			if len(chosen) < room {
				chosen[uri] = true
			}
		}
	}
	return chosen
}

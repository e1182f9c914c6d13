package operate

import (
	"strings"
	"testing"
)

func TestShortenedIDs(t *testing.T) {
	const (
		one, other = "sub_0198c1d27a447c3e9d115b6f0a8e2c47", "sub_0198ffffffffffffffffffffffff2c00"
		all        = `{"items":[{"id":"` + one + `"},{"id":"` + other + `"}]}`
		attempts   = `{"items":[{"event":"evt_0198-2c47"},{"event":"order_7"},{"event":"evt_0198-2c47"}]}`
		list       = "GET /admin/v1/subscriptions?limit=100"
		newest     = "GET /admin/v1/deliveries?limit=100"
		show       = "GET /admin/v1/subscriptions/"
	)
	for _, x := range []struct {
		args    string
		answers map[string]string
		refusal string
	}{
		{"subscriptions show sub_0198…2c47", map[string]string{list: all, show + one: "{}"}, ""},
		{"subscriptions show sub_0198c...", map[string]string{list: all, show + one: "{}"}, ""},
		{"subscriptions show sub_0198f", map[string]string{list: all, show + other: "{}"}, ""},
		{"subscriptions show " + one, map[string]string{show + one: "{}"}, ""},
		{"subscriptions show sub_1", map[string]string{show + "sub_1": "{}"}, ""},
		{"subscriptions end sub_01… --yes", map[string]string{list: all}, `"sub_01…" can mean ` + one + " or " + other + ": give more of the id"},
		{"subscriptions show sub_0777", map[string]string{list: all}, `no subscription has an id like "sub_0777": give the whole id`},
		{"events outcomes evt_0198…2c47 --subscription sub_0198…2c00", map[string]string{
			newest: attempts, list: all, "GET /admin/v1/events/evt_0198-2c47/outcomes?limit=100&subscription=" + other: `{"items":[]}`,
		}, ""},
		{"deliveries --event order_...", map[string]string{newest: attempts, "GET /admin/v1/deliveries?event=order_7&limit=100": attempts}, ""},
		{"subscriptions --event order_...", map[string]string{"GET /admin/v1/subscriptions?event=order_...&limit=100": all}, ""},
		{"subscriptions pause sub_1 --reason waiting...", map[string]string{"POST /admin/v1/subscriptions/sub_1/pause": "{}"}, ""},
	} {
		t.Run("OPS-10 "+x.args, func(t *testing.T) {
			_, _, err := runs(t, Terminal{}, x.answers, strings.Fields(x.args)...)
			switch {
			case x.refusal == "" && err != nil:
				t.Errorf("got the error %v, want none", err)
			case x.refusal != "" && (err == nil || !strings.Contains(err.Error(), x.refusal)):
				t.Errorf("got the error %v, want one with %q", err, x.refusal)
			}
		})
	}
}

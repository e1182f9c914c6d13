//go:build unix

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/mcp-events/mcpevents/test/expect"
	"github.com/mcp-events/mcpevents/test/harness"
)

// commanding runs each operator command of the built binary against AWS. The commands' own tests run them against a
// stand-alone server, and check their output in detail.
func commanding(t *testing.T, target *harness.Target) {
	hook := harness.NewReceiver(t).Endpoint("commanded")
	id := strings.TrimPrefix(register(t, target.Stateless("owner"), hook, "event://ci/build-finished").Subscription.URI, "subscription://")
	publish := func(event string) {
		t.Helper()
		expect.OK(t, expect.ErrOf(target.TryPublish(t.Context(), "owner", build(event, 1))))
	}
	says := func(line string) string {
		t.Helper()
		code, out, errs := target.Command(t, "chief", strings.Fields(line)...)
		if code != 0 {
			t.Fatalf("%s: exit code %d: %s", line, code, errs)
		}
		return out
	}
	decoded := func(line string) (of struct {
		ID, State string
		Replayed  int
		Items     []object
	},
	) {
		t.Helper()
		if out := says(line + " --json"); json.Unmarshal([]byte(out), &of) != nil {
			t.Fatalf("%s printed %s", line, out)
		}
		return of
	}
	arrives := func(event string, times int) {
		t.Helper()
		harness.Eventually(t, harness.Patience, event+" arrives", func() bool { return hook.IDs()[event] >= times })
	}
	letters := "deadletters list --subscription " + id
	dies := func(event string) (letter string) {
		t.Helper()
		hook.Answer(func(int, *harness.Delivery) harness.Reply {
			return harness.Reply{Status: http.StatusRequestEntityTooLarge}
		})
		publish(event)
		var items []object
		if !harness.Within(t, harness.Patience, func() bool { items = decoded(letters).Items; return len(items) == 1 }) {
			t.Fatalf("after %v, the dead letters are %v, want one, of %s", hook.IDs(), items, event)
		}
		hook.Answer(nil)
		return fmt.Sprint(items[0]["id"])
	}

	publish("evt_fine")
	arrives("evt_fine", 1)
	letter := dies("evt_dead")
	for line, want := range map[string]string{
		"subscriptions list --principal owner --state active": `(?m)^ID +PRINCIPAL .*\n` + id + ` +owner +active `,
		"subscriptions show " + id:                            `(?m)^principal: owner$`,
		"subscriptions test " + id:                            `^event: test_`,
		"deliveries list --event evt_dead":                    `dead +evt_dead .* http_4xx`,
		letters:                                               letter + ` +20.* webhooks +http_4xx +evt_dead`,
		"deadletters show " + letter:                          `(?m)^reason: http_4xx$`,
		"deadletters replay --dry-run --subscription " + id:   `^count: 1\n$`,
		"events list --name ci.build_finished":                `(?s)evt_dead .*evt_fine `,
		"events types":                                        `ci\.build_finished +event://ci/build-finished`,
		"events show evt_fine":                                `(?ms)^data:\n  build: 1$.*^OUTCOME +WHY `,
		"events outcomes evt_fine":                            `(?m)^(delivered|unrecorded) +`, // by the delivery log that is kept
		"switches list":                                       `^NAME +STATE +BY +AT +REASON +WAITING +OLDEST\n$`,
		"principals erase no-one-is-called-so --dry-run":      `complete: true`,
		"backends": `^NAME +URL +PREFIX +RULES +WARNINGS\n$`,
		"overview": `(?m)^subscriptions:\n  active: 1$`,
	} {
		t.Run("OPS-10 "+strings.NewReplacer(id, "ID", letter, "ID").Replace(line), func(t *testing.T) {
			if out := says(line); !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("it printed\n%s", out)
			}
		})
	}
	t.Run("OPS-10 OPS-02 OPS-06 a subscription is paused and resumed, and a switch set and cleared", func(t *testing.T) {
		if out := says("subscriptions pause " + id + " --reason moving"); !strings.Contains(out, "state: paused") {
			t.Error(out)
		}
		if out := says("subscriptions resume " + id); !strings.Contains(out, "state: active") {
			t.Error(out)
		}
		says("switches set event/ci.build_finished --reason moving")
		if out := says("switches list"); !regexp.MustCompile(`event/ci\.build_finished +paused +chief +20.* +moving`).MatchString(out) {
			t.Error(out)
		}
		says("switches clear event/ci.build_finished")
	})
	t.Run("OPS-10 OPS-04 a dead letter is retried, and others are replayed while the command waits", func(t *testing.T) {
		says("deadletters retry " + letter)
		arrives("evt_dead", 2)
		dies("evt_worse")
		r := decoded("deadletters replay --subscription " + id)
		if r.State != "done" || r.Replayed != 1 {
			t.Errorf("got %+v", r)
		}
		arrives("evt_worse", 2)
		if out := says("replays show " + r.ID); !strings.Contains(out, "state: done\n") {
			t.Error(out)
		}
		if code, _, errs := target.Command(t, "chief", "replays", "cancel", "rpl_none"); code != 3 || !strings.Contains(errs, "no such replay") {
			t.Errorf("exit code %d: %s", code, errs)
		}
	})
	t.Run("OPS-10 OPS-05 an event, and the events since a given time, are delivered again", func(t *testing.T) {
		says("events deliver evt_fine --subscription " + id)
		arrives("evt_fine", 2)
		if r := decoded("events replay --since 1h --subscription " + id); r.State != "done" || r.Replayed < 3 {
			t.Errorf("got %+v", r)
		}
		arrives("evt_fine", 3)
	})
	t.Run("OPS-10 a caller without permission gets the exit code for it", func(t *testing.T) {
		if code, _, errs := target.Command(t, "onlooker", "audit", "list"); code != 4 || !strings.Contains(errs, "events:operate") {
			t.Errorf("exit code %d: %s", code, errs)
		}
	})
	t.Run("OPS-10 a subscription is ended, and the audit trail has every action", func(t *testing.T) {
		if code, _, errs := target.Command(t, "chief", "subscriptions", "end", id); code != 3 || !strings.Contains(errs, "add --yes") {
			t.Errorf("without a terminal and --yes: exit code %d: %s", code, errs)
		}
		if out := says("subscriptions end " + id + " --yes"); out != "Done.\n" {
			t.Error(out)
		}
		out := says("audit list --since 1h")
		for _, action := range []string{"subscription.pause", "subscription.end", "switch.pause", "replay.start", "dead-letter.retry", "event.deliver"} {
			if !regexp.MustCompile(`(?m)^20.* chief +\S+ +` + regexp.QuoteMeta(action) + ` `).MatchString(out) {
				t.Errorf("%s is missing in\n%s", action, out)
			}
		}
	})
}

package operate

import (
	"context"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Tables on a narrow terminal print shortened ids, so commands accept them too: with … or ... for the part that is left out,
// e.g. sub_0198…2c47 or evt_0198... The id of a subscription can also be its first digits, because a whole one has a known length.

// shortened matches a shortened id, with its beginning and its end.
var shortened = regexp.MustCompile(`^([A-Za-z0-9_-]+)(?:…|\.\.\.)([A-Za-z0-9_-]*)$`)

// beginning matches the first 4 to 31 digits of a subscription's id, which has 32.
var beginning = regexp.MustCompile(`^(sub_[0-9a-f]{4,31})()$`)

// idLists are the lists that have the ids of objects, by the objects' path in the API.
var idLists = map[string]struct {
	path, member, object, command string
	limit                         int // the newest items in which an id is looked up; 0 means all
}{
	"subscriptions": {"subscriptions", "id", "subscription", "subscriptions list", 0},
	"dead-letters":  {"dead-letters", "id", "dead letter", "deadletters list", 0},
	"events":        {"deliveries", "event", "event of the newest 1,000 attempts", "events list", 1000},
}

// kind returns the path of the command's objects in the API, e.g. "subscriptions".
func (c *Command) kind() string {
	_, path, _ := strings.Cut(c.API, " ")
	kind, _, _ := strings.Cut(path, "/")
	return kind
}

// explainNotFound adds to an error the id that the server does not know, and the command that lists ids.
func (c *Command) explainNotFound(err error) error {
	list, ok := idLists[c.kind()]
	if !ok || len(c.Args) == 0 || !fault.Is(err, fault.NotFound) {
		return err
	}
	return fault.Wrap(fault.NotFound, err, "%.100q is not found (mcpevents %s prints the ids)", c.Args[0], list.command)
}

// resolveIDs replaces shortened ids in the arguments, and in the flags --subscription and --event, by whole ones.
func (c *Command) resolveIDs(ctx context.Context, api Client) (err error) {
	kind := c.kind()
	for i, text := range c.Args {
		if c.Args[i], err = api.resolveID(ctx, kind, text); err != nil {
			return err
		}
	}
	flags := map[string]string{"subscription": "subscriptions"}
	if kind == "deliveries" { // elsewhere it is the name of an event type
		flags["event"] = "events"
	}
	for name, kind := range flags {
		text, ok := c.Values[name].(string)
		if !ok {
			continue
		}
		if c.Values[name], err = api.resolveID(ctx, kind, text); err != nil {
			return err
		}
	}
	return nil
}

// resolveID returns the only id that a shortened id can mean. It returns other texts unchanged.
func (c Client) resolveID(ctx context.Context, kind, text string) (string, error) {
	found := shortened.FindStringSubmatch(text)
	if found == nil && kind == "subscriptions" {
		found = beginning.FindStringSubmatch(text)
	}
	list, ok := idLists[kind]
	if found == nil || !ok {
		return text, nil
	}
	all, err := c.List(ctx, list.path, url.Values{}, list.limit)
	if err != nil {
		return "", err
	}
	var ids []string
	for _, raw := range all.Items {
		var object map[string]any
		if err := json.Unmarshal(raw, &object); err != nil {
			return "", fault.Wrap(fault.Unavailable, err, "read an item")
		}
		id, _ := object[list.member].(string)
		fits := strings.HasPrefix(id, found[1]) && strings.HasSuffix(id, found[2]) && len(id) > len(found[1])+len(found[2])
		if fits && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	const shown = 5
	switch n := len(ids); {
	case n == 0:
		return "", fault.New(fault.Invalid, "no %s has an id like %.100q: give the whole id (mcpevents %s --wide prints it)", list.object, text, list.command)
	case n > shown:
		return "", fault.New(fault.Invalid, "%.100q can mean %d ids, for example %s: give more of the id", text, n, strings.Join(ids[:shown], ", "))
	case n > 1:
		return "", fault.New(fault.Invalid, "%.100q can mean %s: give more of the id", text, strings.Join(ids, " or "))
	}
	return ids[0], nil
}

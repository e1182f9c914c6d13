// Package operate implements the commands of operators. They send requests to the admin API and print the responses.
//
//	Commands ──▶ Command ──▶ Client: a request, or all pages of a list ──▶ print: a table, a document, or JSON
//
// [Commands] has the commands. Package operations declares the operations, and package admin implements them.
package operate

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// prefix is the path of the API. It is a copy of admin.Prefix, because package admin would bring the whole server along.
const prefix = "/admin/v1"

// maxPage is the maximum number of items of a page.
const maxPage = 100

// Client sends requests to the admin API of a server.
type Client struct {
	Server httpcall.Server
}

// Do sends a request and returns the body of the response, which may be empty.
func (c Client) Do(ctx context.Context, method, path string, query url.Values, body any) (json.RawMessage, error) {
	at, err := c.Server.Endpoint(prefix)
	if err != nil {
		return nil, err
	}
	if at = strings.TrimSuffix(at, "/") + "/" + path; len(query) > 0 {
		at += "?" + query.Encode()
	}
	var b []byte
	if body != nil {
		if b, err = json.Marshal(body); err != nil {
			return nil, fault.Wrap(fault.Internal, err, "encode the request")
		}
	}
	resp, answer, err := c.Server.Do(ctx, method, at, nil, b)
	switch {
	case err != nil:
		return nil, err // the context's error if that ended
	case resp.StatusCode >= 300:
		return nil, advise(httpcall.ReadRefusal(resp, answer))
	case resp.StatusCode != http.StatusNoContent && !json.Valid(answer):
		return nil, httpcall.UnexpectedAnswer(resp, fault.Unavailable)
	}
	return answer, nil
}

// advise adds to a refusal what the caller can do about it.
func advise(err error) error {
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		return fault.Wrap(fault.Unauthenticated, err, "set --key or MCPEVENTS_KEY to a key or token with the scope events:operate")
	case fault.Forbidden:
		return fault.Wrap(fault.Forbidden, err, "use the key of an operator or of the owner")
	}
	return err
}

// list is a list of the API, with its other members.
type list struct {
	Items []json.RawMessage
	More  map[string]json.RawMessage
}

// List reads pages until it has limit items, or all if limit is 0. It adds up the member omitted of the pages, and returns the
// other members of the last page.
func (c Client) List(ctx context.Context, path string, query url.Values, limit int) (list, error) {
	all := list{Items: []json.RawMessage{}}
	for {
		page := maxPage
		if limit > 0 {
			page = min(page, limit-len(all.Items))
		}
		query.Set("limit", strconv.Itoa(page))
		answer, err := c.Do(ctx, http.MethodGet, path, query, nil)
		if err != nil {
			return all, err
		}
		var more map[string]json.RawMessage
		var items []json.RawMessage
		if err := json.Unmarshal(answer, &more); err != nil {
			return all, fault.Wrap(fault.Unavailable, err, "read a page")
		}
		if err := json.Unmarshal(more["items"], &items); err != nil {
			return all, fault.Wrap(fault.Unavailable, err, "read a page's items")
		}
		all.Items = append(all.Items, items...)
		delete(more, "items")
		more["omitted"] = sum(all.More["omitted"], more["omitted"])
		all.More = more
		var next string
		if _ = json.Unmarshal(more["next"], &next); next == "" || limit > 0 && len(all.Items) >= limit {
			return all, nil
		}
		query.Set("cursor", next)
	}
}

// sum adds two numbers, either of which may be absent.
func sum(a, b json.RawMessage) json.RawMessage {
	x, err := strconv.ParseInt(string(a), 10, 64)
	y, err2 := strconv.ParseInt(string(b), 10, 64)
	if err != nil && err2 != nil {
		return nil
	}
	return strconv.AppendInt(nil, x+y, 10)
}

// json returns the list as one document, in the form of the API.
func (l list) json() json.RawMessage {
	all := map[string]any{"items": l.Items}
	for name, value := range l.More {
		if value != nil {
			all[name] = value
		}
	}
	b, _ := json.Marshal(all) // cannot fail, because the items are valid JSON
	return b
}

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

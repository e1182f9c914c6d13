// Package operate is what operators do from the command line: requests of the admin API, and their
// answers as people read them.
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
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// prefix is where the API is, see package admin, which is not imported for that: it brings the server along.
const prefix = "/admin/v1"

// maxPage is how many items a page has at most.
const maxPage = 100

// Client asks the admin API of a server.
type Client struct {
	Server httpcall.Server
}

// Do makes a request. The answer is empty if the server's is.
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
		return nil, err // the context's own, if that ended
	case resp.StatusCode >= 300:
		return nil, advise(httpcall.ReadRefusal(resp, answer))
	case resp.StatusCode != http.StatusNoContent && !json.Valid(answer):
		return nil, httpcall.UnexpectedAnswer(resp, fault.Unavailable)
	}
	return answer, nil
}

// advise adds what the caller can do about a refusal.
func advise(err error) error {
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		return fault.Wrap(fault.Unauthenticated, err, "set --key or MCPEVENTS_KEY to a key or token with the scope events:operate")
	case fault.Forbidden:
		return fault.Wrap(fault.Forbidden, err, "use the key of an operator, or of whom it belongs to")
	}
	return err
}

// list is a list of the API, with what it says beside its items.
type list struct {
	Items []json.RawMessage
	More  map[string]json.RawMessage
}

// List reads pages until there are so many items, or all with 0. What a page says beside its items is summed if
// it is a number that counts, and else that of the last one.
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

// json is the list as one document of the API's form.
func (l list) json() json.RawMessage {
	all := map[string]any{"items": l.Items}
	for name, value := range l.More {
		if value != nil {
			all[name] = value
		}
	}
	b, _ := json.Marshal(all) // of valid JSON
	return b
}

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

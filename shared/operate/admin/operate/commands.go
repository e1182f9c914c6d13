// Package operate implements the commands with which operators use the admin API from a terminal. They send requests to the API and print
// the responses.
//
//	Commands ──▶ Command ──▶ Client: a request, or all pages of a list ──▶ print: a table, a document, or JSON
//
// [Commands] has the commands. Package operations declares the operations, and package admin implements them.
package operate

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// Commands are the commands for the admin API, as kong reads them. Each command makes one request. Its arguments are parts of the path,
// and its flags are members of the query or the body. These tags describe the request and its output:
//
//   - api: the method and the path, for example "GET subscriptions/{id}"
//   - columns: the columns of the table that a list prints
//   - drop: the columns that a narrow terminal does not show, the least important first
//   - also: the last segment of the path of a list, which is printed after the document with the given columns
//   - follow: the command may start a replay, and waits until it is done
//   - select: the name of a member, for example events; the command sets it to true in the body's object "select"
//   - confirm: the command cannot be undone and asks first: erase or end, see [Command.confirm]
type Commands struct {
	Subscriptions struct {
		Flags
		List struct {
			Page
			Principal string `placeholder:"NAME" help:"Only those of this principal."`
			Event     string `placeholder:"NAME" help:"Only those to this event type."`
			Origin    string `placeholder:"URL" help:"Only those with endpoints at this scheme, host and port."`
			State     string `placeholder:"STATE" help:"Only those in this state: active, paused, suspended or disabled."`
			URI       string `name:"uri" placeholder:"event://…" help:"Only those that receive events with this URI."`
		} `cmd:"" default:"withargs" api:"GET subscriptions" columns:"id,principal,state,events,target,delivery.last,delivery.lastStatusCode|delivery.lastError=lastError" drop:"delivery.last,target,principal" help:"List subscriptions."`
		Show  ID `cmd:"" api:"GET subscriptions/{id}" help:"Show a subscription, with the status of its deliveries."`
		Pause struct {
			ID
			Reason string `placeholder:"TEXT" help:"Reason, which others can see."`
		} `cmd:"" api:"POST subscriptions/{id}/pause" help:"Pause a subscription. Deliveries wait until it is resumed."`
		Resume ID `cmd:"" api:"POST subscriptions/{id}/resume" help:"Resume a subscription and send the waiting deliveries."`
		Test   ID `cmd:"" api:"POST subscriptions/{id}/test" help:"Deliver a test event to a subscription."`
		End    struct {
			ID
			Yes bool `help:"Do not ask for confirmation."`
		} `cmd:"" api:"DELETE subscriptions/{id}" confirm:"end" help:"End a subscription permanently."`
	} `cmd:"" help:"See and control subscriptions."`
	Deliveries struct {
		Flags
		List struct {
			Page
			Span
			Subscription string `placeholder:"ID" help:"Only to this subscription."`
			Event        string `placeholder:"ID" help:"Only of the event with this id."`
			Origin       string `placeholder:"URL" help:"Only to endpoints at this scheme, host and port."`
			Outcome      string `placeholder:"OUTCOME" help:"Only with this outcome: delivered, failed (which includes dead) or dead."`
		} `cmd:"" default:"withargs" api:"GET deliveries" columns:"at,outcome,event,name,subscription,attempt,statusCode|status=status,category,durationMs,nextAttempt" drop:"durationMs,nextAttempt,attempt,category,name" help:"List attempts, newest first."`
	} `cmd:"" help:"See each attempt to deliver."`
	Deadletters struct {
		Flags
		List struct {
			Page
			Letters
		} `cmd:"" default:"withargs" api:"GET dead-letters" columns:"id,dead,queue,reason,event,name,statusCode=status,subscription,target|origin=target" drop:"queue,target|origin,subscription,name" help:"List dead letters, newest first."`
		Show   ID `cmd:"" api:"GET dead-letters/{id}" help:"Show a dead letter, with all its attempts."`
		Retry  ID `cmd:"" api:"POST dead-letters/{id}/retry" help:"Deliver a dead letter again, with the same webhook-id."`
		Replay struct {
			Letters
			Job
		} `cmd:"" api:"POST replays" follow:"" help:"Deliver all dead letters that match the flags again, each with the same webhook-id."`
	} `cmd:"" help:"See and replay dead letters."`
	Replays struct {
		Flags
		Show   ReplayID `cmd:"" api:"GET replays/{id}" help:"Show the progress of a replay."`
		Watch  ReplayID `cmd:"" api:"GET replays/{id}" follow:"" help:"Wait until a replay is done."`
		Cancel ReplayID `cmd:"" api:"DELETE replays/{id}" help:"Cancel a replay. Deliveries that it has already scheduled are still sent."`
	} `cmd:"" help:"See and cancel replays, which the commands deadletters replay and events replay start."`
	Events struct {
		Flags
		List  EventList `cmd:"" default:"withargs" api:"GET events" columns:"published,id,name,uri,time" drop:"time,name" help:"List the events of a URI or a type in the log, newest first."`
		Types struct{}  `cmd:"" api:"GET event-types" columns:"name,uri,delivery,title" help:"List the event types of the catalog."`
		Show  struct {
			ID
			URI string `name:"uri" placeholder:"event://…" help:"Search only the events with this URI."`
		} `cmd:"" api:"GET events/{id}" also:"outcomes" columns:"outcome,why,at,nextAttempt,attempts,target,subscription" drop:"attempts,at,target" help:"Show an event, with its payload and its outcome for each subscription."`
		Outcomes struct {
			ID
			Page
			URI          string `name:"uri" placeholder:"event://…" help:"Search only the events with this URI."`
			Subscription string `placeholder:"ID" help:"Explain the outcome for this subscription, even if it is not for such events."`
		} `cmd:"" api:"GET events/{id}/outcomes" columns:"outcome,why,at,nextAttempt,attempts,target,subscription" drop:"attempts,at,target" help:"List the outcome of an event for each subscription: delivered, or why not."`
		Deliver struct {
			ID
			Subscription string `required:"" placeholder:"ID" help:"Subscription that receives it."`
			URI          string `name:"uri" placeholder:"event://…" help:"Search only the events with this URI."`
		} `cmd:"" api:"POST events/{id}/deliver" help:"Deliver an event again to a subscription."`
		Replay struct {
			Span
			Subscription string `required:"" placeholder:"ID" help:"Subscription that receives them."`
			Job
		} `cmd:"" api:"POST replays" select:"events" follow:"" help:"Deliver the events since a time to a subscription again."`
	} `cmd:"" help:"Look into the event log."`
	Switches struct {
		Flags
		List struct{ Page } `cmd:"" default:"withargs" api:"GET switches" columns:"name,state,by,at,reason,waiting.messages=waiting,waiting.oldest" help:"List the switches that pause deliveries."`
		Set  struct {
			Switch
			Reason string `placeholder:"TEXT" help:"Reason, which others can see."`
		} `cmd:"" api:"PUT switches/{name...}" help:"Pause all deliveries, or those of an event type, to an origin or to a subscription."`
		Clear Switch `cmd:"" api:"DELETE switches/{name...}" help:"Resume deliveries that a switch paused."`
	} `cmd:"" help:"Pause and resume deliveries."`
	Notes struct {
		Flags
		List struct {
			Page
			Origin string `placeholder:"URL" help:"Only the note about this scheme, host and port."`
		} `cmd:"" default:"withargs" api:"GET notes" columns:"origin,text,by,at" drop:"at,by" help:"List the notes."`
		Set struct {
			Origin
			Text string `required:"" placeholder:"TEXT" help:"The note, of up to 500 characters. Do not write secrets into it."`
		} `cmd:"" api:"PUT notes/{origin...}" help:"Write a note about an origin, in place of an earlier one."`
		Clear Origin `cmd:"" api:"DELETE notes/{origin...}" help:"Remove the note about an origin. The server removes it when the origin is healthy again."`
	} `cmd:"" help:"Write notes about failing endpoints, for other operators."`
	Principals struct {
		Flags
		Erase struct {
			Principal string `arg:"" help:"Name of the principal."`
			DryRun    bool   `help:"Only count the data."`
			Yes       bool   `help:"Do not ask for confirmation."`
		} `cmd:"" api:"DELETE principals/{id}" confirm:"erase" help:"Remove a principal's subscriptions, records, dead letters and sessions permanently."`
	} `cmd:"" help:"Erase principals."`
	Audit struct {
		Flags
		List struct {
			Page
			Span
		} `cmd:"" default:"withargs" api:"GET audit" columns:"at,by,via,action,target,error" drop:"via" help:"List the actions of people, newest first."`
	} `cmd:"" help:"See who did what."`
	Backends struct {
		Flags
		List struct{} `cmd:"" default:"withargs" api:"GET backends" columns:"name,state,url,prefix,rules,warnings" drop:"rules" help:"List the backends."`
	} `cmd:"" help:"See the servers behind the gateway."`
	Sources struct {
		Flags
		List     struct{ Page } `cmd:"" default:"withargs" api:"GET sources" columns:"name,from,path,verify,events.name=events,recent.outcomes=recent,last.time=last,last.kind=outcome,last.reason" drop:"recent.outcomes,path,events.name,verify" help:"List the sources, with the outcomes of the newest requests."`
		Show     Source         `cmd:"" api:"GET sources/{name}" help:"Show a source, with its mappings."`
		Outcomes struct {
			Source
			Page
			Span
			Kind string `placeholder:"OUTCOME" help:"Only this outcome: accepted, duplicate, unmatched, verified, unverified, invalid, unfit, limited or unavailable; refused means the last five."`
		} `cmd:"" api:"GET sources/{name}/outcomes" columns:"time,kind,name,id,omitted,reason,uri" drop:"omitted,uri,name" help:"List the outcomes of requests to a source, newest first."`
		Try struct {
			Source
			Request Request `required:"" placeholder:"FILE" help:"File with the request: headers, an empty line, and the body, or the message of a bus. - is the standard input."`
		} `cmd:"" api:"POST sources/{name}/try" help:"Show the events that a saved request would publish, without publishing them."`
	} `cmd:"" help:"See sources and the outcomes of their requests."`
	Overview struct {
		Flags
		Principal string `placeholder:"NAME" help:"Show the quotas of this principal instead of your own."`
		Since     string `placeholder:"TIME" help:"Show the origins that failed since then, instead of in the last hour."`
	} `cmd:"" api:"GET overview" help:"Show counts of subscriptions and dead letters, deliveries of the last hour, failing origins, and quotas."`
}

// ID is the command-line argument of commands that concern a single object, for example one subscription.
type ID struct {
	ID string `arg:"" name:"id" help:"Id, as lists show it. You can shorten it with dots, e.g. sub_0198...2c47."`
}

// ReplayID is the argument of commands for one replay.
type ReplayID struct {
	ID string `arg:"" name:"id" help:"Id, as the command that started the replay prints it."`
}

// Switch is the argument of commands for one switch.
type Switch struct {
	Name string `arg:"" help:"all, event/NAME, origin/ORIGIN or subscription/ID, e.g. origin/https://hooks.example.com."`
}

// Origin is the argument of commands for one origin.
type Origin struct {
	Origin string `arg:"" help:"Scheme, host and port of the endpoints, e.g. https://hooks.example.com."`
}

// Source is the argument of commands for one source.
type Source struct {
	Name string `arg:"" help:"Name, as the list shows it."`
}

// Request is the name of a file whose content the command sends to the server. The name - stands for the standard input.
type Request string

// maxRequest is the number of bytes up to which a command reads a file for a request. The server's limit is lower, so the server refuses
// a larger file anyway.
const maxRequest = 8 << 20

func (r Request) read(in io.Reader) (string, error) {
	if r != "-" {
		f, err := os.Open(string(r))
		if err != nil {
			return "", fault.Wrap(fault.Invalid, err, "read the request")
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxRequest))
	return string(b), fault.Wrap(fault.Invalid, err, "read the request")
}

// Page has the flags of most commands for lists.
type Page struct {
	Limit  int    `default:"100" placeholder:"N" help:"Maximum number of items (${default}); 0 means all."`
	Cursor string `placeholder:"CURSOR" help:"Continue where another list ended; that list prints the cursor."`
}

// Validate returns an error if the flag --limit is negative.
func (p *Page) Validate() error {
	if p.Limit < 0 {
		return fault.New(fault.Invalid, "--limit %d is not allowed (at least 1, or 0 for all items)", p.Limit)
	}
	return nil
}

// EventList has the flags of the command events list.
type EventList struct {
	Page
	Span
	URI  string `name:"uri" placeholder:"event://…" help:"Only those with this URI."`
	Name string `placeholder:"NAME" help:"Only those of this event type."`
}

// Validate checks the flags after they were parsed.
func (l *EventList) Validate() error {
	if l.URI == "" && l.Name == "" {
		return fault.New(fault.Invalid, "--uri or --name is needed: the URI of the events, or the name of their type")
	}
	return l.Page.Validate()
}

// Span limits a list to a time span.
type Span struct {
	Since string `placeholder:"TIME" help:"Beginning, as a time (2026-11-22T12:00:00Z), a date or a duration before now (90m, 7d)."`
	Until string `placeholder:"TIME" help:"End, as a time, a date or a duration before now."`
}

// Letters has the flags that select dead letters.
type Letters struct {
	Span
	Subscription string `placeholder:"ID" help:"Only to this subscription."`
	Origin       string `placeholder:"URL" help:"Only to endpoints at this scheme, host and port."`
	Event        string `placeholder:"NAME" help:"Only of this event type."`
	Queue        string `placeholder:"QUEUE" help:"Only of this queue: webhooks (for deliveries), inbox, events, deliveries or slow."`
}

// Job has the flags of all commands that start a replay.
type Job struct {
	DryRun bool `help:"Only count them."`
	Rate   *int `placeholder:"N" help:"Deliveries per second, 1 to 1000 (20)."`
	Detach bool `help:"Do not wait until the replay is done."`
}

// Flags has the flags that all commands have. kong calls Run for the selected command.
type Flags struct {
	Server string `default:"http://127.0.0.1:8080" env:"MCPEVENTS_SERVER" placeholder:"URL" help:"The server (${default}), or its address for operators (--admin-addr). On AWS without a custom domain: the stack's output for the admin API."`
	Key    string `env:"MCPEVENTS_KEY" placeholder:"KEY" help:"Sent as Authorization: Bearer KEY. It needs the scope events:operate, or events:subscribe for your own subscriptions. Prefer the variable, because other users of the machine can see arguments."`
	JSON   bool   `name:"json" help:"Print the response of the API as one JSON document, as -o json does."`
	Output string `short:"o" enum:",json,yaml,name" default:"" placeholder:"FORMAT" help:"Print json or yaml, the response of the API, or name, only the ids, one per line. Default: a table, or YAML with local times."`
	Wide   bool   `help:"Print tables in full. By default, a terminal shows shortened ids and the columns that fit."`
}

// Validate returns an error if the user combined --json with another output format.
func (o *Flags) Validate() error {
	if o.JSON && o.Output != "" && o.Output != formatJSON {
		return fault.New(fault.Invalid, "--json and --output %s cannot be combined", o.Output)
	}
	return nil
}

// Terminal has the input and outputs of a command.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
	// Width is the number of characters in a line of the terminal at Out. If it is 0, tables are printed in full, with all columns and
	// complete ids.
	Width       int
	Interactive bool
	// Bar is where the progress of replays is shown. It may be nil.
	Bar   io.Writer
	Agent string
}

// Run runs the selected command.
func (o *Flags) Run(k *kong.Context, t Terminal) error {
	n := k.Selected()
	c := Command{Terminal: t, API: n.Tag.Get("api"), Also: n.Tag.Get("also"), Values: map[string]any{}, Format: o.Output, Wide: o.Wide}
	if o.JSON {
		c.Format = formatJSON
	}
	if n.Tag.Has("columns") {
		c.Columns = strings.Split(n.Tag.Get("columns"), ",")
	}
	if n.Tag.Has("drop") {
		c.Drop = strings.Split(n.Tag.Get("drop"), ",")
	}
	for _, p := range n.Positional {
		c.Args = append(c.Args, p.Target.String())
	}
	if name := n.Tag.Get("select"); name != "" {
		c.Values[name] = true
	}
	set := map[string]bool{}
	for _, f := range n.Flags {
		value := f.Target.Interface()
		if r, ok := value.(Request); ok {
			text, err := r.read(t.In)
			if err != nil {
				return err
			}
			value = text
		}
		on, isBool := value.(bool)
		set[f.Name] = on
		switch {
		case f.Name == "limit":
			c.Limit = value.(int)
		case slices.Contains(notSent, f.Name):
		case f.Name == "dry-run":
			c.Values["dryRun"] = on
		case !isBool && !f.Target.IsZero():
			c.Values[f.Name] = value
		}
	}
	c.Follow = n.Tag.Has("follow") && !set["detach"]
	if !set["yes"] && !set["dry-run"] {
		c.Confirm = n.Tag.Get("confirm")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.Run(ctx, httpcall.Server{URL: o.Server, Key: o.Key, Agent: t.Agent})
}

// notSent lists the flags that the command line itself uses. All other flags become parameters of the request to the API.
var notSent = []string{"help", "server", "key", "json", "output", "wide", "limit", "yes", "detach"}

// prefix is the path of the API. It repeats the constant Prefix of package admin, because an import of that package would link the whole
// server into the command line.
const prefix = "/admin/v1"

const maxPage = 100

// Client sends requests to the admin API.
type Client struct {
	Server httpcall.Server
}

// Do sends a request and returns the body of the response.
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
		return nil, err
	case resp.StatusCode == http.StatusNotFound && !json.Valid(answer): // the admin API itself answers with JSON
		return nil, fault.New(fault.Invalid, "%s answered 404 Not Found; is the server's URL right? With --admin-addr, a server has the admin API only at that address",
			resp.Request.URL.Redacted())
	case resp.StatusCode >= 300:
		return nil, advise(httpcall.ReadRefusal(resp, answer))
	case resp.StatusCode != http.StatusNoContent && !json.Valid(answer):
		return nil, httpcall.UnexpectedAnswer(resp, fault.Unavailable)
	}
	return answer, nil
}

// advise adds to the error of a refused request what the user can do about it.
func advise(err error) error {
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		return fault.Wrap(fault.Unauthenticated, err, "set --key or MCPEVENTS_KEY to a key or token with the scope events:operate or events:subscribe")
	case fault.Forbidden:
		return fault.Wrap(fault.Forbidden, err, "use the key of an operator or of the owner")
	}
	return err
}

// list has the items of one or several pages. More has the other members of the response, for example next.
type list struct {
	Items []json.RawMessage
	More  map[string]json.RawMessage
}

// List reads pages until it has limit items, or all items if limit is 0. [list.More] has the other members of the last page, except
// that its member omitted is the sum over all pages.
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

func sum(a, b json.RawMessage) json.RawMessage {
	x, err := strconv.ParseInt(string(a), 10, 64)
	y, err2 := strconv.ParseInt(string(b), 10, 64)
	if err != nil && err2 != nil {
		return nil
	}
	return strconv.AppendInt(nil, x+y, 10)
}

// json returns all items in the form of a single page of the API.
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

// Tables on a narrow terminal print shortened ids, such as sub_0198…2c47. So commands accept shortened ids in their arguments, too.

var shortened = regexp.MustCompile(`^([A-Za-z0-9_-]+)(?:…|\.\.\.)([A-Za-z0-9_-]*)$`)

// beginning matches a shortened id of a subscription: the first 4 to 31 of its 32 digits.
var beginning = regexp.MustCompile(`^(sub_[0-9a-f]{4,31})()$`)

// idLists has, for each kind of object, the list of the API in which the ids of such objects can be found.
var idLists = map[string]struct {
	path, member, object, command string
	limit                         int // how many of the newest items are searched for an id; 0 means all
}{
	"subscriptions": {"subscriptions", "id", "subscription", "subscriptions list", 0},
	"dead-letters":  {"dead-letters", "id", "dead letter", "deadletters list", 0},
	"events":        {"deliveries", "event", "event of the newest 1,000 attempts", "events list", 1000},
}

func (c *Command) kind() string {
	_, path, _ := strings.Cut(c.API, " ")
	kind, _, _ := strings.Cut(path, "/")
	return kind
}

// explainNotFound adds to a NotFound error the id that the user gave, and the command that lists the existing ids. If a command has the
// ids of two objects, such as an event and a subscription, the server's message says which of them does not exist.
func (c *Command) explainNotFound(err error) error {
	if !fault.Is(err, fault.NotFound) {
		return err
	}
	kind, id := c.kind(), ""
	if len(c.Args) > 0 {
		id = c.Args[0]
	}
	if sub, ok := c.Values["subscription"].(string); ok && strings.Contains(err.Error(), "no such subscription") {
		kind, id = "subscriptions", sub
	}
	list, ok := idLists[kind]
	if !ok || id == "" {
		return err
	}
	return fault.Wrap(fault.NotFound, err, "%.100q is not found (mcpevents %s prints the ids)", id, list.command)
}

// resolveIDs replaces shortened ids in the command's arguments and flags with complete ids.
func (c *Command) resolveIDs(ctx context.Context, api Client) (err error) {
	kind := c.kind()
	for i, text := range c.Args {
		if c.Args[i], err = api.resolveID(ctx, kind, text); err != nil {
			return err
		}
	}
	flags := map[string]string{"subscription": "subscriptions"}
	if kind == "deliveries" { // in other commands, --event is the name of an event type
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

// resolveID completes a shortened id, for example sub_0198...2c47. It searches the server's list of objects of the given kind, and
// returns an error if not exactly one id matches. A text that is not a shortened id is returned unchanged.
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
		var object map[string]json.RawMessage // decode only the id, because large numbers elsewhere would lose digits
		if err := json.Unmarshal(raw, &object); err != nil {
			return "", fault.Wrap(fault.Unavailable, err, "read an item")
		}
		id, _ := jsonrpc.String(object[list.member])
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

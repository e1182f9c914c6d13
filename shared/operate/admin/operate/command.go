package operate

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/event"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/progress"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// Command makes a request to the admin API and prints the response.
type Command struct {
	Terminal
	// API is the method and the path below /admin/v1, e.g. "GET subscriptions/{id}". A value for {name...} may contain slashes.
	API string
	// Columns are the columns of the table that a list prints. A narrow terminal leaves out some of them, first the columns in Drop.
	Columns, Drop []string
	// Also is the name of a list that is printed after the response. For example, the command for GET events/{id} also prints the list
	// outcomes of the event.
	Also string
	// Args are the values of the variables in the path, in the order in which the path has them.
	Args []string
	// Values are the parameters of the query. For POST and PUT, they are the members of the body.
	Values map[string]any
	// Limit is the maximum number of items of a list; 0 means all.
	Limit int
	// Format is the output format: json, yaml or name. If it is empty, a list is printed as a table, and an object as a document for
	// people.
	Format string
	// Wide prints tables in full, with all columns and complete ids, even if they are wider than the terminal.
	Wide bool
	// Follow makes Run wait until the replay in the response is over. Meanwhile, Run shows the progress of the replay.
	Follow bool
	// Confirm is confirmErase or confirmEnd if the command cannot be undone. Run then asks the user before it sends the request.
	Confirm string
}

// Run makes the request and prints the response.
func (c *Command) Run(ctx context.Context, s httpcall.Server) error {
	return c.explainNotFound(c.run(ctx, Client{s}))
}

func (c *Command) run(ctx context.Context, api Client) error {
	if err := c.resolveIDs(ctx, api); err != nil {
		return err
	}
	method, path, query, body, err := c.newRequest(time.Now())
	if err != nil {
		return err
	}
	if len(c.Columns) > 0 && c.Also == "" {
		return c.list(ctx, api, path, query)
	}
	if c.Confirm != "" {
		if err := c.confirm(ctx, api, method, path); err != nil {
			return err
		}
	}
	answer, err := api.Do(ctx, method, path, query, body)
	if err != nil {
		return err
	}
	if c.Values["dryRun"] == false {
		if answer, err = c.finishErasure(ctx, api, method, path, query, answer); err != nil {
			return err
		}
	}
	if c.Follow {
		if answer, err = c.followReplay(ctx, api, answer); err != nil {
			return err
		}
	}
	switch {
	case len(answer) > 0:
	case c.Format == "":
		fmt.Fprintln(c.Out, "Done.")
		return nil
	case c.Format == formatName:
		return nil
	default:
		answer = json.RawMessage("{}")
	}
	if c.Also != "" {
		return c.printWithList(ctx, api, path, query, answer)
	}
	return c.print(answer, []json.RawMessage{answer}, func() error { return printDocument(c.Out, answer, localTimes) })
}

// printWithList prints a document and then its list [Command.Also]. In JSON and YAML, the list becomes a member of the document.
func (c *Command) printWithList(ctx context.Context, api Client, path string, query url.Values, answer json.RawMessage) error {
	if c.Format == "" {
		if err := printDocument(c.Out, answer, localTimes); err != nil {
			return err
		}
		fmt.Fprintln(c.Out)
		c.Limit = alsoLimit
		return c.list(ctx, api, path+"/"+c.Also, query)
	}
	l, err := api.List(ctx, path+"/"+c.Also, query, 0)
	if err != nil {
		return err
	}
	items, _ := json.Marshal(l.Items)
	object := strings.TrimSuffix(strings.TrimSpace(string(answer)), "}")
	return c.print(fmt.Appendf(nil, "%s,%q:%s}", object, c.Also, items), []json.RawMessage{answer}, nil)
}

const alsoLimit = 100

// print prints the response in the chosen format. With -o name, it prints only the ids or names of the items. Without a format, it calls
// the function human, which prints a table or a document for people.
func (c *Command) print(answer json.RawMessage, items []json.RawMessage, human func() error) error {
	switch c.Format {
	case formatJSON:
		_, err := fmt.Fprintf(c.Out, "%s\n", answer)
		return fault.Wrap(fault.Unavailable, err, "print")
	case formatYAML:
		return printDocument(c.Out, answer, exactTimes)
	case formatName:
		name, err := c.findNaming(items)
		if err != nil {
			return err
		}
		return printNames(c.Out, items, name)
	}
	return human()
}

// findNaming returns the name of the member with which other commands refer to an object: "id" or "name". The column "id" may be anywhere
// in the list of columns. The column "name" must be the first one, because in a later column the name is the name of an event type.
func (c *Command) findNaming(items []json.RawMessage) (string, error) {
	switch {
	case slices.Contains(c.Columns, "id"):
		return "id", nil
	case len(c.Columns) > 0 && c.Columns[0] == "name":
		return "name", nil
	case len(c.Columns) == 0, c.Also != "":
		for _, name := range []string{"id", "name"} {
			var object map[string]json.RawMessage
			if json.Unmarshal(items[0], &object) == nil && object[name] != nil {
				return name, nil
			}
		}
	}
	return "", fault.New(fault.Invalid, "--output name: this command prints no ids or names (use --output json)")
}

func (c *Command) newRequest(now time.Time) (method, path string, query url.Values, body map[string]any, err error) {
	method, path, _ = strings.Cut(c.API, " ")
	for _, arg := range c.Args {
		before, rest, _ := strings.Cut(path, "{")
		name, after, _ := strings.Cut(rest, "}")
		arg = url.PathEscape(arg)
		if strings.HasSuffix(name, "...") {
			arg = strings.ReplaceAll(arg, "%2F", "/")
		}
		path = before + arg + after
	}
	query = url.Values{}
	selected := map[string]any{}
	if method == http.MethodPost || method == http.MethodPut {
		body = map[string]any{}
	}
	for name, v := range c.Values {
		if name == "since" || name == "until" {
			if v, err = parseTime(fmt.Sprint(v), now); err != nil {
				return "", "", nil, nil, fault.Wrap(fault.Invalid, err, "--%s", name)
			}
		}
		switch {
		case body == nil, name == "uri": // a URI is always in the query, also with POST and PUT
			query.Set(name, fmt.Sprint(v))
		case path == replays && name != "dryRun" && name != "rate":
			selected[name] = v
		default:
			body[name] = v
		}
	}
	if path == replays {
		body["select"] = selected
	}
	return method, path, query, body, nil
}

// parseTime converts a text to the API's format of a time. The text is a time, a date in the time zone of the parameter now, or a
// duration before now, for example 90m or 7d.
func parseTime(text string, now time.Time) (string, error) {
	if days, err := strconv.ParseUint(strings.TrimSuffix(text, "d"), 10, 16); err == nil && strings.HasSuffix(text, "d") {
		return now.AddDate(0, 0, -int(days)).UTC().Format(time.RFC3339), nil
	}
	if ago, err := time.ParseDuration(text); err == nil && ago >= 0 {
		return now.Add(-ago).UTC().Format(time.RFC3339), nil
	}
	if day, err := time.ParseInLocation(time.DateOnly, text, now.Location()); err == nil {
		return day.UTC().Format(time.RFC3339), nil
	}
	if _, err := event.ParseTime(text); err != nil {
		return "", fault.New(fault.Invalid, "%.100q is not a time (e.g. 2026-11-22T12:00:00Z), a date (2026-11-22) or a duration (90m, 7d)", text)
	}
	return text, nil
}

// notes explain why a list may be incomplete. A key is a member of the API's response in JSON, and its value is the note that a list
// prints for a response with this member.
var notes = map[string]string{
	`"kept":"failures"`: "The delivery log keeps failures only (--delivery-log).",
	`"kept":"none"`:     "The delivery log keeps nothing (--delivery-log none).",
	`"truncated":true`:  "The event type has too many URIs for one list; choose one with --uri.",
}

func (c *Command) list(ctx context.Context, api Client, path string, query url.Values) error {
	l, err := api.List(ctx, path, query, c.Limit)
	if err != nil {
		return err
	}
	var hidden []string
	err = c.print(l.json(), l.Items, func() (err error) {
		width := c.Width
		if c.Wide {
			width = 0
		}
		hidden, err = printTable(c.Out, c.Columns, c.Drop, width, l.Items)
		return err
	})
	if err != nil || c.Format != "" {
		return err
	}
	if len(hidden) > 0 {
		fmt.Fprintf(c.Err, "Not shown, because the terminal is narrow: %s (--wide shows everything).\n", strings.Join(hidden, ", "))
	}
	for name, value := range l.More {
		if note := notes[fmt.Sprintf("%q:%s", name, value)]; note != "" {
			fmt.Fprintln(c.Err, note)
		}
	}
	if n := string(l.More["omitted"]); n != "" && n != "0" {
		fmt.Fprintf(c.Err, "%s attempts are only in the lists of their subscriptions (--subscription).\n", n)
	}
	next := l.More["next"]
	switch {
	case next == nil:
	case c.Also != "": // only the command for the list alone has the flags
		fmt.Fprintf(c.Err, "There are more than %d. To see all: mcpevents %s %s %s --limit 0\n", c.Limit, c.kind(), c.Also, c.Args[0])
	default:
		fmt.Fprintf(c.Err, "There are more than %d (--limit N; 0 means all). To continue, use --cursor %s\n", c.Limit, strings.Trim(string(next), `"`))
	}
	return nil
}

// These are the values of [Command.Confirm].
const (
	confirmErase = "erase" // shows the counts of a dry run, and has the caller type the argument again
	confirmEnd   = "end"   // shows the object, and has the caller type yes
)

// confirm shows what the command would change, and asks the user whether to continue. If standard input is not a terminal, it returns an
// error. Otherwise a script would wait forever for an answer, or answer by accident.
func (c *Command) confirm(ctx context.Context, api Client, method, path string) error {
	if !c.Interactive {
		return fault.New(fault.Invalid, "this cannot be undone, and standard input is not a terminal on which to ask: add --yes if you are sure")
	}
	query, want := url.Values{"dryRun": {"true"}}, c.Args[0]
	if c.Confirm == confirmEnd {
		method, query, want = http.MethodGet, nil, "yes"
	}
	would, err := api.Do(ctx, method, path, query, nil)
	if err != nil {
		return err
	}
	if err := printDocument(c.Err, would, localTimes); err != nil {
		return err
	}
	fmt.Fprintf(c.Err, "This cannot be undone. Type %s to continue: ", formatCell(want))
	answered := make(chan string, 1) // after an interrupt, the goroutine waits for input until the program ends
	go func() {
		line, _ := bufio.NewReader(c.In).ReadString('\n')
		answered <- strings.TrimSpace(line)
	}()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case line := <-answered:
		if line != want {
			return fault.New(fault.Invalid, "canceled: %.100q is not %q (use --yes to skip the question)", line, want)
		}
		return nil
	}
}

// finishErasure repeats a request to erase a principal until the erasure is complete, because one request erases only a limited number of
// items. It returns the counts of all requests together.
func (c *Command) finishErasure(ctx context.Context, api Client, method, path string, query url.Values, answer json.RawMessage) (json.RawMessage, error) {
	var all, next erasure
	if json.Unmarshal(answer, &all) != nil || all.Complete == nil || all.Counts == nil {
		return answer, nil
	}
	for !*all.Complete {
		answer, err := api.Do(ctx, method, path, query, nil)
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(answer, &next); err != nil || next.Complete == nil {
			return nil, fault.New(fault.Unavailable, "the answer is not that of an erasure")
		}
		all.Complete = next.Complete
		for kind, n := range next.Counts {
			all.Counts[kind] += n
		}
	}
	b, err := json.Marshal(all)
	return b, fault.Wrap(fault.Internal, err, "encode the counts")
}

type erasure struct {
	Principal string         `json:"principal"`
	DryRun    bool           `json:"dryRun"`
	Counts    map[string]int `json:"counts"`
	Complete  *bool          `json:"complete"`
}

const (
	replays = "replays"
	pause   = time.Second // between two polls of a replay
	// patience is how many requests for the progress of a replay may fail in a row, for example while the server restarts.
	patience = 60
)

type replay struct {
	ID       string `json:"id"`
	State    string `json:"state"`
	Total    int64  `json:"total"`
	Replayed int64  `json:"replayed"`
	Skipped  int64  `json:"skipped"`
}

// followReplay shows the progress of a running replay until the replay is over. If the user interrupts the command, or the server stays
// unreachable, the replay continues on the server. Then followReplay says so and returns an error.
func (c *Command) followReplay(ctx context.Context, api Client, answer json.RawMessage) (json.RawMessage, error) {
	var r replay
	if json.Unmarshal(answer, &r) != nil || r.State != "running" || r.ID == "" {
		return answer, nil
	}
	var done atomic.Int64
	stop := progress.Count(c.Bar, "replayed", r.Total, done.Load)
	defer func() { stop() }()
	for failed := 0; r.State == "running"; {
		_ = periodic.Sleep(ctx, pause) // an interrupt ends the pause, and then the next request fails
		next, err := api.Do(ctx, http.MethodGet, replays+"/"+url.PathEscape(r.ID), nil, nil)
		if failed++; httpcall.Retryable(err) && failed < patience {
			continue
		}
		if err != nil {
			stop()
			stop = func() {}
			fmt.Fprintf(c.Err, "The replay continues on the server. To watch it: mcpevents replays watch %[1]s. To cancel it: mcpevents replays cancel %[1]s\n", r.ID)
			if ctx.Err() != nil {
				return nil, ctx.Err() // not err, which names a request and would look as if that request had failed
			}
			return nil, err
		}
		failed, answer = 0, next
		if err := json.Unmarshal(answer, &r); err != nil {
			return nil, fault.Wrap(fault.Unavailable, err, "read the replay")
		}
		done.Store(r.Replayed + r.Skipped)
	}
	return answer, nil
}

package operate

import (
	"context"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/httpcall"
)

// Commands are the commands over the admin API, as kong reads them. Each is one request: the tag api has its method
// and path, arguments are the path's, and flags are members of the query or of a body. The tag columns is for
// lists, follow for what may begin a job, select what it always selects, confirm for what asks first.
type Commands struct {
	Subscriptions struct {
		Flags
		List struct {
			Page
			Principal string `help:"Of this principal."`
			Event     string `placeholder:"NAME" help:"To this event type."`
			Origin    string `placeholder:"URL" help:"With endpoints at this scheme, host and port."`
			State     string `help:"active, paused, suspended or disabled."`
			URI       string `name:"uri" placeholder:"event://…" help:"That get events with this URI."`
		} `cmd:"" default:"withargs" api:"GET subscriptions" columns:"id,principal,state,events,target,delivery.last,delivery.lastError" help:"List subscriptions."`
		Show  ID `cmd:"" api:"GET subscriptions/{id}" help:"Show a subscription, with the status of its deliveries."`
		Pause struct {
			ID
			Reason string `help:"Why, for whoever looks at it."`
		} `cmd:"" api:"POST subscriptions/{id}/pause" help:"Pause a subscription: nothing is attempted until it is resumed."`
		Resume ID `cmd:"" api:"POST subscriptions/{id}/resume" help:"Resume a subscription: what waited is attempted."`
		Test   ID `cmd:"" api:"POST subscriptions/{id}/test" help:"Deliver a test event to a subscription."`
		End    ID `cmd:"" api:"DELETE subscriptions/{id}" help:"End a subscription, for good."`
	} `cmd:"" help:"See and steer subscriptions."`
	Deliveries struct {
		Flags
		List struct {
			Page
			Span
			Subscription string `placeholder:"ID" help:"To this subscription."`
			Event        string `placeholder:"ID" help:"Of the event with this id."`
			Origin       string `placeholder:"URL" help:"To endpoints at this scheme, host and port."`
			Outcome      string `help:"delivered, failed or dead."`
		} `cmd:"" default:"withargs" api:"GET deliveries" columns:"at,outcome,event,name,subscription,attempt,status,category,durationMs,nextAttempt" help:"List attempts, newest first."`
	} `cmd:"" help:"See each attempt to deliver."`
	Deadletters struct {
		Flags
		List struct {
			Page
			Letters
		} `cmd:"" default:"withargs" api:"GET dead-letters" columns:"id,dead,queue,reason,event,name,subscription,origin" help:"List dead letters, newest first."`
		Show   ID `cmd:"" api:"GET dead-letters/{id}" help:"Show a dead letter, with all its attempts."`
		Retry  ID `cmd:"" api:"POST dead-letters/{id}/retry" help:"Deliver a dead letter again, with its webhook-id."`
		Replay struct {
			Letters
			Job
		} `cmd:"" api:"POST replays" follow:"" help:"Deliver the dead letters again that match all flags, each with its webhook-id."`
	} `cmd:"" help:"See and replay what was given up."`
	Replays struct {
		Flags
		Show   ID `cmd:"" api:"GET replays/{id}" help:"Show how far a replay is."`
		Watch  ID `cmd:"" api:"GET replays/{id}" follow:"" help:"Wait until a replay is done."`
		Cancel ID `cmd:"" api:"DELETE replays/{id}" help:"Cancel a replay; what it has scheduled already is delivered."`
	} `cmd:"" help:"See and cancel replays, which deadletters replay and events replay begin."`
	Events struct {
		Flags
		List struct {
			Page
			Span
			URI  string `name:"uri" placeholder:"event://…" help:"With this URI."`
			Name string `help:"Of this event type."`
		} `cmd:"" default:"withargs" api:"GET events" columns:"published,id,name,uri,time" help:"List events of a URI or a type that the log has, newest first."`
		Types struct{} `cmd:"" api:"GET event-types" columns:"name,uri,delivery,title" help:"List the event types of the catalog."`
		Show  struct {
			ID
			URI string `name:"uri" placeholder:"event://…" help:"Look for it there only."`
		} `cmd:"" api:"GET events/{id}" help:"Show an event, with its payload."`
		Deliver struct {
			ID
			Subscription string `required:"" placeholder:"ID" help:"Who gets it."`
			URI          string `name:"uri" placeholder:"event://…" help:"Look for the event there only."`
		} `cmd:"" api:"POST events/{id}/deliver" help:"Deliver an event again to a subscription."`
		Replay struct {
			Span
			Subscription string `required:"" placeholder:"ID" help:"Who gets them."`
			Job
		} `cmd:"" api:"POST replays" select:"events" follow:"" help:"Deliver to a subscription again what was published for it since a time."`
	} `cmd:"" help:"Look into the event log."`
	Switches struct {
		Flags
		List struct{ Page } `cmd:"" default:"withargs" api:"GET switches" columns:"name,state,by,at,reason" help:"List what is paused."`
		Set  struct {
			ID
			Reason string `help:"Why, for whoever looks at it."`
		} `cmd:"" api:"PUT switches/{name...}" help:"Pause all, event/NAME, origin/ORIGIN or subscription/ID."`
		Clear ID `cmd:"" api:"DELETE switches/{name...}" help:"Resume what was paused."`
	} `cmd:"" help:"Pause and resume deliveries."`
	Principals struct {
		Flags
		Erase struct {
			ID
			DryRun bool `help:"Only count what it has."`
			Yes    bool `help:"Do not ask."`
		} `cmd:"" api:"DELETE principals/{id}" confirm:"" help:"Remove a principal's subscriptions, records, dead letters and sessions, for good."`
	} `cmd:"" help:"Erase principals."`
	Audit struct {
		Flags
		List struct {
			Page
			Span
		} `cmd:"" default:"withargs" api:"GET audit" columns:"at,by,via,action,target,error" help:"List what people did, newest first."`
	} `cmd:"" help:"See who did what."`
	Backends struct {
		Flags
		List struct{} `cmd:"" default:"withargs" api:"GET backends" columns:"name,url,prefix" help:"List the backends."`
	} `cmd:"" help:"See the servers behind the gateway."`
	Sources struct {
		Flags
		List     struct{ Page } `cmd:"" default:"withargs" api:"GET sources" columns:"name,from,path,verify,events.name=events,recent.outcomes=recent,last.time=last,last.kind=outcome,last.reason" help:"List the sources, with what became of the newest requests."`
		Show     Source         `cmd:"" api:"GET sources/{name}" help:"Show a source, with its mappings."`
		Outcomes struct {
			Source
			Page
			Span
			Kind string `help:"accepted, duplicate, unmatched, verified, unverified, invalid, unfit, limited or unavailable; refused is the last five."`
		} `cmd:"" api:"GET sources/{name}/outcomes" columns:"time,kind,name,id,omitted,reason,uri" help:"List what became of requests to a source, newest first."`
		Try struct {
			Source
			Request Request `required:"" placeholder:"FILE" help:"A request as it was sent: headers, an empty line, the body. For a bus the message. - is the standard input."`
		} `cmd:"" api:"POST sources/{name}/try" help:"Show what a saved request would publish. Nothing is sent."`
	} `cmd:"" help:"See what becomes of the requests of providers."`
	Overview struct {
		Flags
		Principal string `help:"Show the quotas of this principal, not those of the key's."`
	} `cmd:"" api:"GET overview" help:"Show counts of what there is and of the last hour, and quotas."`
}

// ID is the argument of commands for one thing.
type ID struct {
	ID string `arg:"" name:"id" help:"Which one, as the list shows it."`
}

// Source is the argument of commands for one source.
type Source struct {
	Name string `arg:"" help:"Its name, as the list shows it."`
}

// Request names a file whose content is sent; - is the standard input.
type Request string

// maxRequest bounds what is read; the server takes less.
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

// Page are the flags of lists.
type Page struct {
	Limit  int    `default:"100" placeholder:"N" help:"How many at most (${default}); 0 is all."`
	Cursor string `help:"Go on where another list ended."`
}

// Span are those of lists with times.
type Span struct {
	Since string `placeholder:"TIME" help:"From this time on (2026-11-22T12:00:00Z), or so long ago (90m)."`
	Until string `placeholder:"TIME" help:"Up to this time, or so long ago."`
}

// Letters select dead letters.
type Letters struct {
	Span
	Subscription string `placeholder:"ID" help:"To this subscription."`
	Origin       string `placeholder:"URL" help:"To endpoints at this scheme, host and port."`
	Event        string `placeholder:"NAME" help:"Of this event type."`
	Queue        string `help:"Of this queue: webhooks (for deliveries), inbox, events, deliveries or slow."`
}

// Job are those of replays.
type Job struct {
	DryRun bool `help:"Only count them."`
	Rate   *int `placeholder:"N" help:"Deliveries a second, 1 to 1000; 20 unless given."`
	Detach bool `help:"Do not wait until it is done."`
}

// Flags are those of all commands. They run them as well.
type Flags struct {
	Server string `default:"http://127.0.0.1:8080" env:"MCPEVENTS_SERVER" placeholder:"URL" help:"The server (${default}), or its address for operators (--admin-addr). On AWS without a custom domain: the stack's output for the admin API."`
	Key    string `env:"MCPEVENTS_KEY" placeholder:"KEY" help:"Sent as Authorization: Bearer KEY; it needs the scope events:operate. Prefer the variable: other users of the machine can see arguments."`
	JSON   bool   `name:"json" help:"Print the answer of the API as one JSON document."`
}

// Terminal is where commands read and print.
type Terminal struct {
	In       io.Reader
	Out, Err io.Writer
	// Bar shows how far a job is; nil does not.
	Bar io.Writer
	// Agent names the program to the server.
	Agent string
}

// Run makes the request of the selected command.
func (o *Flags) Run(k *kong.Context, t Terminal) error {
	n := k.Selected()
	c := Command{Terminal: t, API: n.Tag.Get("api"), Values: map[string]any{}, JSON: o.JSON}
	if n.Tag.Has("columns") {
		c.Columns = strings.Split(n.Tag.Get("columns"), ",")
	}
	for _, p := range n.Positional {
		c.Args = append(c.Args, p.Target.String())
	}
	if name := n.Tag.Get("select"); name != "" {
		c.Values[name] = true
	}
	is := map[string]bool{}
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
		is[f.Name] = on
		switch {
		case f.Name == "limit":
			c.Limit = value.(int)
		case slices.Contains(ours, f.Name):
		case f.Name == "dry-run":
			c.Values["dryRun"] = on
		case !isBool && !f.Target.IsZero():
			c.Values[f.Name] = value
		}
	}
	c.Follow = n.Tag.Has("follow") && !is["detach"]
	c.Confirm = n.Tag.Has("confirm") && !is["yes"] && !is["dry-run"]
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return c.Run(ctx, httpcall.Server{URL: o.Server, Key: o.Key, Agent: t.Agent})
}

// ours are the flags that the API does not get.
var ours = []string{"help", "server", "key", "json", "limit", "yes", "detach"}

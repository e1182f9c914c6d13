// Command localstack runs the deployment on this machine: it runs the compiled functions of template.yaml as
// processes, which use DynamoDB, SQS and KMS at AWS_ENDPOINT_URL.
//
// It is a development tool. README.md in this directory describes what it does and what it omits.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/mcp-events/mcpevents/localstack/internal/lambda"
	"github.com/mcp-events/mcpevents/localstack/runner"
)

type flags struct {
	Template     string            `default:"template.yaml" help:"The deployment template."`
	Name         string            `default:"mcpevents" help:"Stack name. A stack that starts again with the same name finds its data."`
	Parameter    map[string]string `short:"p" mapsep:"none" placeholder:"NAME=VALUE" help:"Value of a template parameter; repeatable."`
	Env          map[string]string `short:"e" mapsep:"none" placeholder:"NAME=VALUE" help:"Environment variable of all functions, overriding the template's; repeatable."`
	Front        string            `default:"127.0.0.1:8080" help:"Address of the front, which serves all Function URLs as one host."`
	Route        map[string]string `mapsep:"none" placeholder:"/PATH=FUNCTION" help:"Path prefix at the front and the function that serves it; repeatable. Default: /=StreamFunction, /events=PublishFunction, /sources=PublishFunction, /admin=AdminFunction and /console=AdminFunction."`
	PortBase     int               `placeholder:"PORT" help:"Port of the first Function URL; the others follow. Default: any free ones."`
	EndpointURL  string            `name:"endpoint-url" placeholder:"URL" env:"AWS_ENDPOINT_URL" help:"URL of DynamoDB, SQS and KMS. AWS_ENDPOINT_URL_DYNAMODB, _SQS, _KMS, _SSM, _EVENTBRIDGE and _SNS override it for one service."`
	Concurrency  int               `default:"200" help:"The account's quota: concurrent invocations of all functions."`
	AllowLoops   bool              `help:"Disable the detection of recursive loops."`
	KeepHeaders  bool              `help:"Make Function URLs keep the headers that they rename on AWS."`
	WholeQueries bool              `help:"Do not simulate DynamoDB's limit of 1 MB per query on emulators that do not have it."`
	Visibility   time.Duration     `placeholder:"DURATION" help:"Visibility timeout of all queues instead of the template's, so that lost work is redelivered soon."`
	Speed        float64           `default:"1" help:"Run schedules this many times as fast."`
	Chaos        float64           `placeholder:"RATE" help:"Kill this many function processes per second, at random."`
	Direct       bool              `help:"Let functions use the endpoints directly: faster, but without checking permissions or counting requests."`
	Race         bool              `help:"Build the functions with the race detector."`
	JSON         bool              `name:"json" help:"Print one line of JSON with the URLs when ready."`
	Quiet        bool              `short:"q" help:"Do not print what the functions log."`
}

func main() {
	var f flags
	kong.Parse(&f, kong.Description("Runs the functions of the deployment template against a local AWS emulator."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := f.run(ctx, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (f flags) run(ctx context.Context, out, progress io.Writer) error {
	o := runner.Options{
		Template: f.Template, Name: f.Name, Parameters: f.Parameter, Env: f.Env, Front: f.Front, Routes: f.Route,
		PortBase: f.PortBase, Concurrency: f.Concurrency, Visibility: f.Visibility, Speed: f.Speed, Kills: f.Chaos,
		AllowLoops: f.AllowLoops, KeepHeaders: f.KeepHeaders, WholeQueries: f.WholeQueries,
		Direct: f.Direct, Race: f.Race, Progress: progress, Output: progress,
		Log: slog.New(slog.NewTextHandler(progress, nil)),
	}
	o.Endpoints = endpoints(f.EndpointURL)
	if f.Quiet {
		o.Output = nil
	}
	stack, err := runner.Start(ctx, o)
	if err != nil {
		return err
	}
	defer stack.Close()
	if err := f.ready(out, stack); err != nil {
		return err
	}
	go update(ctx, os.Stdin, progress, stack)
	<-ctx.Done()
	fmt.Fprintln(progress, "stopping")
	stack.Close()
	report(progress, stack)
	return nil
}

// update changes a parameter of the stack with each line NAME=VALUE that it reads. An empty line is a plain deployment.
func update(ctx context.Context, in io.Reader, progress io.Writer, stack *runner.Stack) {
	lines := bufio.NewScanner(in)
	for lines.Scan() && ctx.Err() == nil {
		parameters := map[string]string{}
		if name, value, ok := strings.Cut(lines.Text(), "="); ok {
			parameters[name] = value
		} else if lines.Text() != "" {
			fmt.Fprintln(progress, "an update is a line NAME=VALUE, or an empty line for a plain deployment")
			continue
		}
		if err := stack.Update(ctx, parameters); err != nil {
			fmt.Fprintln(progress, err)
			continue
		}
		fmt.Fprintln(progress, "updated")
	}
}

// endpoints returns the services' endpoints: from the environment if it names them, and otherwise from the flag.
func endpoints(all string) runner.Endpoints {
	pick := func(service string) string {
		return cmp.Or(os.Getenv("AWS_ENDPOINT_URL_"+service), all)
	}
	return runner.Endpoints{
		DynamoDB: pick("DYNAMODB"), SQS: pick("SQS"), KMS: pick("KMS"), SSM: pick("SSM"), EventBridge: pick("EVENTBRIDGE"), SNS: pick("SNS"),
	}
}

// ready prints the URLs. It is called when requests are accepted.
func (f flags) ready(out io.Writer, stack *runner.Stack) error {
	if f.JSON {
		return json.NewEncoder(out).Encode(struct {
			URL       string            `json:"url"`
			Functions map[string]string `json:"functions"`
			Outputs   map[string]string `json:"outputs"`
		}{stack.URL(), stack.URLs(), stack.Outputs()})
	}
	fmt.Fprintf(out, "ready\n  %-22s %s\n", "all functions", stack.URL())
	urls := stack.URLs()
	for _, id := range slices.Sorted(maps.Keys(urls)) {
		fmt.Fprintf(out, "  %-22s %s\n", id, urls[id])
	}
	return nil
}

// report prints what the functions did.
func report(w io.Writer, stack *runner.Stack) {
	stats := stack.Stats()
	fmt.Fprintf(w, "%-22s %11s %7s %8s %6s %9s\n", "function", "invocations", "errors", "timeouts", "starts", "start p50")
	for _, id := range slices.Sorted(maps.Keys(stats)) {
		s := stats[id]
		fmt.Fprintf(w, "%-22s %11d %7d %8d %6d %9s\n", id, s.Invocations, s.Errors, s.Timeouts, s.ColdStarts, median(s))
	}
	requests := stack.Requests()
	for _, app := range slices.Sorted(maps.Keys(requests)) {
		for _, service := range slices.Sorted(maps.Keys(requests[app])) {
			for _, operation := range slices.Sorted(maps.Keys(requests[app][service])) {
				n := requests[app][service][operation]
				fmt.Fprintf(w, "%-22s %s %s: %d requests, %d bytes out, %d in\n", app, service, operation, n.Requests, n.BytesOut, n.BytesIn)
			}
		}
	}
}

func median(s lambda.Stats) string {
	if len(s.Init) == 0 {
		return "-"
	}
	slices.Sort(s.Init)
	return s.Init[len(s.Init)/2].Round(100 * time.Microsecond).String()
}

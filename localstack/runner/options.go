package runner

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"

	"github.com/mcp-events/mcpevents/localstack/internal/resource"
)

// Options shape a stack. The zero value runs template.yaml of the working
// directory against the endpoints that the environment names.
type Options struct {
	// Template is the template's file; "" is template.yaml. Function code is found
	// from its directory.
	Template string
	// Name is the stack's name, which prefixes the names of its resources; "" is
	// "mcpevents". A stack that starts again under its name finds its data.
	Name string
	// Parameters are values for the template's parameters.
	Parameters map[string]string
	// Env is put over the environment of every function.
	Env map[string]string
	// Managed are the functions that run as on Lambda's managed instances, by logical id.
	Managed map[string]Managed
	// Region is that of the functions; "" is AWS_REGION, or us-east-1.
	Region string
	// Endpoints are where the services are.
	Endpoints Endpoints
	// Front is the address of the front, one host for all Function URLs; "" is
	// any free port of 127.0.0.1.
	Front string
	// Routes says which function serves what the front is asked for: path prefix,
	// in whole segments, to logical id. nil is [DefaultRoutes].
	Routes map[string]string
	// PortBase is the port of the first Function URL, the others follow; 0 is any
	// free ones.
	PortBase int
	// Binaries are used instead of building: CodeUri to executable.
	Binaries map[string]string
	// Race builds the functions with the race detector.
	Race bool
	// Concurrency is the account's quota: how many invocations may run at once over all
	// functions; 0 is 200. Functions without a reservation share what the others have not reserved.
	Concurrency int
	// AllowLoops turns the detection of recursive loops off for all functions.
	AllowLoops bool
	// KeepHeaders has Function URLs pass on the headers that they rename on AWS.
	KeepHeaders bool
	// WholeQueries leaves out DynamoDB's limit of 1 MB a query where the emulator has none.
	WholeQueries bool
	// Timeouts replace the time limits of functions, by logical id.
	Timeouts map[string]time.Duration
	// Visibility replaces the visibility timeout of all queues, in whole seconds,
	// so that tests of lost work need not wait for minutes. The time limit of
	// functions is cut to half of it where it is longer, except for those with a
	// streamed URL or a schedule. 0 leaves the template's.
	Visibility time.Duration
	// Speed divides the intervals of schedules; 0 is 1.
	Speed float64
	// Kills is how many processes a second are killed, on average.
	Kills float64
	// Direct lets functions talk to the endpoints directly. Nothing checks their
	// permissions then, [Stack.Requests] counts nothing, and chains of requests are not seen.
	Direct bool
	// Calls is a file to which the stack adds, when it is closed, which permissions its functions
	// used, a line of JSON per [Call]; "" records none.
	Calls string
	// Grace is how long processes may go on when the stack is closed; 0 is 2 s.
	Grace time.Duration
	// Progress gets a line for every step of the start; nil discards it.
	Progress io.Writer
	// Output receives what the functions print, line by line, each with the name
	// of the function and its process; nil discards it.
	Output io.Writer
	// Log is of what the runner does; nil discards it.
	Log *slog.Logger
}

// Managed says how a function runs on managed instances: in so many processes
// at least, each of which takes so many invocations at once. An invocation goes to any that has room.
type Managed struct{ Instances, AtOnce int }

// DefaultRoutes show the functions of this project under one host, as a custom
// domain would. Of these, functions that the template lacks are left out.
func DefaultRoutes() map[string]string {
	return map[string]string{"/": "StreamFunction", "/events": "PublishFunction", "/sources": "PublishFunction", "/admin": "AdminFunction", "/console": "AdminFunction"}
}

// Endpoints are base URLs of AWS services. Empty ones are taken from the
// environment: AWS_ENDPOINT_URL_DYNAMODB and so on, or AWS_ENDPOINT_URL.
type Endpoints struct {
	DynamoDB, SQS, KMS string
	SSM                string // may be empty: secrets in Parameter Store cannot be had then
	EventBridge, SNS   string // may be empty: only rules and topics that put events into the inbox need them
}

// FromEnvironment fills empty endpoints in.
func (e Endpoints) fromEnvironment() Endpoints {
	find := func(own, service string) string {
		for _, v := range []string{own, os.Getenv("AWS_ENDPOINT_URL_" + service), os.Getenv("AWS_ENDPOINT_URL")} {
			if v != "" {
				return v
			}
		}
		return ""
	}
	return Endpoints{
		DynamoDB: find(e.DynamoDB, "DYNAMODB"), SQS: find(e.SQS, "SQS"), KMS: find(e.KMS, "KMS"), SSM: find(e.SSM, "SSM"),
		EventBridge: find(e.EventBridge, "EVENTBRIDGE"), SNS: find(e.SNS, "SNS"),
	}
}

// account is the account number that emulators use.
const account = "000000000000"

func (o Options) withDefaults() (Options, error) {
	set := func(v *string, values ...string) {
		for _, fallback := range values {
			if *v == "" {
				*v = fallback
			}
		}
	}
	set(&o.Template, "template.yaml")
	set(&o.Name, "mcpevents")
	set(&o.Region, os.Getenv("AWS_REGION"), "us-east-1")
	set(&o.Front, "127.0.0.1:0")
	if o.Concurrency == 0 {
		o.Concurrency = 200
	}
	if o.Speed == 0 {
		o.Speed = 1
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if o.Output == nil {
		o.Output = io.Discard
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Endpoints = o.Endpoints.fromEnvironment()
	switch {
	case o.Endpoints.DynamoDB == "" || o.Endpoints.SQS == "":
		return o, errors.New("there is no endpoint for DynamoDB and SQS: set AWS_ENDPOINT_URL to that of an emulator (localstack/start.sh starts one)")
	case o.Visibility != 0 && o.Visibility < 2*time.Second:
		return o, errors.New("a visibility timeout under two seconds leaves functions no time")
	case o.Speed < 0 || o.Kills < 0 || o.Concurrency < 1:
		return o, errors.New("speed, kills and concurrency must not be negative")
	}
	return o, nil
}

// credentials are what emulators take, unless the environment has others.
func credentials() (id, secret string) {
	if id, secret = os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"); id != "" && secret != "" {
		return id, secret
	}
	return "test", "test"
}

// clients reach the services at the endpoints.
func (o Options) clients(e Endpoints) resource.Clients {
	id, secret := credentials()
	cfg := func(endpoint string) aws.Config {
		return aws.Config{
			Region: o.Region, BaseEndpoint: aws.String(endpoint), RetryMaxAttempts: 5,
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: id, SecretAccessKey: secret, SessionToken: runnerApp, Source: "local runner"}, nil
			}),
		}
	}
	c := resource.Clients{DynamoDB: dynamodb.NewFromConfig(cfg(e.DynamoDB)), SQS: sqs.NewFromConfig(cfg(e.SQS))}
	if e.KMS != "" {
		c.KMS = kms.NewFromConfig(cfg(e.KMS))
	}
	if e.EventBridge != "" {
		c.Events = eventbridge.NewFromConfig(cfg(e.EventBridge))
	}
	if e.SNS != "" {
		c.SNS = sns.NewFromConfig(cfg(e.SNS))
	}
	return c
}

// environment is what every function gets beside the template's variables:
// credentials, region, and where the services are. The session token says who sent
// a request; see gate.
func (o Options) environment(id string, e Endpoints, invoke string) map[string]string {
	key, secret := credentials()
	env := map[string]string{
		"AWS_REGION": o.Region, "AWS_DEFAULT_REGION": o.Region,
		"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": id,
		"AWS_EC2_METADATA_DISABLED": "true",
		"AWS_ENDPOINT_URL_DYNAMODB": e.DynamoDB, "AWS_ENDPOINT_URL_SQS": e.SQS,
		"AWS_ENDPOINT_URL_LAMBDA": invoke, "AWS_ENDPOINT_URL_CLOUDFORMATION": invoke + "/cloudformation",
	}
	if e.KMS != "" {
		env["AWS_ENDPOINT_URL_KMS"] = e.KMS
	}
	if e.SSM != "" {
		env["AWS_ENDPOINT_URL_SSM"] = e.SSM
	}
	for _, name := range []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "GORACE", "GOCOVERDIR"} {
		if v := os.Getenv(name); v != "" {
			env[name] = v
		}
	}
	return env
}

// over returns base with the values of top over it.
func over(base, top map[string]string) map[string]string {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, top)
	return out
}

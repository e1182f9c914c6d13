package boot

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/aws/aws-lambda-go/events"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/storage/queue"
)

// Needs says which groups of settings a function reads. Settings of other groups keep their defaults in this function. An invalid setting
// of another group does not stop the function from starting.
type Needs uint8

const (
	// Callers is the group of settings for functions that clients call: authentication, and the limits for streams and publishing.
	Callers Needs = 1 << iota
	Webhooks
	// Records is the group of settings that decide which data is stored about deliveries and about requests to sources.
	Records

	All = Callers | Webhooks | Records
)

// limitsOf has the names of the settings in each group. All functions read the settings that are in no group.
var limitsOf = map[Needs][]string{
	Callers: {
		"streams", "stream-concurrency", "publish-rate", "stream-max-age", "heartbeat",
		"answer-stream-after", "event-tools", "jwt-issuer", "jwt-audience", "jwt-jwks-url",
		"jwt-principal-claim", "jwt-workspace-claim", "jwt-scope-prefix", "allowed-origins",
	},
	Webhooks: {
		"quota", "webhook-timeout", "retry-schedule", "events-retry-schedule",
		"default-ttl", "min-ttl", "max-ttl", "allow-no-expiry", "webhook-secret",
		"verify-registrations", "verified-targets", "plain-targets", "blocked-targets", "target-ports",
	},
	Records: {"delivery-log", "keep-responses"},
}

type settings struct {
	limits config.Limits
	level  slog.Level
	mode   auth.Mode
	access *jwt.Authenticator // set with auth.ModeJWT, in functions that clients call
}

// Check returns an error of kind fault.Invalid if there is a function that would not start with the settings.
func Check(getenv func(string) string) error {
	_, err := readSettings(getenv, All, slog.New(slog.DiscardHandler))
	return err
}

// readSettings reads the settings in the environment that a function needs. It does not send requests.
func readSettings(getenv func(string) string, needs Needs, log *slog.Logger) (s settings, err error) {
	var except []string
	for need, names := range limitsOf {
		if needs&need == 0 {
			except = slices.Concat(except, names)
		}
	}
	lookup := func(name string) (string, bool) { v := getenv(name); return v, v != "" }
	s.limits, err = config.FromEnv(lookup, except...)
	if err != nil {
		return s, err
	}
	config.LogIgnored(lookup, log)
	if s.level, err = readLevel(getenv(envLogLevel)); err != nil {
		return s, err
	}
	s.mode = auth.Mode(getenv(envAuth))
	if needs&Callers == 0 {
		return s, nil
	}
	switch s.mode {
	case auth.ModeNone, auth.ModeKeys:
	case auth.ModeJWT:
		s.access, err = app.NewTokenAuthenticator(s.limits, log)
	default:
		err = fault.New(fault.Invalid, "%s=%q is not allowed (allowed: none, keys, jwt)", envAuth, s.mode)
	}
	return s, err
}

func readLevel(text string) (slog.Level, error) {
	level := slog.LevelInfo
	if text != "" {
		if err := level.UnmarshalText([]byte(text)); err != nil {
			return level, fault.New(fault.Invalid, "%s is %q; it can be DEBUG, INFO, WARN or ERROR", envLogLevel, text)
		}
	}
	return level, nil
}

// margin is the time between the deadline of a batch and the end of the invocation. The function needs it to report the failed messages.
// If only a few seconds remain until the end, the margin is a third of them, because emulators of AWS run functions with such short
// timeouts.
const margin = 2 * time.Second

func batchDeadline(now, end time.Time) time.Time { return end.Add(-min(margin, end.Sub(now)/3)) }

// BatchHandler returns the Lambda handler of a function that reads one queue. It passes each batch of messages to h.
func (p *Process) BatchHandler(h queue.Handler) func(context.Context, events.SQSEvent) (events.SQSEventResponse, error) {
	handle := p.queues.Lambda(h)
	return func(ctx context.Context, event events.SQSEvent) (events.SQSEventResponse, error) {
		if deadline, ok := ctx.Deadline(); ok {
			var cancel context.CancelFunc
			ctx, cancel = context.WithDeadline(ctx, batchDeadline(time.Now(), deadline))
			defer cancel()
		}
		return handle(ctx, event)
	}
}

// Drain returns a job that passes the messages in a queue to a handler.
func (p *Process) Drain(name queue.Name, h queue.Handler) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) { return p.drainQueue(ctx, queueVariable(name), "", h) }
}

// DeadLetterJob returns a job that passes the messages in the dead-letter queues to a handler.
func (p *Process) DeadLetterJob(h queue.Handler) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		n, err := p.drainQueue(ctx, queueVariable(queue.Dead), "", h)
		m, failed := p.drainQueue(ctx, envEventsDead, queue.Events, h)
		return n + m, errors.Join(err, failed)
	}
}

// drainQueue passes the messages in a queue to the handler h. The parameter variable is the name of the environment variable with the
// queue's URL.
//
// The parameter from matters for dead letters: it is the queue that h sees as their origin if SQS does not report the origin.
func (p *Process) drainQueue(ctx context.Context, variable string, from queue.Name, h queue.Handler) (int, error) {
	url, err := p.Variable(variable)
	if err != nil {
		return 0, err
	}
	return p.queues.Drain(ctx, url, from, h)
}

// Sources returns the Lambda handler of a function that has a URL and also reads queues. The handler passes a request at the URL to the
// parameter url.
//
// For a batch of messages, it calls the parameter batches with the ARN of the queue. The result of batches is the handler for this queue,
// or nil if the Lambda function does not read the queue.
func (p *Process) Sources(
	url func(context.Context, events.LambdaFunctionURLRequest) (events.LambdaFunctionURLResponse, error),
	batches func(arn string) queue.Handler,
) func(context.Context, json.RawMessage) (any, error) {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var kind struct {
			Records []struct {
				EventSourceARN string `json:"eventSourceARN"`
			} `json:"Records"`
			RequestContext json.RawMessage `json:"requestContext"`
		}
		if err := json.Unmarshal(raw, &kind); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "read the event")
		}
		switch {
		case len(kind.Records) > 0 && batches != nil:
			var event events.SQSEvent
			if err := json.Unmarshal(raw, &event); err != nil {
				return nil, fault.Wrap(fault.Invalid, err, "read the batch")
			}
			h := batches(kind.Records[0].EventSourceARN)
			if h == nil {
				return nil, fault.New(fault.Invalid, "a batch of a queue that is not for this function")
			}
			return p.BatchHandler(h)(ctx, event)
		case kind.RequestContext != nil && url != nil:
			var event events.LambdaFunctionURLRequest
			if err := json.Unmarshal(raw, &event); err != nil {
				return nil, fault.Wrap(fault.Invalid, err, "read the request")
			}
			return url(ctx, event)
		}
		return nil, fault.New(fault.Invalid, "the event is not a batch or a request")
	}
}

package config

import (
	"cmp"
	"log/slog"
	"maps"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// envPrefix is the prefix of the server's environment variables.
const envPrefix = "MCPEVENTS_"

// EnvName returns the name of the environment variable that does the same as a flag, for example MCPEVENTS_WEBHOOK_TIMEOUT for
// "webhook-timeout".
func EnvName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// Limits are the settings that an operator may change with flags or environment variables. The command line and [FromEnv] read the same
// struct tags, so a setting has the same name and default on a stand-alone server and on AWS.
type Limits struct {
	Quota   int64 `name:"quota" default:"1000" group:"Limits" help:"Webhook subscriptions per principal."`
	Streams int64 `name:"streams" default:"100" group:"Limits" help:"Open streams per principal."`
	// StreamConcurrency is how many instances of the function stream can run on AWS. An instance serves one request at a time or, on
	// managed instances, up to 64. Open streams may take 80 % of this capacity, so that other requests are still served. 0 means no
	// limit.
	//
	// There is no flag for it, because on a stand-alone server open streams do not keep other requests waiting.
	StreamConcurrency int64   `name:"stream-concurrency" default:"0" kong:"-"`
	PublishRate       float64 `name:"publish-rate" default:"1000" group:"Limits" help:"Events per second and principal, on average. 0 is no limit. It has no effect with --auth none."`
	RegistrationRate  float64 `name:"registration-rate" default:"20" group:"Limits" help:"Registrations and refreshes of webhook subscriptions per second and principal, on average. 0 is no limit. It has no effect with --auth none."`

	LogRetention time.Duration `name:"log-retention" default:"24h" group:"Events and deliveries" help:"How long events can be read and replayed."`

	WebhookTimeout time.Duration   `name:"webhook-timeout" default:"20s" group:"Events and deliveries" help:"Longest attempt at a webhook. With MCP Events, it is never more than 10s."`
	RetrySchedule  []time.Duration `name:"retry-schedule" default:"0s,5s,5m,30m,2h,5h,10h,14h,20h,24h" group:"Events and deliveries" help:"Delays before each attempt; the first is 0s."`
	EventsSchedule []time.Duration `name:"events-retry-schedule" default:"0s,5s,40s,150s,480s" group:"Events and deliveries" help:"Delays before each attempt at a webhook of an MCP Events subscription."`
	EndpointRate   int64           `name:"endpoint-rate" default:"0" group:"Limits" help:"Attempts per second to one endpoint, across all instances. Further attempts are delayed. 0 is no limit."`
	DeliveryLog    string          `name:"delivery-log" default:"" group:"Events and deliveries" help:"Attempts that leave a record: failures, all or none. By default all on a stand-alone server, and failures on AWS."`

	KeepResponses bool `name:"keep-responses" group:"Events and deliveries" help:"Keep the first KiB of each failed response in the delivery log, for operators. It may contain secrets of the endpoint."`

	StreamMaxAge      time.Duration `name:"stream-max-age" default:"5m" group:"Streams and polls" help:"How long a stream stays open. The client then continues from its cursor."`
	AnswerStreamAfter time.Duration `name:"answer-stream-after" default:"1s" group:"Streams and polls" help:"How long the answer to a list may wait for backends before it becomes a stream, so that proxies do not time out. 0 means immediately."`
	Heartbeat         time.Duration `name:"heartbeat" default:"15s" group:"Streams and polls" help:"How long a stream may be quiet before it sends a heartbeat."`

	// PollMin and PollMax limit the time that the server suggests to a client until its next events/poll. 0 means the default. They are
	// not settings of an operator; tests set them to shorter times.
	PollMin, PollMax time.Duration `kong:"-"`

	PublicURL string `name:"public-url" placeholder:"URL" help:"URL of this server, without a path, at which backends deliver events by webhook. By default that of --jwt-audience."`

	EventTools bool `name:"event-tools" group:"Streams and polls" help:"Also serve events as tools, for clients that support tools but no events."`

	DefaultTTL    time.Duration `name:"default-ttl" default:"24h" group:"Events and deliveries" help:"Lifetime of an MCP Events subscription that requests none."`
	MinTTL        time.Duration `name:"min-ttl" default:"1m" group:"Events and deliveries" help:"Shortest lifetime of an MCP Events subscription that is granted."`
	MaxTTL        time.Duration `name:"max-ttl" default:"168h" group:"Events and deliveries" help:"Longest lifetime of an MCP Events subscription between refreshes."`
	AllowNoExpiry bool          `name:"allow-no-expiry" group:"Events and deliveries" help:"Allow MCP Events subscriptions that request it (ttlMs null) to never expire."`

	WebhookSecret  string `name:"webhook-secret" default:"standard" group:"Events and deliveries" help:"Secrets of SEP-1803 subscriptions: standard, raw (adds X-Hub-Signature-256), or none (unsigned)."`
	ServerIdentity bool   `name:"server-identity" group:"Events and deliveries" help:"Also sign webhooks with the server's own ed25519 key (v1a). Receivers find the public key at /.well-known/mcp-webhook-jwks.json. Stand-alone only."`
	Profile        string `name:"profile" default:"released" group:"Events and deliveries" help:"Version of the MCP Events extension that subscriptions follow: released (as ChatGPT, the AI SDK and TanStack do) or final (SEP-3415). Principals can have another."`

	AllowInsecureTargets bool     `name:"allow-insecure-targets" group:"Targets" help:"Development only: allow http and private addresses as webhook targets, and events/subscribe without authentication."`
	VerifyRegistrations  bool     `name:"verify-registrations" group:"Targets" help:"Require endpoints of resources/subscriptions/register to echo a challenge first, as with events/subscribe."`
	VerifiedTargets      []string `name:"verified-targets" placeholder:"URL" group:"Targets" help:"URL prefixes, each ending with a slash, of targets that need no challenge."`
	PlainTargets         []string `name:"plain-targets" placeholder:"URL" group:"Targets" help:"URL prefixes, each ending with a slash, of targets that receive no message about a gap or the end of their subscription, because they do not support it, for example ChatGPT's."`
	BlockedTargets       []string `name:"blocked-targets" placeholder:"HOST" group:"Targets" help:"Hosts that are never webhook targets, for example the server's own names."`
	TargetPorts          []int64  `name:"target-ports" default:"443,8443" group:"Targets" help:"Ports that webhook targets may have."`
	JWTIssuers           []string `name:"jwt-issuer" placeholder:"URL" group:"Access" help:"Authorization servers whose tokens --auth jwt accepts, written as in the claim iss."`
	JWTAudience          []string `name:"jwt-audience" placeholder:"URL" group:"Access" help:"A token's audience must be one of these. The first is the URL of the MCP endpoint as clients see it."`
	JWTKeys              []string `name:"jwt-jwks-url" placeholder:"URL" group:"Access" help:"URLs of the issuers' keys, in the same order. By default the issuer's metadata names them."`
	JWTPrincipal         string   `name:"jwt-principal-claim" default:"sub" group:"Access" help:"Claim that, together with the issuer, identifies the caller."`
	JWTWorkspace         string   `name:"jwt-workspace-claim" default:"" placeholder:"CLAIM" group:"Access" help:"Claim that names the caller's workspace. By default every caller is in the workspace default."`
	JWTScopePrefix       string   `name:"jwt-scope-prefix" default:"" placeholder:"PREFIX" group:"Access" help:"Prefix of the scope names in tokens, such as the identifier of an Amazon Cognito resource server and a slash. Scopes without it grant nothing."`

	OTLPEndpoint string  `name:"otlp-endpoint" placeholder:"URL" group:"Operation" help:"Send traces and metrics to this OpenTelemetry collector with OTLP over HTTP, for example http://127.0.0.1:4318. The paths /v1/traces and /v1/metrics are added."`
	TraceRatio   float64 `name:"trace-ratio" default:"1" group:"Operation" help:"Share of the traces beginning here that is sent to --otlp-endpoint, from 0 to 1. Publishers' traces are sent if they are sampled."`

	ConsoleClientID string   `name:"console-client-id" placeholder:"ID" group:"Access" help:"Client id of the console at the first --jwt-issuer: a public client with the code flow, PKCE and the redirect URI https://HOST/console/. Without one, the console asks for a token."`
	ConsoleScopes   []string `name:"console-scopes" default:"events:operate" group:"Access" help:"Scopes that the console requests from the authorization server."`

	AllowedOrigins []string `name:"allowed-origins" placeholder:"ORIGIN" group:"Access" help:"Origins that browsers may call from."`
	TrustedProxies []string `name:"trusted-proxies" placeholder:"PREFIX" group:"Access" help:"Addresses of proxies, such as 10.0.0.0/8, whose X-Forwarded-Proto says whether a request with a secret path used https. A proxy on this machine needs no entry. Stand-alone only."`
	AllowedHosts   []string `name:"allowed-hosts" placeholder:"HOST" group:"Access" help:"Hosts that requests to a loopback address may name, because a proxy on the same machine passes them on. Stand-alone only."`
}

// DefaultLimits returns the defaults of all limits.
func DefaultLimits() Limits {
	l, err := FromEnv(func(string) (string, bool) { return "", false })
	if err != nil {
		panic(err) // cannot happen, because the tests of this package parse the defaults
	}
	return l
}

// FromEnv reads the limits from environment variables and from [EnvSettings]. The parameter lookup finds a variable; it is usually
// os.LookupEnv. A limit gets its default if its variable is missing or empty, or if the parameter except contains its name.
//
// If a value cannot be parsed or is out of range, the error is of kind fault.Invalid.
func FromEnv(lookup func(string) (string, bool), except ...string) (Limits, error) {
	if err := CheckRemoved(lookup); err != nil {
		return Limits{}, err
	}
	lookup, err := withSettings(lookup)
	if err != nil {
		return Limits{}, err
	}
	var l Limits
	v := reflect.ValueOf(&l).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		if tag.Get("name") == "" {
			continue
		}
		name := EnvName(tag.Get("name"))
		text, ok := lookup(name)
		if !ok || text == "" || slices.Contains(except, tag.Get("name")) {
			text = tag.Get("default")
		}
		if text == "" {
			continue
		}
		if err := setField(v.Field(i), text); err != nil {
			return Limits{}, fault.New(fault.Invalid, "%s: %q is not %s", name, text, err)
		}
	}
	return l, l.Check()
}

type expected string

func (e expected) Error() string { return string(e) }

// setField parses a text and sets a field to the value. If the field is a slice, the text is a comma-separated list.
func setField(field reflect.Value, text string) error {
	if field.Kind() == reflect.Slice {
		for part := range strings.SplitSeq(text, ",") {
			one := reflect.New(field.Type().Elem()).Elem()
			if err := setField(one, strings.TrimSpace(part)); err != nil {
				return expected("a list of values, each " + err.Error())
			}
			field.Set(reflect.Append(field, one))
		}
		return nil
	}
	var what expected
	var err error
	switch p := field.Addr().Interface().(type) {
	case *string:
		*p = text
	case *int64:
		what = "an integer"
		*p, err = strconv.ParseInt(text, 10, 64)
	case *float64:
		what = "a number"
		*p, err = strconv.ParseFloat(text, 64)
	case *time.Duration:
		what = "a duration such as 20s"
		*p, err = time.ParseDuration(text)
	case *bool:
		what = "true or false"
		*p, err = strconv.ParseBool(text)
	default:
		panic("config: setField does not know the type of a limit")
	}
	if err != nil {
		return what
	}
	return nil
}

// Check returns an error of kind fault.Invalid if a limit is out of its range.
func (l Limits) Check() error {
	return cmp.Or(l.checkRanges(), l.checkChoices(), l.checkAddresses(),
		checkSchedule("retry-schedule", l.RetrySchedule), checkSchedule("events-retry-schedule", l.EventsSchedule))
}

func (l Limits) checkRanges() error {
	for _, x := range []struct {
		name     string
		d        time.Duration
		min, max time.Duration
	}{
		{"log-retention", l.LogRetention, time.Minute, 30 * 24 * time.Hour},
		{"webhook-timeout", l.WebhookTimeout, 100 * time.Millisecond, time.Minute},
		{"stream-max-age", l.StreamMaxAge, time.Second, 24 * time.Hour},
		{"answer-stream-after", l.AnswerStreamAfter, 0, time.Hour},
		{"heartbeat", l.Heartbeat, time.Second, 30 * time.Second}, // SEP-3415 allows 30 s
		{"default-ttl", l.DefaultTTL, time.Minute, 365 * 24 * time.Hour},
		{"min-ttl", l.MinTTL, time.Second, 24 * time.Hour},
		{"max-ttl", l.MaxTTL, time.Minute, 365 * 24 * time.Hour},
	} {
		if x.d < x.min || x.d > x.max {
			return fault.New(fault.Invalid, "--%s is %v, which is not between %v and %v", x.name, x.d, x.min, x.max)
		}
	}
	for _, x := range []struct {
		name       string
		value, min float64
	}{
		{"quota", float64(l.Quota), 1},
		{"streams", float64(l.Streams), 1},
		{"stream-concurrency", float64(l.StreamConcurrency), 0},
		{"publish-rate", l.PublishRate, 0},
		{"registration-rate", l.RegistrationRate, 0},
		{"endpoint-rate", float64(l.EndpointRate), 0},
	} {
		if !(x.value >= x.min) || math.IsInf(x.value, 1) { // not "value < min", which is false for NaN
			return fault.New(fault.Invalid, "--%s is %v and must be a number from %v", x.name, x.value, x.min)
		}
	}
	switch {
	case l.MinTTL > l.MaxTTL:
		return fault.New(fault.Invalid, "--min-ttl is longer than --max-ttl")
	case l.DefaultTTL > l.MaxTTL:
		return fault.New(fault.Invalid, "--default-ttl is longer than --max-ttl")
	case !(l.TraceRatio >= 0 && l.TraceRatio <= 1):
		return fault.New(fault.Invalid, "--trace-ratio %v is not allowed (allowed: 0 to 1)", l.TraceRatio)
	}
	return nil
}

func (l Limits) checkChoices() error {
	for _, x := range []struct {
		name, value string
		allowed     []string
	}{
		{"delivery-log", cmp.Or(l.DeliveryLog, "failures"), []string{"failures", "all", "none"}},
		{"webhook-secret", l.WebhookSecret, []string{"standard", "raw", "none"}},
		{"profile", l.Profile, spec.Profiles()},
	} {
		if !slices.Contains(x.allowed, x.value) {
			return fault.New(fault.Invalid, "--%s %q is not allowed (allowed: %s)", x.name, x.value, strings.Join(x.allowed, ", "))
		}
	}
	return nil
}

func (l Limits) checkAddresses() error {
	for name, targets := range map[string][]string{"verified-targets": l.VerifiedTargets, "plain-targets": l.PlainTargets} {
		for _, target := range targets {
			// A target is the prefix of allowed URLs. Without the slash at its end, https://good.example would also allow
			// https://good.example.evil.test.
			if u, err := url.Parse(target); err != nil || u.Host == "" || !strings.HasSuffix(target, "/") {
				return fault.New(fault.Invalid, "--%s has %.100q, which is not a URL that ends with a slash", name, target)
			}
		}
	}
	if u, err := url.Parse(l.OTLPEndpoint); l.OTLPEndpoint != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return fault.New(fault.Invalid, "--otlp-endpoint is not the URL of a collector, such as http://127.0.0.1:4318") // the URL may contain a password
	}
	if u, err := url.Parse(l.PublicURL); l.PublicURL != "" && (err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/")+u.RawQuery != "") {
		return fault.New(fault.Invalid, "--public-url %.100q is not a URL without a path, such as https://events.example.com", l.PublicURL)
	}
	if _, bad := auth.ParseProxies(l.TrustedProxies); bad != "" {
		return fault.New(fault.Invalid, "--trusted-proxies %.100q is not an address or prefix such as 10.0.0.0/8", bad)
	}
	for _, port := range l.TargetPorts {
		if port < 1 || port > 65535 {
			return fault.New(fault.Invalid, "--target-ports %d is not allowed (allowed: 1 to 65535)", port)
		}
	}
	return nil
}

func checkSchedule(name string, delays []time.Duration) error {
	if len(delays) == 0 || len(delays) > 20 || delays[0] != 0 {
		return fault.New(fault.Invalid, "--%s must have 1 to 20 delays, the first of them 0s", name)
	}
	for _, d := range delays[1:] {
		if d < time.Second || d > 24*time.Hour {
			return fault.New(fault.Invalid, "--%s has the delay %v, which is not between 1s and 24h", name, d)
		}
	}
	return nil
}

type removal struct {
	instead string // the explanation in the error message, for example byQuota
	// stops is true if the server must not start while the removed setting is set. The server ignores all other removed settings, so that
	// existing deployments continue to work.
	stops bool
}

const (
	byQuota   = "use quotas in the configuration instead"
	byProfile = "use --profile (MCPEVENTS_PROFILE) instead"
)

var removed = map[string]removal{
	"calls":                {instead: byQuota},
	"conversation-rate":    {instead: byQuota},
	"drain":                {instead: "it is always 20s"},
	"endpoint-concurrency": {instead: "it is always 64, and 32 on AWS"},
	"event-codes":          {instead: byProfile, stops: true},
	"events-timeout":       {instead: "it is always 10s, or --webhook-timeout if that is shorter"},
	"full-streams":         {instead: "a new stream always ends the principal's oldest one"},
	"jwt-algorithms":       {instead: "choose the algorithm at the authorization server; all asymmetric ones are accepted", stops: true},
	"jwt-leeway":           {instead: "it is always 30s"},
	"poll-max":             {instead: "it is always 30s"},
	"poll-min":             {instead: "it is always 1s"},
	"sessions":             {instead: byQuota},
	"unknown-unsubscribe":  {instead: byProfile, stops: true},
	"webhook-id":           {instead: byProfile, stops: true},
}

// CheckNotRemoved returns an error if an earlier version had a setting with this name and this version does not. The error is of kind
// fault.Invalid, and explains how to do without the setting.
func CheckNotRemoved(name string) error {
	if r, ok := removed[name]; ok {
		return fault.New(fault.Invalid, "the setting %s was removed; %s", name, r.instead)
	}
	return nil
}

// CheckRemoved returns an error if the environment has a removed setting with which the server must not start. It is the error of
// [CheckNotRemoved].
func CheckRemoved(lookup func(string) (string, bool)) error {
	for name, r := range removed {
		if value, ok := lookup(EnvName(name)); r.stops && ok && value != "" {
			return fault.Wrap(fault.Invalid, CheckNotRemoved(name), "%s", EnvName(name))
		}
	}
	return nil
}

// isIgnored reports whether the setting was removed and the server ignores it.
func isIgnored(name string) bool {
	r, ok := removed[name]
	return ok && !r.stops
}

// LogIgnored logs a warning for each removed setting that the server ignores. It looks for these settings in the environment and in
// [EnvSettings].
func LogIgnored(lookup func(string) (string, bool), log *slog.Logger) {
	text, _ := lookup(EnvSettings)
	var given []string
	for part := range strings.SplitSeq(text, ";") {
		name, _, _ := strings.Cut(part, "=")
		given = append(given, strings.TrimSpace(name))
	}
	for _, name := range slices.Sorted(maps.Keys(removed)) {
		if value, ok := lookup(EnvName(name)); isIgnored(name) && (ok && value != "" || slices.Contains(given, name)) {
			log.Warn("setting ignored", "setting", name, "why", "it was removed; "+removed[name].instead)
		}
	}
}

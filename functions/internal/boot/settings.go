package boot

import (
	"log/slog"
	"slices"

	"github.com/mcp-events/mcpevents/shared/app"
	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Needs are groups of settings that only some functions read. If a function does not need a group, its settings keep
// their defaults, and invalid ones do not stop the function from starting.
type Needs uint8

const (
	// Callers are settings for functions that clients call: authentication and quotas.
	Callers Needs = 1 << iota
	// Webhooks are settings for webhook subscriptions and deliveries.
	Webhooks
	// Records are settings for the records of deliveries and of requests to sources.
	Records

	// All are the settings of all groups.
	All = Callers | Webhooks | Records
)

// of lists the limits in each group. All functions read the limits that are in no group.
var of = map[Needs][]string{
	Callers: {
		"streams", "stream-concurrency", "publish-rate", "stream-max-age", "heartbeat",
		"answer-stream-after", "poll-min", "poll-max", "event-tools", "jwt-issuer", "jwt-audience", "jwt-jwks-url", "jwt-algorithms",
		"jwt-principal-claim", "jwt-workspace-claim", "jwt-scope-prefix", "allowed-origins",
	},
	Webhooks: {
		"quota", "webhook-timeout", "events-timeout", "retry-schedule", "events-retry-schedule",
		"default-ttl", "min-ttl", "max-ttl", "allow-no-expiry", "webhook-secret",
		"verify-registrations", "verified-targets", "plain-targets", "blocked-targets", "target-ports",
	},
	Records: {"delivery-log", "keep-responses"},
}

// settings are the operator's settings.
type settings struct {
	limits config.Limits
	level  slog.Level
	mode   auth.Mode
	access *jwt.Authenticator // for auth.ModeJWT in functions with callers
}

// Check reads the settings as the functions do. It returns an error, of kind fault.Invalid, if any function would not
// start with them.
func Check(getenv func(string) string) error {
	_, err := readSettings(getenv, All, slog.New(slog.DiscardHandler))
	return err
}

// readSettings reads the settings that a function needs. It sends no requests.
func readSettings(getenv func(string) string, needs Needs, log *slog.Logger) (s settings, err error) {
	var except []string
	for need, names := range of {
		if needs&need == 0 {
			except = slices.Concat(except, names)
		}
	}
	lookup := func(name string) (string, bool) { v := getenv(name); return v, v != "" }
	s.limits, err = config.FromEnv(lookup, except...)
	if err != nil {
		return s, err
	}
	config.LogFixed(lookup, log)
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

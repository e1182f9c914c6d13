package boot

import (
	"log/slog"
	"slices"

	"github.com/mcp-events/mcpevents/shared/app/config"
	"github.com/mcp-events/mcpevents/shared/app/tokens"
	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/auth/jwt"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Needs are the settings that a function reads beside those that all read. What it does not need keeps
// its default and cannot keep it from starting.
type Needs uint8

const (
	// Callers is who may call, and what they may.
	Callers Needs = 1 << iota
	// Webhooks is what subscriptions by webhook and their deliveries are like.
	Webhooks
	// Records is what leaves a record, of deliveries and of requests to sources.
	Records

	everything = Callers | Webhooks | Records
)

// of lists the limits that are for some functions only. One that is in no list is for all.
var of = map[Needs][]string{
	Callers: {
		"streams", "calls", "sessions", "stream-concurrency", "publish-rate", "conversation-rate", "stream-max-age", "heartbeat",
		"answer-stream-after", "poll-min", "poll-max", "event-tools", "jwt-issuer", "jwt-audience", "jwt-jwks-url", "jwt-algorithms",
		"jwt-principal-claim", "jwt-workspace-claim", "jwt-scope-prefix", "jwt-leeway", "allowed-origins",
	},
	Webhooks: {
		"quota", "webhook-timeout", "events-timeout", "retry-schedule", "events-retry-schedule",
		"default-ttl", "min-ttl", "max-ttl", "allow-no-expiry", "webhook-secret",
		"verify-registrations", "verified-targets", "plain-targets", "blocked-targets", "target-ports",
	},
	Records: {"delivery-log"},
}

// settings are what the operator chose.
type settings struct {
	limits config.Limits
	level  slog.Level
	mode   auth.Mode
	access *jwt.Authenticator // of auth.ModeJWT, for functions that are called
}

// Check reads the settings as the functions do, each of which would not start with what is an error
// here: of kind fault.Invalid.
func Check(getenv func(string) string) error {
	_, err := readSettings(getenv, everything, slog.New(slog.DiscardHandler))
	return err
}

// readSettings reads what a function needs. It sends no request.
func readSettings(getenv func(string) string, needs Needs, log *slog.Logger) (s settings, err error) {
	var except []string
	for need, names := range of {
		if needs&need == 0 {
			except = slices.Concat(except, names)
		}
	}
	s.limits, err = config.FromEnv(func(name string) (string, bool) { v := getenv(name); return v, v != "" }, except...)
	if err != nil {
		return s, err
	}
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
		s.access, err = tokens.Authenticator(s.limits, log)
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

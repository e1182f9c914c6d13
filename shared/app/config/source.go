package config

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// document is the name of the stored configuration; there is one for all workspaces.
const document = "config"

// Apply stores a configuration, for every process to use within [settings.MaxAge]. It returns the version,
// from 1, and whether anything changed. That backends changed is then announced by
// [settings.Announce]. A concurrent change is of kind fault.Conflict.
func Apply(ctx context.Context, db store.DB, next *Config) (version int64, changed bool, err error) {
	d := next.Document()
	return settings.Write(ctx, db, d.Name, d.Text, d.Also)
}

// Document returns the document that [Apply] writes, for callers that write others with it.
func (next *Config) Document() settings.Document {
	return settings.Document{Name: document, Text: next.source, Also: func(version int64, old []byte) []store.Op {
		before, err := parseStored(old)
		if err != nil { // of another version of this program
			before = &Config{}
		}
		return settings.UnannouncedOf(settings.Backends, changedBackends(before, next), version)
	}}
}

// Load reads the stored configuration; an empty one when none was stored.
func Load(ctx context.Context, db store.DB) (*Config, error) {
	src, _, err := settings.Read(ctx, db, document)
	if err != nil {
		return nil, err
	}
	return parseStored(src)
}

func parseStored(src []byte) (*Config, error) { return ParseFile("stored configuration", src) }

// Stored serves what [Apply] wrote, at most [settings.MaxAge] old.
type Stored struct {
	cache *settings.Cache[*current]
	// empty is the same pointer each time, as it is of a configuration that was stored.
	empty *current
}

// current is a configuration with what is made from it.
type current struct {
	config *Config
	keys   *auth.StaticKeys
}

// NewStored reads the configuration from the store. The clock is time.Now when nil,
// the log slog.Default. Own backends are there beside those of the configuration, and before them.
func NewStored(db store.DB, now func() time.Time, log *slog.Logger, own ...api.Backend) *Stored {
	with := func(c *Config) (*current, error) {
		keys, err := auth.Keys(c.Keys, now)
		c.Backends = slices.Concat(own, c.Backends)
		return &current{c, keys}, err
	}
	cache := settings.NewCache(db, document, func(src []byte) (*current, error) {
		c, err := parseStored(src)
		if err != nil {
			return nil, err
		}
		return with(c)
	}, now, log)
	empty, _ := with(&Config{}) // no keys are valid
	return &Stored{cache, empty}
}

func (s *Stored) current(ctx context.Context, get func(context.Context, string) (*current, int64, error)) (*current, error) {
	c, version, err := get(ctx, "")
	if err == nil && version == 0 {
		return s.empty, nil
	}
	return c, err
}

// Config returns the configuration; an empty one when none was stored. As long as nothing
// changed it is the same pointer.
func (s *Stored) Config(ctx context.Context) (*Config, error) {
	c, err := s.current(ctx, s.cache.Get)
	if err != nil {
		return nil, err
	}
	return c.config, nil
}

// Conversation returns the section "conversation". As long as nothing changed, it is the same pointer.
func (s *Stored) Conversation(ctx context.Context) (*rules.Conversation, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return &c.Conversation, nil
}

// Backends are those of the configuration; as long as nothing changed it is the same slice.
func (s *Stored) Backends(ctx context.Context) ([]api.Backend, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return c.Backends, nil
}

// Sources are those of the configuration; as long as nothing changed it is the same slice.
func (s *Stored) Sources(ctx context.Context) ([]source.Source, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return c.Sources, nil
}

// Written is [settings.Cache.Written].
func (s *Stored) Written() { s.cache.Written() }

// Authenticator authenticates by the keys of the stored configuration, so that a
// key that was removed is refused within [settings.MaxAge]. It is an [auth.Directory] too.
func (s *Stored) Authenticator() auth.Authenticator { return storedKeys{s} }

type storedKeys struct{ *Stored }

func (k storedKeys) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	c, err := k.current(ctx, k.cache.Get)
	if err != nil {
		return auth.Principal{}, err
	}
	return c.keys.Authenticate(ctx, h)
}

// Principals implements [auth.Directory].
func (k storedKeys) Principals(ctx context.Context, workspace, id string, latest bool) ([]auth.Principal, error) {
	get := k.cache.Get
	if latest {
		get = k.cache.Latest
	}
	c, err := k.current(ctx, get)
	if err != nil {
		return nil, err
	}
	return c.keys.Principals(ctx, workspace, id, latest)
}

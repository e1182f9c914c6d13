package config

import (
	"cmp"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/conversation/rules"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/storage/settings"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// document is the name of the stored configuration, which covers all workspaces.
const document = "config"

// Document is the stored configuration.
type Document struct {
	settings.Stored
	// Config is empty if there is no configuration. It is nil if the configuration cannot be read, because another version of this
	// program wrote it. Invalid then has the reason.
	Config  *Config
	Invalid error
}

// Read reads the stored configuration.
func Read(ctx context.Context, db store.DB) (Document, error) {
	stored, err := settings.Read(ctx, db, document)
	d := Document{Stored: stored}
	if err == nil {
		d.Config, d.Invalid = parseStored(stored.Text)
	}
	return d, err
}

func parseStored(src []byte) (*Config, error) { return ParseFile("stored configuration", src) }

// Replace returns the edit that replaces the configuration and announces changed backends.
func (d Document) Replace(next *Config) settings.Edit {
	before := cmp.Or(d.Config, &Config{})
	e := settings.Edit{Old: d.Stored, Text: next.source}
	e.Also = settings.UnannouncedOf(settings.Backends, changedBackends(before, next), e.Version())
	return e
}

// Load reads the stored configuration. It returns an empty one if there is no configuration.
func Load(ctx context.Context, db store.DB) (*Config, error) {
	d, err := Read(ctx, db)
	return d.Config, cmp.Or(err, d.Invalid)
}

// Stored serves the stored configuration, which is at most [settings.MaxAge] old. Its methods return the same pointer or slice until
// the configuration changes.
type Stored struct {
	cache *settings.Cache[*current]
	// empty is used while no configuration is stored.
	empty *current
}

// current is a configuration, with the keys in it and the prefixes and scopes of backends' event types, by workspace and backend.
type current struct {
	config     *Config
	keys       *auth.StaticKeys
	eventTypes map[string]map[string]catalog.BackendTypes
}

// NewStored returns a Stored over the store. A nil clock is time.Now, and a nil log slog.Default. Own backends precede the backends of
// the configuration.
func NewStored(db store.DB, now func() time.Time, log *slog.Logger, own ...api.Backend) *Stored {
	with := func(c *Config) (*current, error) {
		keys, err := auth.Keys(c.Keys, now)
		c.Backends = slices.Concat(own, c.Backends)
		eventTypes := map[string]map[string]catalog.BackendTypes{}
		for _, b := range c.Backends {
			of, allowed := b.EventTypes()
			if !allowed {
				continue
			}
			if eventTypes[b.Workspace] == nil {
				eventTypes[b.Workspace] = map[string]catalog.BackendTypes{}
			}
			eventTypes[b.Workspace][b.Name] = of
		}
		return &current{c, keys, eventTypes}, err
	}
	cache := settings.NewCache(db, document, func(src []byte) (*current, error) {
		c, err := parseStored(src)
		if err != nil {
			return nil, err
		}
		return with(c)
	}, now, log)
	empty, _ := with(&Config{}) // an empty list of keys is valid
	return &Stored{cache, empty}
}

// current returns the configuration and its version, which is 0 if none is stored. With latest set, it does not use the cache.
func (s *Stored) current(ctx context.Context, latest bool) (*current, int64, error) {
	c, version, err := s.cache.Read(ctx, "", latest)
	if err == nil && version == 0 {
		return s.empty, 0, nil
	}
	return c, version, err
}

// Config returns the configuration. It is empty if none is stored.
func (s *Stored) Config(ctx context.Context) (*Config, error) {
	c, _, err := s.current(ctx, false)
	if err != nil {
		return nil, err
	}
	return c.config, nil
}

// Conversation returns the section "conversation".
func (s *Stored) Conversation(ctx context.Context) (*rules.Conversation, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return &c.Conversation, nil
}

// Backends returns the backends of the configuration.
func (s *Stored) Backends(ctx context.Context) ([]api.Backend, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return c.Backends, nil
}

// EventTypes returns the prefixes and scopes of event types that the configuration has for a workspace's backends. It is a
// [catalog.Configured].
func (s *Stored) EventTypes(ctx context.Context, workspace string, latest bool) (map[string]catalog.BackendTypes, int64, error) {
	c, version, err := s.current(ctx, latest)
	if err != nil {
		return nil, 0, err
	}
	return c.eventTypes[workspace], version, nil
}

// Sources returns the sources of the configuration.
func (s *Stored) Sources(ctx context.Context) ([]source.Source, error) {
	c, err := s.Config(ctx)
	if err != nil {
		return nil, err
	}
	return c.Sources, nil
}

// Written drops the cached configuration, see [settings.Cache.Written].
func (s *Stored) Written() { s.cache.Written() }

// Authenticator returns an authenticator that uses the stored keys. It refuses a removed key within [settings.MaxAge]. It also
// implements [auth.Directory].
func (s *Stored) Authenticator() auth.Authenticator { return storedKeys{s} }

type storedKeys struct{ *Stored }

func (k storedKeys) Authenticate(ctx context.Context, h http.Header) (auth.Principal, error) {
	c, _, err := k.current(ctx, false)
	if err != nil {
		return auth.Principal{}, err
	}
	return c.keys.Authenticate(ctx, h)
}

// Principals implements [auth.Directory].
func (k storedKeys) Principals(ctx context.Context, workspace, id string, latest bool) ([]auth.Principal, error) {
	c, _, err := k.current(ctx, latest)
	if err != nil {
		return nil, err
	}
	return c.keys.Principals(ctx, workspace, id, latest)
}

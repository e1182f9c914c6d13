package catalog

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mcpevents/shared/config/versioned"
	"mcpevents/shared/fault"
	"mcpevents/shared/store"
)

// Source serves the current catalog of a workspace. An unknown workspace is of
// kind fault.NotFound. It may be used concurrently.
type Source interface {
	Catalog(ctx context.Context, workspace string) (*Catalog, error)
}

// Static is a [Source] that this process sets itself.
type Static struct {
	current    atomic.Pointer[Catalog]
	workspaces []string
}

// NewStatic serves one catalog to the workspaces, or to any if none are given.
func NewStatic(c *Catalog, workspaces ...string) *Static {
	s := &Static{workspaces: slices.Clone(workspaces)}
	s.current.Store(c)
	return s
}

// Replace changes the catalog for all calls that follow.
func (s *Static) Replace(c *Catalog) { s.current.Store(c) }

// Catalog returns the catalog that was set last.
func (s *Static) Catalog(_ context.Context, workspace string) (*Catalog, error) {
	if len(s.workspaces) > 0 && !slices.Contains(s.workspaces, workspace) {
		return nil, errNoCatalog
	}
	return s.current.Load(), nil
}

// MaxAge is how old a catalog of [Stored] may be: what [Apply] stored is in use
// everywhere after that time.
const MaxAge = 5 * time.Second

const (
	// recheckAfter is when one caller looks for a new version, while the others
	// go on with what is there until MaxAge.
	recheckAfter = 2 * time.Second
	// retryAfter spaces attempts while the store does not answer.
	retryAfter = time.Second
	// maxStale is how long the last catalog is served without the store.
	maxStale = 5 * time.Minute
	// maxHeld bounds the workspaces in memory; names come from callers.
	maxHeld = 1024
)

// Stored is a [Source] that serves what [Apply] wrote, at most [MaxAge] old as long as
// the store answers. There is no background work: on Lambda a process sleeps
// between calls, and would wake up with what it knew. Instead the first
// caller after two seconds reads the version (one small item), and the text only
// if that has moved; the others are served meanwhile.
type Stored struct {
	db  store.DB
	now func() time.Time
	log *slog.Logger

	mu   sync.Mutex
	held map[string]*held
}

// held is a workspace's catalog. Its fields are guarded by Stored.mu.
type held struct {
	catalog *Catalog // nil: the workspace has none
	version int64
	checked time.Time // start of the read that found it current; zero: never read
	retry   time.Time // not before, after a failed read
	reading chan struct{}
}

// NewStored makes a source over the store. The clock is time.Now when nil, the
// log slog.Default.
func NewStored(db store.DB, now func() time.Time, log *slog.Logger) *Stored {
	if now == nil {
		now = time.Now
	}
	if log == nil {
		log = slog.Default()
	}
	return &Stored{db: db, now: now, log: log, held: map[string]*held{}}
}

// Catalog returns the workspace's catalog.
func (s *Stored) Catalog(ctx context.Context, workspace string) (*Catalog, error) {
	for {
		s.mu.Lock()
		h := s.holder(workspace)
		now := s.now()
		known := !h.checked.IsZero()
		age := now.Sub(h.checked)
		switch {
		case known && (age < recheckAfter || h.reading != nil && age < MaxAge || now.Before(h.retry) && age < maxStale):
			c := h.catalog
			s.mu.Unlock()
			return found(c)
		case h.reading == nil:
			h.reading = make(chan struct{})
			version := h.version
			s.mu.Unlock()
			return s.read(ctx, workspace, h, version, now)
		}
		reading := h.reading
		s.mu.Unlock()
		select {
		case <-reading:
		case <-ctx.Done():
			return nil, fault.Wrap(fault.Unavailable, ctx.Err(), "wait for the catalog")
		}
	}
}

func found(c *Catalog) (*Catalog, error) {
	if c == nil {
		return nil, errNoCatalog
	}
	return c, nil
}

// holder finds or makes the workspace's place. The caller holds the lock.
func (s *Stored) holder(workspace string) *held {
	h := s.held[workspace]
	if h == nil {
		if len(s.held) >= maxHeld {
			s.evict()
		}
		h = &held{}
		s.held[workspace] = h
	}
	return h
}

// evict makes room, first of workspaces that do not exist.
func (s *Stored) evict() {
	victim := ""
	for name, h := range s.held {
		if h.reading != nil {
			continue
		}
		victim = name
		if h.catalog == nil {
			break
		}
	}
	delete(s.held, victim)
}

// read looks for a new version and publishes what it found. It began at start.
func (s *Stored) read(ctx context.Context, workspace string, h *held, version int64, start time.Time) (*Catalog, error) {
	c, next, err := s.fetch(ctx, workspace, version)

	s.mu.Lock()
	defer s.mu.Unlock()
	close(h.reading)
	h.reading = nil
	if err == nil {
		h.checked, h.retry = start, time.Time{}
		if next != version {
			h.catalog, h.version = c, next
		}
		return found(h.catalog)
	}
	if h.checked.IsZero() || start.Sub(h.checked) >= maxStale {
		return nil, err
	}
	h.retry = start.Add(retryAfter)
	s.log.WarnContext(ctx, "catalog not read, the last one stays in use", "workspace", workspace,
		"age", start.Sub(h.checked), "error", err)
	return found(h.catalog)
}

// fetch returns the catalog if there is another version than the given one. A
// version of 0 is a workspace without a catalog.
func (s *Stored) fetch(ctx context.Context, workspace string, version int64) (*Catalog, int64, error) {
	next, err := versioned.Version(ctx, s.db, document(workspace))
	if err != nil || next == version {
		return nil, next, err
	}
	c, next, err := load(ctx, s.db, workspace)
	if fault.Is(err, fault.NotFound) {
		return nil, 0, nil
	}
	if fault.Is(err, fault.Invalid) { // Apply checks: only another version of this program can have written it
		return nil, 0, fault.New(fault.Internal, "the stored catalog is not valid for this version: %v", err)
	}
	return c, next, err
}

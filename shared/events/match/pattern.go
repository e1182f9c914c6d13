package match

import (
	"strconv"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/events/catalog"
	eventlog "github.com/mcp-events/mcpevents/shared/events/log"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Kind says which events a pattern stands for.
type Kind string

// The kinds of patterns.
const (
	// Concrete is one event URI.
	Concrete Kind = "concrete"
	// Wildcard is a template with some variables omitted; each stands for any value.
	Wildcard Kind = "wildcard"
	// Parent is a proper prefix of event URIs at a segment border; it stands for
	// all its sub-resources.
	Parent Kind = "parent"
)

// parentMark ends the key of a parent.
const parentMark = "/**"

// Pattern is what someone is subscribed to. An event is matched by looking up
// the keys it can have, never by scanning patterns.
type Pattern struct {
	Kind Kind `json:"k"`
	// Key is unique among a workspace's patterns: the URI, with `*` for an
	// omitted variable, and `/**` after a parent. A canonical URI holds no `*`.
	Key string `json:"key"`
	// Entry is the catalog's name of the event type; empty for a parent.
	Entry string `json:"e,omitempty"`
	// Shape is what patterns of this form have in common (see [Shape]).
	Shape Shape `json:"s"`
	// Unordered is true for a concrete URI of an event type that gives up order.
	Unordered bool `json:"u,omitempty"`
}

// Partitions lists where the log has the events of the pattern.
func (p Pattern) Partitions(log *eventlog.Log, workspace string) []eventlog.Partition {
	if p.Kind != Concrete {
		return eventlog.Pattern(workspace, p.Key)
	}
	return log.Of(workspace, p.Key, p.Unordered)
}

// Shape is the form of a pattern: of one event type, which variables are left
// open; or, for parents, how deep they are. An event has one key per shape, so
// it is looked up only under the shapes that someone uses.
type Shape struct {
	// Scope names the item that counts the shape: "entry:" and the event type's
	// name, or "parents".
	Scope string `json:"c"`
	// Name is "m" and the bit mask of omitted variables in hex, or "d" and the
	// number of segments of the parent.
	Name string `json:"n"`
}

const parentsScope = "parents"

// Scope is where subscriptions to an event type are listed; those to parents are
// listed in the scope of "".
func Scope(entry string) string {
	if entry == "" {
		return parentsScope
	}
	return "entry:" + entry
}

// URI is the pattern as a client writes it: for a parent without the mark.
func (p Pattern) URI() string { return strings.TrimSuffix(p.Key, parentMark) }

// CutParent returns the URI of the parent that a pattern's key stands for, or false if it is the key of another kind of pattern.
func CutParent(key string) (uri string, ok bool) { return strings.CutSuffix(key, parentMark) }

// segments splits a canonical event URI.
func segments(uri string) []string {
	return strings.Split(strings.TrimPrefix(uri, catalog.Scheme), "/")
}

// Access is a right that a subscriber to a pattern needs: the rule of an event
// type, and the variables that the pattern binds.
type Access struct {
	Entry *catalog.Entry
	Vars  map[string]string
}

// Resolve finds what a URI stands for in the catalog: an event type, a fill-in of
// a template (with `*` for a variable that stays open), a parent of either, or
// both an event and a parent. Anything else is a fault of kind Invalid that names
// what is wrong. The second result lists the event types covered, for the access check.
func Resolve(cat *catalog.Catalog, uri string) ([]Pattern, []Access, error) {
	canonical, err := catalog.CanonicalPattern(uri)
	if err != nil {
		return nil, nil, fault.Wrap(fault.Invalid, err, "event URI")
	}
	var patterns []Pattern
	var access []Access
	if entry, vars, ok := cat.MatchPattern(canonical); ok {
		if err := entry.ValidateParams(vars); err != nil {
			return nil, nil, fault.Wrap(fault.Invalid, err, "parameters of %s", canonical)
		}
		patterns = append(patterns, ForEntry(entry, vars))
		access = append(access, Access{entry, vars})
	}
	if !strings.Contains(canonical, "*") {
		for _, e := range cat.Under(canonical) {
			if vars := e.BindParent(canonical); e.ValidateParams(vars) == nil {
				access = append(access, Access{e, vars})
			}
		}
		if n := len(access) - len(patterns); n > 0 {
			patterns = append(patterns, Pattern{
				Kind: Parent, Key: canonical + parentMark,
				Shape: Shape{Scope: parentsScope, Name: "d" + strconv.Itoa(len(segments(canonical)))},
			})
		}
	}
	if len(patterns) == 0 {
		return nil, nil, fault.New(fault.Invalid, "unknown URI %.200q: no event type has it or a URI below it", canonical).
			With(map[string]any{"uri": canonical})
	}
	return patterns, access, nil
}

// ForEntry is the pattern of an event type with some variables bound; those not
// in vars stay open. The caller has checked vars.
func ForEntry(e *catalog.Entry, vars map[string]string) Pattern {
	mask := 0
	for i, name := range e.Variables() {
		if _, ok := vars[name]; !ok {
			mask |= 1 << i
		}
	}
	kind := Concrete
	if mask != 0 {
		kind = Wildcard
	}
	return Pattern{
		Kind: kind, Key: e.Expand(vars), Entry: e.Name,
		Shape:     Shape{Scope: Scope(e.Name), Name: maskName(mask)},
		Unordered: kind == Concrete && e.Unordered(),
	}
}

func maskName(mask int) string { return "m" + strconv.FormatInt(int64(mask), 16) }

// Scopes lists the shape scopes that can match events of the type.
func Scopes(entry string) []string { return []string{Scope(entry), parentsScope} }

// KeyUnder is the key that an event has under a shape, or false if an event of
// this type and depth has none there.
func KeyUnder(e *catalog.Entry, vars map[string]string, uri string, s Shape) (string, bool) {
	if s.Scope == parentsScope {
		depth, err := strconv.Atoi(strings.TrimPrefix(s.Name, "d"))
		if err != nil {
			return "", false
		}
		segs := segments(uri)
		if depth < 1 || depth >= len(segs) {
			return "", false
		}
		return catalog.Scheme + strings.Join(segs[:depth], "/") + parentMark, true
	}
	mask, err := strconv.ParseInt(strings.TrimPrefix(s.Name, "m"), 16, 32)
	if err != nil {
		return "", false
	}
	if mask == 0 {
		return uri, true
	}
	names := e.Variables()
	if mask >= 1<<len(names) {
		return "", false
	}
	bound := make(map[string]string, len(names))
	for i, n := range names {
		if mask&(1<<i) == 0 {
			bound[n] = vars[n]
		}
	}
	return e.Expand(bound), true
}

// Matches reports whether an event URI matches the key of a pattern, or whether an event can match the keys of two patterns:
// the key of a concrete one is its URI.
func Matches(a, b string) bool {
	x, aOpen := strings.CutSuffix(a, parentMark)
	y, bOpen := strings.CutSuffix(b, parentMark)
	as, bs := segments(x), segments(y)
	switch longer := len(as) - len(bs); {
	case longer < 0 && !aOpen, longer > 0 && !bOpen:
		return false
	case longer == 0 && aOpen != bOpen: // a parent stands for what lies below it, not for itself
		return false
	}
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] && as[i] != "*" && bs[i] != "*" {
			return false
		}
	}
	return true
}

// allowed checks the principal's right to all that a pattern covers.
func CheckAccess(p auth.Principal, access []Access) error {
	for _, a := range access {
		if err := a.Entry.Access.Check(p, a.Vars); err != nil {
			return err
		}
	}
	return nil
}

package backends

import (
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/auth"
	"github.com/mcp-events/mcpevents/shared/gateway/api"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
	"github.com/mcp-events/mcpevents/shared/protocol/spec"
)

// Extensions have an identifier with a prefix, for example com.example/catalog (SEP-2133). The specification does not say which methods
// belong to an extension, so [hasMethod] follows the method names of existing extensions.

// Limits on the extensions that a backend can declare, because the gateway passes the declarations on to clients.
const (
	maxExtensions     = 32
	maxSettings       = 4 << 10 // bytes of the settings of one extension
	maxSettingsNested = 16
)

// extensionID matches an extension's identifier: a reverse domain name, a slash, and a name.
var extensionID = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,62}(\.[A-Za-z0-9-]{1,63}){0,8}/[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?$`)

// ownExtensions lists extensions that the gateway does not pass on to clients. It implements the first two itself. The others concern
// only how the gateway authenticates to the backend.
var ownExtensions = []string{
	spec.EventsExtension, spec.TasksExtension,
	"io.modelcontextprotocol/oauth-client-credentials", "io.modelcontextprotocol/enterprise-managed-authorization",
}

// reserved has the first parts of methods that belong to MCP itself or to extensions that the gateway implements, for example "tools". A
// backend cannot take over such methods by declaring an extension like com.example/tools.
var reserved = []string{
	"initialize", "ping", "server", "tools", "prompts", "resources", "completion", "logging", "sampling", "elicitation", "roots",
	"subscriptions", "notifications", "events", "tasks", "conversation", "cancelled", "progress", "message", "initialized",
}

// parseExtensions returns the extensions that a backend declares, with their settings. It leaves out [ownExtensions], extensions with our
// own prefix, malformed ones, and extensions beyond the limits, such as maxExtensions.
func parseExtensions(declared json.RawMessage) map[string]json.RawMessage {
	var out map[string]json.RawMessage
	for key, settings := range jsonrpc.Members(declared) {
		id := string(key)
		if !extensionID.MatchString(id) || spec.IsOwn(id) || slices.ContainsFunc(ownExtensions, func(own string) bool { return strings.EqualFold(own, id) }) ||
			len(settings) == 0 || settings[0] != '{' || len(settings) > maxSettings || jsonrpc.Depth(settings) > maxSettingsNested {
			continue
		}
		if out == nil {
			out = map[string]json.RawMessage{}
		}
		if out[id] = slices.Clone(settings); len(out) >= maxExtensions {
			break
		}
	}
	return out
}

// hasMethod reports whether a method belongs to an extension. For example, these are methods of com.example/catalog:
//
//	com.example/catalog/search  begins with the identifier
//	com.example/search          begins with the identifier's prefix, as in the examples of the official SDKs
//	catalog/search              begins with the identifier's name, as in the official extensions
//
// A method like com.example/search belongs to all extensions whose prefix is com.example.
func hasMethod(extension, method string) bool {
	prefix, name, _ := strings.Cut(extension, "/")
	first, rest, ok := splitMethod(method)
	if inner, _, deeper := strings.Cut(rest, "/"); first == prefix {
		return ok && (!deeper || inner == name)
	}
	return ok && first == name
}

// splitMethod splits a method at its first slash, after it has removed a leading "notifications/". The result ok is false if the method
// cannot belong to an extension of a backend.
func splitMethod(method string) (first, rest string, ok bool) {
	first, rest, _ = strings.Cut(strings.TrimPrefix(method, "notifications/"), "/")
	return first, rest, rest != "" && len(method) <= maxName && !slices.Contains(reserved, first)
}

// Extends reports whether the principal may call an extension's method at the backend. If the principal only lacks a scope, the error
// says so. If several extensions of the backend have the method, the principal needs permission for all of them, because the gateway does
// not know to which one the backend will attribute the call.
func (v *View) Extends(p auth.Principal, info *ServerInfo, method string) (ok bool, err error) {
	var needs []string
	for id := range info.Extensions {
		if !hasMethod(id, method) {
			continue
		}
		scopes, allowed := v.backend.rules[api.Extensions].Permits(id)
		if !allowed {
			return false, nil
		}
		ok, needs = true, append(needs, scopes...)
	}
	if ok {
		err = p.Require(needs...)
	}
	return ok && err == nil, err
}

func (v *View) addExtensions(to *api.Capabilities, p auth.Principal, info *ServerInfo) {
	for id, settings := range info.Extensions {
		scopes, ok := v.backend.rules[api.Extensions].Permits(id)
		if _, had := to.Extensions[id]; had || !ok || !p.Has(scopes...) {
			continue
		}
		if to.Extensions == nil {
			to.Extensions = map[string]json.RawMessage{}
		}
		to.Extensions[id] = settings
	}
}

// findMethod finds the backend that declares an extension with the method. If several backends do, the error is of kind fault.Conflict.
// If the client lacks a scope, findMethod returns the backend together with the error.
func (bs *Set) findMethod(ctx context.Context, c api.Client, method string) (found Entry, err error) {
	err = unknownError(api.Extensions.String(), method)
	if _, _, ok := splitMethod(method); !ok {
		return Entry{}, err
	}
	views := bs.viewsFor(ctx, c)
	var owners []string
	for i, info := range bs.gatherInfo(ctx, views) {
		if info == nil {
			continue
		}
		ok, denied := views[i].Extends(c.Principal, info, method)
		if !ok && denied == nil || denied != nil && len(owners) > 0 {
			continue
		}
		found, err = Entry{Entry: api.Entry{Name: method, Own: method, Backend: views[i].backend.Name}, View: views[i]}, denied
		if ok {
			owners = append(owners, found.Backend)
		}
	}
	if len(owners) > 1 {
		return Entry{}, fault.New(fault.Conflict, "the backends %s declare an extension with the method %.128q; only one of them may", strings.Join(owners, ", "), method).
			With(map[string]any{"backends": owners})
	}
	return found, err
}

package auth

import (
	"errors"
	"slices"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// Challenge returns the value of the WWW-Authenticate header for a 401 or 403 response (RFC 6750, section 3; RFC 9728, section 5.1): the
// URL of the protected resource's metadata if there is one, the required scopes, and the error. It returns "", so that callers leave the
// header out, unless the error is of kind fault.Unauthenticated or has [MissingScopes].
//
// scopes are all scopes that the refused request requires. Challenge adds the missing scopes of the error.
func Challenge(err error, metadataURL string, scopes ...string) string {
	var code string
	scopes = slices.Clone(scopes)
	switch fault.KindOf(err) {
	case fault.Unauthenticated:
		if !errors.Is(err, ErrNoToken) {
			code = "invalid_token"
		}
	case fault.Forbidden:
		missing, ok := fault.DataOf(err).(MissingScopes)
		if !ok {
			return ""
		}
		code = "insufficient_scope"
		scopes = append(scopes, missing.Scopes...)
	default:
		return ""
	}
	var params []string
	add := func(name, value string) {
		if value != "" {
			params = append(params, name+`="`+quoted.Replace(value)+`"`)
		}
	}
	add("error", code)
	slices.Sort(scopes)
	add("scope", strings.Join(slices.Compact(scopes), " "))
	add("resource_metadata", metadataURL)
	if len(params) == 0 {
		return "Bearer"
	}
	return "Bearer " + strings.Join(params, ", ")
}

var quoted = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

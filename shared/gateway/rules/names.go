package rules

import (
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// CheckNames returns a fault of kind Invalid if a backend could read another name in the params of a call than the gateway did when it
// checked the rules. Some JSON libraries ignore the case of member names, so params must not have, for example, both name and Name.
//
// The parameter member is the member of params that has the name. For completion/complete it is "ref", and the name is in the object ref:
// in its member name or, if template is set, in its member uri. The other one of these two members must be absent.
func CheckNames(params json.RawMessage, member string, template bool) error {
	object, own, other := params, member, ""
	if member == "ref" {
		if hasOther(object, own, "") {
			return fault.New(fault.Invalid, "params have ref more than once")
		}
		object, own, other = jsonrpc.Member(object, "ref"), "name", "uri"
		if template {
			own, other = other, own
		}
	}
	if hasOther(object, own, other) || member == "ref" && jsonrpc.HasRepeatedMember(object) {
		return fault.New(fault.Invalid, "params must have %s only once, without another member that names what to use", own)
	}
	return nil
}

// hasOther reports whether the object has a member that a backend might read instead of the member with the name own. This can be a
// member with the same name in another case, for example Name for name. It can also be a member with the name other, in any case, unless
// other is empty.
func hasOther(object json.RawMessage, own, other string) bool {
	for key := range jsonrpc.Members(object) {
		name := string(key)
		if name != own && strings.EqualFold(name, own) || other != "" && strings.EqualFold(name, other) {
			return true
		}
	}
	return false
}

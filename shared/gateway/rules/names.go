package rules

import (
	"encoding/json"
	"strings"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/protocol/jsonrpc"
)

// CheckNames returns a fault of kind Invalid if a backend could read another name in the params of a call than the one that was checked
// against the rules. member is the member with that name. Some JSON libraries ignore the case of member names, and a ref with both a name
// and a uri can be read in two ways. A ref must have a uri if template is set, and otherwise a name.
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

// hasOther reports whether a backend might read another member of the object than the one with the name own: a different spelling of own,
// for example Name for name, or the member with the name other in any spelling. other is empty if there is no such member.
func hasOther(object json.RawMessage, own, other string) bool {
	for key := range jsonrpc.Members(object) {
		name := string(key)
		if name != own && strings.EqualFold(name, own) || other != "" && strings.EqualFold(name, other) {
			return true
		}
	}
	return false
}

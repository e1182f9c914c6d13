package keyresource

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// resourceID never changes, so that CloudFormation never replaces the resource.
const resourceID = "mcpevents-sealing-keys"

// settingsProperty is the property with the settings, named like the functions' environment variables.
const settingsProperty = "Settings"

// checkSettings checks the settings with the code that the functions read them with. It accepts properties without
// settings, because an earlier version of the template, to which a stack may roll back, passes no settings.
func checkSettings(properties map[string]any) error {
	given, ok := properties[settingsProperty]
	if !ok {
		return nil
	}
	settings, ok := given.(map[string]any)
	if !ok {
		return fault.New(fault.Invalid, "the property %s is not a mapping", settingsProperty)
	}
	return boot.Check(func(name string) string {
		value, ok := settings[name]
		if !ok {
			return ""
		}
		return fmt.Sprint(value) // CloudFormation converts numbers and booleans to text, but an emulator may not
	})
}

// fingerprint returns a hash of the properties. The template publishes new versions of the functions when it changes.
func fingerprint(properties map[string]any) string {
	b, _ := json.Marshal(properties) // it was JSON; keys are sorted
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

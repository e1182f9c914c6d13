package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/aws/aws-lambda-go/cfn"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// resourceID never changes, so that CloudFormation never replaces the resource.
const resourceID = "mcpevents-sealing-keys"

// settingsProperty is the property with the settings, by the variables in which functions read them.
const settingsProperty = "Settings"

// change does what CloudFormation asks for. The other functions depend on the resource: an error here
// fails the deployment before any of them gets its settings.
func change(ctx context.Context, open opener, status stackStatus, e cfn.Event) error {
	if e.RequestType == cfn.RequestDelete {
		return nil
	}
	if err := checkSettings(e.ResourceProperties); err != nil {
		return err
	}
	if err := checkAdopted(ctx, status, e); err != nil {
		return err
	}
	return create(ctx, open)
}

// checkSettings checks the settings by the code that the functions read them with. An update back to a
// deployment of an earlier version, which has none here, is none that could fail.
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
		return fmt.Sprint(value) // CloudFormation makes text of numbers and booleans; an emulator may not
	})
}

// fingerprint is another one when a property is. By it the template makes new versions of the functions.
func fingerprint(properties map[string]any) string {
	b, _ := json.Marshal(properties) // it was JSON; keys are sorted
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

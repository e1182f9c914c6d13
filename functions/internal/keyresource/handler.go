// Package keyresource serves the custom resource Keys in template.yaml. The custom resource checks a deployment's settings before any
// other function receives them, and creates the sealing keys and the cursor key once. When CloudFormation deletes the resource, the keys
// stay, because they outlive the stack.
//
// An operator can invoke the same function to rotate the sealing keys.
package keyresource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/aws/aws-lambda-go/cfn"
	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/mcp-events/mcpevents/functions/internal/boot"
	"github.com/mcp-events/mcpevents/functions/internal/cursors"
	"github.com/mcp-events/mcpevents/functions/internal/sealing"
	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/storage/store"
)

// Handler handles the events of CloudFormation and the orders of operators. It opens the store and asks for the stack's status only for
// events that need them. So a stack can be deleted even after it has lost its tables or keys.
type Handler struct {
	// Open connects to the deployment's store, and to the KMS key that encrypts the private keyset.
	Open func() (store.DB, sealing.Wrapper, error)
	// StackStatus returns the status of a stack, for example UPDATE_IN_PROGRESS.
	StackStatus func(ctx context.Context, stackID string) (string, error)
}

// Handle handles one event. The orders of an operator are {"rotate":"add"}, {"rotate":"promote"} a minute or more later, and
// {"rotate":"drop"}, which removes the keys from before a rotation. Every other event comes from CloudFormation.
func (h Handler) Handle(ctx context.Context, raw json.RawMessage) (any, error) {
	var order struct {
		Rotate sealing.Step `json:"rotate"`
	}
	if err := json.Unmarshal(raw, &order); err == nil && order.Rotate != "" {
		db, wrapper, err := h.Open()
		if err != nil {
			return nil, err
		}
		if order.Rotate == sealing.StepDrop {
			return sealing.Drop(ctx, db, wrapper, time.Now())
		}
		return nil, sealing.Rotate(ctx, db, wrapper, order.Rotate)
	}
	var event cfn.Event
	if err := json.Unmarshal(raw, &event); err != nil {
		return nil, err
	}
	if event.ResponseURL == "" {
		return nil, fault.New(fault.Invalid, `the event is neither an order, e.g. {"rotate":"add"}, nor a request of CloudFormation`)
	}
	return cfn.LambdaWrap(func(ctx context.Context, e cfn.Event) (string, map[string]any, error) {
		return resourceID, map[string]any{"Fingerprint": fingerprint(e.ResourceProperties)}, h.change(ctx, e)
	})(ctx, event)
}

// change handles a request from CloudFormation. The other functions depend on the custom resource. So an error fails the deployment
// before any of these functions receives its settings.
func (h Handler) change(ctx context.Context, e cfn.Event) error {
	if e.RequestType == cfn.RequestDelete {
		return nil
	}
	if err := checkSettings(e.ResourceProperties); err != nil {
		return err
	}
	if err := h.checkAdopted(ctx, e); err != nil {
		return err
	}
	return h.createKeys(ctx)
}

func (h Handler) createKeys(ctx context.Context) error {
	db, wrapper, err := h.Open()
	if err != nil {
		return err
	}
	return retryForSeconds(ctx, func() error {
		if err := cursors.Create(ctx, db); err != nil {
			return err
		}
		return sealing.Create(ctx, db, wrapper)
	})
}

// retryForSeconds calls the function do until it succeeds, for up to 15 seconds. The first calls may fail because the permissions of a
// new function have not reached every AWS service yet. A call that failed with fault.Invalid is not repeated. An example is that the
// stored keys are from another deployment.
func retryForSeconds(ctx context.Context, do func() error) error {
	for pause := time.Second; ; pause *= 2 {
		err := do()
		if err == nil || fault.Is(err, fault.Invalid) || pause > 8*time.Second || periodic.Sleep(ctx, pause) != nil {
			return err
		}
	}
}

// resourceID is the physical id of the custom resource. CloudFormation would replace the resource if the id changed, so it is constant.
const resourceID = "mcpevents-sealing-keys"

// settingsProperty is the property of the custom resource with the deployment's settings. The keys of the property are names of
// environment variables, for example MCPEVENTS_AUTH.
const settingsProperty = "Settings"

func checkSettings(properties map[string]any) error {
	settings, ok := properties[settingsProperty].(map[string]any)
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

// fingerprint returns a hash of the custom resource's properties. When it changes, CloudFormation publishes new versions of the
// functions.
func fingerprint(properties map[string]any) string {
	b, _ := json.Marshal(properties) // the properties were decoded from JSON, and Marshal sorts their keys
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// adoptable lists the template parameters with which a stack adopts (takes over) the tables and the KMS key of another stack. They are in
// the order of the custom resource's property Adopted.
var adoptable = []string{
	"SubscriptionsTableArn", "LogTableArn", "DeliveriesTableArn", "SessionsTableArn", "SettingsTableArn", "KeysTableArn", "SealingKeyArn",
}

// checkAdopted refuses an update in which the parameter for an adopted table or key has become empty, because the stack would create an
// empty table or a new key in its place. The operator can confirm such an update with LeaveAdopted.
//
// The rollback of a failed deployment is an update, too, and must not be refused. So checkAdopted accepts the update if the stack's
// status is unknown or shows a rollback.
func (h Handler) checkAdopted(ctx context.Context, e cfn.Event) error {
	if e.RequestType != cfn.RequestUpdate || fmt.Sprint(e.ResourceProperties["LeaveAdopted"]) == "true" {
		return nil
	}
	before, after := readAdopted(e.OldResourceProperties), readAdopted(e.ResourceProperties)
	for i, name := range adoptable {
		if before[i] == "" || after[i] != "" {
			continue
		}
		if now, err := h.StackStatus(ctx, e.StackID); err != nil || now != "UPDATE_IN_PROGRESS" {
			return nil
		}
		return fault.New(fault.Invalid, "%s is no longer set, so the stack would leave %s for an empty one: set %s again, or confirm with LeaveAdopted=true", name, before[i], name)
	}
	return nil
}

// readAdopted returns the values of the template parameters in adoptable, in the same order. If the properties are from an earlier
// version of the template with fewer parameters, the values of the newer parameters are empty.
func readAdopted(properties map[string]any) []string {
	values := make([]string, len(adoptable))
	list, _ := properties["Adopted"].([]any)
	for i := range min(len(list), len(values)) {
		values[i] = fmt.Sprint(list[i])
	}
	return values
}

const statusTimeout = 10 * time.Second

// ReadStatus returns the status of a stack, which it requests from CloudFormation. It does not use the SDK's client for CloudFormation,
// which would be a large dependency for a single request.
func ReadStatus(ctx context.Context, cfg aws.Config, stackID string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	endpoint := os.Getenv(awsx.EnvEndpoint + "_CLOUDFORMATION")
	if endpoint == "" {
		domain := "amazonaws.com"
		if strings.HasPrefix(cfg.Region, "cn-") {
			domain += ".cn"
		}
		endpoint = "https://cloudformation." + cfg.Region + "." + domain + "/"
	}
	body := url.Values{"Action": {"DescribeStacks"}, "Version": {"2010-05-15"}, "StackName": {stackID}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	credentials, err := cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(body))
	if err := v4.NewSigner().SignHTTP(ctx, credentials, req, hex.EncodeToString(sum[:]), "cloudformation", cfg.Region, time.Now()); err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	const maxAnswer = 1 << 20
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil || resp.StatusCode != http.StatusOK {
		return "", fault.New(fault.Unavailable, "CloudFormation answered %d: %v", resp.StatusCode, err)
	}
	var described struct {
		Status []string `xml:"DescribeStacksResult>Stacks>member>StackStatus"`
	}
	if err := xml.Unmarshal(answer, &described); err != nil || len(described.Status) != 1 {
		return "", fault.New(fault.Unavailable, "CloudFormation describes %d stacks: %v", len(described.Status), err)
	}
	return described.Status[0], nil
}

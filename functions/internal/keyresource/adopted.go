package keyresource

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// adoptable are the parameters of the tables and the key that a stack can adopt, in the order of the property Adopted.
var adoptable = []string{
	"SubscriptionsTableArn", "LogTableArn", "DeliveriesTableArn", "SessionsTableArn", "SettingsTableArn", "KeysTableArn", "SealingKeyArn",
}

// checkAdopted refuses a deployment that leaves an adopted table or key without confirmation, because the stack would
// make an empty one in its place. It does not refuse the rollback of a deployment that failed, in which CloudFormation
// also asks for an update. If CloudFormation does not say what it does, the update is not refused either, because a
// refused rollback would leave the stack stuck.
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

// readAdopted returns the values of the parameters in adoptable. An earlier version of the template may have had fewer.
func readAdopted(properties map[string]any) []string {
	values := make([]string, len(adoptable))
	list, _ := properties["Adopted"].([]any)
	for i := range min(len(list), len(values)) {
		values[i] = fmt.Sprint(list[i])
	}
	return values
}

// statusTimeout limits the request for the status of a stack.
const statusTimeout = 10 * time.Second

// ReadStatus asks CloudFormation for the status of a stack. The request is written here, signed by the SDK's signer,
// because the SDK's client for all of CloudFormation would only be used for this.
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

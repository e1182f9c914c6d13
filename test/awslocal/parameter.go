//go:build unix

package awslocal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// PutParameter writes a secret into the Parameter Store of [MiniStack] in [Region], over the one that was there.
func PutParameter(ctx context.Context, endpoint, name, value string) error {
	return PutParameterIn(ctx, Region, endpoint, name, value)
}

// PutParameterIn sets a parameter in another region, like PutParameter.
func PutParameterIn(ctx context.Context, region, endpoint, name, value string) error {
	body, err := json.Marshal(map[string]any{"Name": name, "Value": value, "Type": "SecureString", "Overwrite": true})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "AmazonSSM.PutParameter")
	cfg := Config(endpoint)
	credentials, err := cfg.Credentials.Retrieve(ctx)
	if err != nil {
		return err
	}
	if err := v4.NewSigner().SignHTTP(ctx, credentials, req, fmt.Sprintf("%x", sha256.Sum256(body)), "ssm", region, time.Now()); err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("awslocal: put the parameter %s: status %d", name, resp.StatusCode)
	}
	return nil
}

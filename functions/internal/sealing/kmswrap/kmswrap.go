// Package kmswrap encrypts the private keyset for webhook secrets with AWS KMS. It is separate from package sealing, so that functions
// that open no secrets do not contain the KMS client.
package kmswrap

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/mcp-events/mcpevents/shared/platform/fault"
)

// KMS is a [sealing.Wrapper] that encrypts with one key in AWS KMS.
type KMS struct {
	Client *kms.Client
	Key    string // ARN or id of the KMS key
}

// purpose is the KMS encryption context of the keyset. The policies in template.yaml allow no other encryption context.
var purpose = map[string]string{"purpose": "mcpevents webhook keyset"}

// Wrap encrypts at most 4,096 bytes.
func (k KMS) Wrap(ctx context.Context, clear []byte) ([]byte, error) {
	out, err := k.Client.Encrypt(ctx, &kms.EncryptInput{KeyId: &k.Key, Plaintext: clear, EncryptionContext: purpose})
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "wrap the private keyset")
	}
	return out.CiphertextBlob, nil
}

// Unwrap decrypts the result of Wrap.
func (k KMS) Unwrap(ctx context.Context, wrapped []byte) ([]byte, error) {
	out, err := k.Client.Decrypt(ctx, &kms.DecryptInput{KeyId: &k.Key, CiphertextBlob: wrapped, EncryptionContext: purpose})
	if err != nil {
		return nil, fault.Wrap(fault.Unavailable, err, "unwrap the private keyset")
	}
	return out.Plaintext, nil
}

package kmswrap_test

import (
	"os"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/kms"

	"github.com/mcp-events/mcpevents/functions/internal/sealing/kmswrap"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMain(m *testing.M) { os.Exit(awslocal.Main(m)) }

func TestWhatIsWrappedOpensForItsPurposeOnly(t *testing.T) {
	client := kms.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.MiniStack).MiniStack))
	made := expect.Value(client.CreateKey(t.Context(), &kms.CreateKeyInput{}))(t)
	w := kmswrap.KMS{Client: client, Key: *made.KeyMetadata.Arn}
	wrapped := expect.Value(w.Wrap(t.Context(), []byte("keyset")))(t)
	expect.Equal(t, "the text", string(expect.Value(w.Unwrap(t.Context(), wrapped))(t)), "keyset")
	// Data that was wrapped for another purpose cannot be unwrapped.
	other := expect.Value(client.Encrypt(t.Context(), &kms.EncryptInput{KeyId: &w.Key, Plaintext: []byte("x"), EncryptionContext: map[string]string{"purpose": "another"}}))(t)
	expect.Fault(t, "the call", expect.ErrOf(w.Unwrap(t.Context(), other.CiphertextBlob)), fault.Unavailable)
}

// Package resource creates the template's resources at an AWS endpoint: tables, queues, keys, and services that send
// to queues. It reuses existing resources, so that data survives a restart of the local runner.
//
// The structs contain every property that the deployment uses. Raw JSON is accepted but ignored, because it makes no
// difference to programs on an emulator (encryption, tags, backups, policies). Package template refuses properties
// that are not in a struct.
package resource

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/eventbridge"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/sns"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/smithy-go"
)

// Clients are clients of the services. KMS is needed only for templates with a key, and Events and SNS only for those
// with a rule or a subscription.
type Clients struct {
	DynamoDB *dynamodb.Client
	SQS      *sqs.Client
	KMS      *kms.Client
	Events   *eventbridge.Client
	SNS      *sns.Client
}

// ignored is a property without an effect on emulators.
type ignored = json.RawMessage

// isCode reports whether err is an error of a service with one of the codes.
func isCode(err error, codes ...string) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	got := api.ErrorCode()
	if _, name, ok := strings.Cut(got, "#"); ok { // some emulators return the qualified name
		got = name
	}
	return slices.Contains(codes, got)
}

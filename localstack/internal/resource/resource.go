// Package resource creates what the template declares at an AWS endpoint: tables,
// queues, keys, and what sends to queues. What exists already is used again, so that data outlives the
// local runner.
//
// The property structs name every property that the deployment uses. Those kept
// as raw JSON are accepted and left to the deployment, for they change nothing that a
// program sees on an emulator (encryption, tags, backups, policies); one that
// is not named at all is refused by localstack/internal/template.
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

// Clients reach the services. KMS is used only by templates that have a key, Events and SNS
// only by those that have a rule or a subscription.
type Clients struct {
	DynamoDB *dynamodb.Client
	SQS      *sqs.Client
	KMS      *kms.Client
	Events   *eventbridge.Client
	SNS      *sns.Client
}

// ignored is a property that the emulators have no use for.
type ignored = json.RawMessage

// isCode reports whether err is an error of a service with one of the codes.
func isCode(err error, codes ...string) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	got := api.ErrorCode()
	if _, name, ok := strings.Cut(got, "#"); ok { // some emulators give the shape's full name
		got = name
	}
	return slices.Contains(codes, got)
}

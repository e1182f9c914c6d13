package resource

import (
	"context"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"

	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

// Table contains the properties of an AWS::DynamoDB::Table.
type Table struct {
	TableName            string
	BillingMode          string
	AttributeDefinitions []struct{ AttributeName, AttributeType string }
	KeySchema            []struct{ AttributeName, KeyType string }

	TimeToLiveSpecification *struct {
		AttributeName string
		Enabled       template.Bool
	}

	PointInTimeRecoverySpecification, DeletionProtectionEnabled, SSESpecification, TableClass, Tags ignored
}

// Keys returns the names of the key attributes, the partition key first, as DynamoDB requires it.
func (t Table) Keys() (names []string) {
	for _, k := range t.KeySchema {
		names = append(names, k.AttributeName)
	}
	return names
}

// Create creates the table, or finds the existing one. It returns the table's ARN.
func (t Table) Create(ctx context.Context, c Clients, name string) (arn string, err error) {
	in := &dynamodb.CreateTableInput{TableName: &name, BillingMode: types.BillingModePayPerRequest}
	for _, a := range t.AttributeDefinitions {
		in.AttributeDefinitions = append(in.AttributeDefinitions, types.AttributeDefinition{
			AttributeName: aws.String(a.AttributeName), AttributeType: types.ScalarAttributeType(a.AttributeType),
		})
	}
	for _, k := range t.KeySchema {
		in.KeySchema = append(in.KeySchema, types.KeySchemaElement{
			AttributeName: aws.String(k.AttributeName), KeyType: types.KeyType(k.KeyType),
		})
	}
	if _, err := c.DynamoDB.CreateTable(ctx, in); err != nil && !isCode(err, "ResourceInUseException") {
		return "", fmt.Errorf("create table %s: %w", name, err)
	}
	wait := dynamodb.NewTableExistsWaiter(c.DynamoDB, func(o *dynamodb.TableExistsWaiterOptions) {
		o.MinDelay, o.MaxDelay = 20*time.Millisecond, time.Second
	})
	out, err := wait.WaitForOutput(ctx, &dynamodb.DescribeTableInput{TableName: &name}, time.Minute)
	if err != nil {
		return "", fmt.Errorf("wait for table %s: %w", name, err)
	}
	if err := t.expire(ctx, c, name); err != nil {
		return "", fmt.Errorf("set the time to live of table %s: %w", name, err)
	}
	return aws.ToString(out.Table.TableArn), nil
}

func (t Table) expire(ctx context.Context, c Clients, name string) error {
	ttl := t.TimeToLiveSpecification
	if ttl == nil || !bool(ttl.Enabled) {
		return nil
	}
	now, err := c.DynamoDB.DescribeTimeToLive(ctx, &dynamodb.DescribeTimeToLiveInput{TableName: &name})
	if err != nil {
		return err
	}
	if d := now.TimeToLiveDescription; d != nil && aws.ToString(d.AttributeName) == ttl.AttributeName {
		return nil
	}
	_, err = c.DynamoDB.UpdateTimeToLive(ctx, &dynamodb.UpdateTimeToLiveInput{
		TableName:               &name,
		TimeToLiveSpecification: &types.TimeToLiveSpecification{AttributeName: &ttl.AttributeName, Enabled: aws.Bool(true)},
	})
	return err
}

// DeleteTable removes a table with its data.
func DeleteTable(ctx context.Context, c Clients, name string) error {
	if _, err := c.DynamoDB.DeleteTable(ctx, &dynamodb.DeleteTableInput{TableName: &name}); err != nil {
		return fmt.Errorf("delete table %s: %w", name, err)
	}
	return nil
}

// TableKeys returns the names of the key attributes of a table, the partition key first.
func TableKeys(ctx context.Context, c Clients, name string) (keys []string, err error) {
	out, err := c.DynamoDB.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &name})
	if err != nil {
		return nil, fmt.Errorf("describe table %s: %w", name, err)
	}
	for _, k := range out.Table.KeySchema {
		keys = append(keys, aws.ToString(k.AttributeName))
	}
	return keys, nil
}

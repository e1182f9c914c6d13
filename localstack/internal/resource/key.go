package resource

import (
	"context"
	"errors"
	"fmt"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/kms"
	"github.com/aws/aws-sdk-go-v2/service/kms/types"
)

// Key contains the properties of an AWS::KMS::Key. Only symmetric encryption keys are supported.
type Key struct {
	Description string
	MultiRegion bool

	Enabled, EnableKeyRotation, KeyPolicy, KeySpec, KeyUsage, PendingWindowInDays, Tags ignored
}

// Alias contains the properties of an AWS::KMS::Alias.
type Alias struct {
	AliasName   string
	TargetKeyId string
}

// Create creates the key, or finds the one that was created under the name before. It returns the key's id and ARN.
func (k Key) Create(ctx context.Context, c Clients, name string) (id, arn string, err error) {
	if c.KMS == nil {
		return "", "", errors.New("the template has a KMS key, but there is no endpoint for KMS")
	}
	alias := "alias/" + name
	found, err := c.KMS.DescribeKey(ctx, &kms.DescribeKeyInput{KeyId: &alias})
	if err == nil {
		return aws.ToString(found.KeyMetadata.KeyId), aws.ToString(found.KeyMetadata.Arn), nil
	}
	if !isCode(err, "NotFoundException") {
		return "", "", fmt.Errorf("look for key %s: %w", name, err)
	}
	made, err := c.KMS.CreateKey(ctx, &kms.CreateKeyInput{
		Description: &k.Description, KeyUsage: types.KeyUsageTypeEncryptDecrypt, MultiRegion: &k.MultiRegion,
	})
	if err != nil {
		return "", "", fmt.Errorf("create key %s: %w", name, err)
	}
	id, arn = aws.ToString(made.KeyMetadata.KeyId), aws.ToString(made.KeyMetadata.Arn)
	return id, arn, Alias{AliasName: alias, TargetKeyId: id}.Create(ctx, c)
}

// DeleteKey schedules the deletion of a key that [Key.Create] created under a name. The name can then be used again.
func DeleteKey(ctx context.Context, c Clients, name, id string) error {
	if err := (Alias{AliasName: "alias/" + name}).Delete(ctx, c); err != nil {
		return err
	}
	if _, err := c.KMS.ScheduleKeyDeletion(ctx, &kms.ScheduleKeyDeletionInput{KeyId: &id}); err != nil {
		return fmt.Errorf("delete key %s: %w", name, err)
	}
	return nil
}

// Create creates the alias, or changes its key.
func (a Alias) Create(ctx context.Context, c Clients) error {
	_, err := c.KMS.CreateAlias(ctx, &kms.CreateAliasInput{AliasName: &a.AliasName, TargetKeyId: &a.TargetKeyId})
	if isCode(err, "AlreadyExistsException") {
		_, err = c.KMS.UpdateAlias(ctx, &kms.UpdateAliasInput{AliasName: &a.AliasName, TargetKeyId: &a.TargetKeyId})
	}
	if err != nil {
		return fmt.Errorf("create %s: %w", a.AliasName, err)
	}
	return nil
}

// Delete removes the alias.
func (a Alias) Delete(ctx context.Context, c Clients) error {
	if _, err := c.KMS.DeleteAlias(ctx, &kms.DeleteAliasInput{AliasName: &a.AliasName}); err != nil {
		return fmt.Errorf("delete %s: %w", a.AliasName, err)
	}
	return nil
}

package backup_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/internal/backup"
	"github.com/mcp-events/mcpevents/test/awslocal"
	"github.com/mcp-events/mcpevents/test/expect"
)

func TestMain(m *testing.M) { os.Exit(awslocal.Main(m)) }

const (
	here, there = "us-east-1", "eu-west-1"
	role        = `"IamRoleArn":"arn:aws:iam::000000000000:role/backup"`
	key         = "arn:aws:kms:eu-west-1:000000000000:key/mrk-1"
)

// api calls the API of AWS Backup.
type api struct {
	*testing.T
	*backup.Server
}

// call sends a request to a Region and returns the response, of which an error has the member Code.
func (a api) call(region, request, body string) map[string]any {
	a.Helper()
	method, path, _ := strings.Cut(request, " ")
	r := httptest.NewRequestWithContext(a.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test/20261128/"+region+"/backup/aws4_request, SignedHeaders=host, Signature=0")
	w := httptest.NewRecorder()
	a.ServeHTTP(w, r)
	var out map[string]any
	if err := json.NewDecoder(w.Body).Decode(&out); err != nil {
		a.Fatalf("%s: %d %v", request, w.Code, err)
	}
	if code, failed := out["Code"]; failed != (w.Code == http.StatusBadRequest) || failed && w.Header().Get("X-Amzn-Errortype") != code {
		a.Errorf("%s: got status %d for %v", request, w.Code, out)
	}
	return out
}

func (a api) fails(want, region, request, body string) {
	a.Helper()
	if got := a.call(region, request, body); got["Code"] != want {
		a.Errorf("%s in %s: got %v, want %s", request, region, got, want)
	}
}

// does sends a request that succeeds, and returns a member of the response.
func (a api) does(member, region, request, body string) string {
	a.Helper()
	out := a.call(region, request, body)
	value, _ := out[member].(string)
	if out["Code"] != nil || member != "" && value == "" {
		a.Fatalf("%s in %s: got %v", request, region, out)
	}
	return value
}

// finishes reads the state of a job until it is complete.
func (a api) finishes(region, request string) map[string]any {
	a.Helper()
	a.does("", region, request, "")
	return a.call(region, request, "")
}

func TestABackupIsRestoredWhereACopyIs(t *testing.T) {
	db := dynamodb.NewFromConfig(awslocal.Config(awslocal.Start(t, awslocal.DynamoDB).DynamoDB))
	name := "Source-" + uuid.NewString()
	made := expect.Value(db.CreateTable(t.Context(), &dynamodb.CreateTableInput{
		TableName: &name, BillingMode: types.BillingModePayPerRequest,
		KeySchema:            []types.KeySchemaElement{{AttributeName: aws.String("pk"), KeyType: types.KeyTypeHash}},
		AttributeDefinitions: []types.AttributeDefinition{{AttributeName: aws.String("pk"), AttributeType: types.ScalarAttributeTypeS}},
	}))(t)
	put := func(pk string) {
		t.Helper()
		expect.OK(t, expect.ErrOf(db.PutItem(t.Context(), &dynamodb.PutItemInput{TableName: &name, Item: map[string]types.AttributeValue{"pk": &types.AttributeValueMemberS{Value: pk}}})))
	}
	a := api{t, &backup.Server{DB: db, HasKey: func(_ context.Context, region, arn string) bool { return region == there && arn == key }}}
	const notFound, invalid = "ResourceNotFoundException", "InvalidParameterValueException"
	table := `"ResourceArn":"` + *made.TableDescription.TableArn + `"`
	start := `{"BackupVaultName":"v",` + table + `,` + role + `}`

	put("before")
	a.fails(notFound, here, "PUT /backup-jobs", start)
	a.does("BackupVaultArn", here, "PUT /backup-vaults/v", `{}`)
	a.fails("AlreadyExistsException", here, "PUT /backup-vaults/v", `{}`)
	a.fails(notFound, there, "PUT /backup-jobs", start)
	a.fails(notFound, here, "PUT /backup-jobs", `{"BackupVaultName":"v","ResourceArn":"arn:aws:dynamodb:x:000000000000:table/none",`+role+`}`)
	a.fails(invalid, here, "PUT /backup-jobs", `{"BackupVaultName":"v",`+table+`,"IamRoleArn":"me"}`)
	a.fails(invalid, here, "PUT /backup-jobs", `{"Vault":"v"}`)

	// A vault's key must be in the vault's Region.
	a.fails(invalid, here, "PUT /backup-vaults/w", `{"EncryptionKeyArn":"`+key+`"}`)
	a.fails(invalid, there, "PUT /backup-vaults/w", `{"EncryptionKeyArn":"`+key+`2"}`)
	vault := a.does("BackupVaultArn", there, "PUT /backup-vaults/v", `{"EncryptionKeyArn":"`+key+`"}`)

	// A copy needs a complete backup with full management, and a vault.
	copyOf := func(point, to string) string {
		return `{"SourceBackupVaultName":"v","RecoveryPointArn":"` + point + `","DestinationBackupVaultArn":"` + to + `",` + role + `}`
	}
	partial := a.does("RecoveryPointArn", here, "PUT /backup-jobs", start)
	a.fails("InvalidRequestException", here, "PUT /copy-jobs", copyOf(partial, vault))
	a.does("", here, "PUT /account-settings", `{"ResourceTypeManagementPreference":{"DynamoDB":true}}`)
	job := a.does("BackupJobId", here, "PUT /backup-jobs", start)
	put("after")
	a.fails(notFound, there, "GET /backup-jobs/"+job, "")
	running := a.call(here, "GET /backup-jobs/"+job, "")
	expect.Equal(t, "the first state", running["State"], "RUNNING")
	a.fails("InvalidRequestException", here, "PUT /copy-jobs", copyOf(running["RecoveryPointArn"].(string), vault))
	point := a.finishes(here, "GET /backup-jobs/"+job)["RecoveryPointArn"].(string)
	a.fails(notFound, here, "PUT /copy-jobs", copyOf(point, vault+"2"))
	a.fails(notFound, there, "PUT /copy-jobs", copyOf(point, vault))

	// A Region restores only what was copied there.
	restore := func(point, metadata string) string {
		return `{"RecoveryPointArn":"` + point + `","Metadata":{` + metadata + `},` + role + `}`
	}
	target := `"TargetTableName":"` + name + `-restored"`
	a.fails(notFound, there, "PUT /restore-jobs", restore(point, target))
	copying := a.does("CopyJobId", here, "PUT /copy-jobs", copyOf(point, vault))
	incomplete := a.call(there, "GET /backup-vaults/v/recovery-points/", "")["RecoveryPoints"].([]any)[0].(map[string]any)
	expect.Equal(t, "the status before the copy is complete", incomplete["Status"], "CREATING")
	a.fails("InvalidRequestException", there, "PUT /restore-jobs", restore(incomplete["RecoveryPointArn"].(string), target))
	copied := a.finishes(here, "GET /copy-jobs/"+copying)["CopyJob"].(map[string]any)
	expect.Equal(t, "the state of the copy", copied["State"], "COMPLETED")
	list := a.call(there, "GET /backup-vaults/v/recovery-points/", "")["RecoveryPoints"].([]any)
	if len(list) != 1 || list[0].(map[string]any)["RecoveryPointArn"] != copied["DestinationRecoveryPointArn"] || !strings.Contains(copied["DestinationRecoveryPointArn"].(string), there) {
		t.Errorf("the other Region has %v, want the copy %v", list, copied)
	}
	point = copied["DestinationRecoveryPointArn"].(string)
	for _, metadata := range []string{
		``, target + `,"Colour":"red"`, target + `,"encryptionType":"Strong"`, target + `,"encryptionType":"Default","kmsMasterKeyArn":"` + key + `"`,
		target + `,"encryptionType":"KMS","kmsMasterKeyArn":"` + strings.Replace(key, there, here, 1) + `"`, `"targetTableName":"` + name + `"`,
	} {
		a.fails(invalid, there, "PUT /restore-jobs", restore(point, metadata))
	}
	a.fails(notFound, here, "PUT /restore-jobs", restore(point, target))
	done := a.finishes(there, "GET /restore-jobs/"+a.does("RestoreJobId", there, "PUT /restore-jobs", restore(point, target+`,"encryptionType":"KMS","kmsMasterKeyArn":"`+key+`"`)))
	if arn, _ := done["CreatedResourceArn"].(string); done["Status"] != "COMPLETED" || !strings.HasSuffix(arn, "table/"+name+"-restored") {
		t.Errorf("got %v, want the restored table", done)
	}
	for range 4 { // so that there are six
		a.does("BackupJobId", here, "PUT /backup-jobs", start)
	}
	const all = "GET /backup-vaults/v/recovery-points/"
	first := a.call(here, all, "")
	second := a.call(here, all+"?nextToken="+first["NextToken"].(string), "")
	if n, m := len(first["RecoveryPoints"].([]any)), len(second["RecoveryPoints"].([]any)); n != 5 || m != 1 || second["NextToken"] != nil {
		t.Errorf("got pages of %d and %d recovery points, then %v, want 5 and 1", n, m, second["NextToken"])
	}
	items, err := db.Scan(t.Context(), &dynamodb.ScanInput{TableName: aws.String(name + "-restored")})
	if err != nil || len(items.Items) != 1 || items.Items[0]["pk"].(*types.AttributeValueMemberS).Value != "before" {
		t.Errorf("the restored table has %v, %v, want the item from before the backup", items.Items, err)
	}
	w := httptest.NewRecorder()
	a.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPut, "/backup-jobs", strings.NewReader(start)))
	expect.Equal(t, "the status without a signature", w.Code, http.StatusBadRequest)
}

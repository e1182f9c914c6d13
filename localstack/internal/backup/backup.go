// Package backup simulates AWS Backup for DynamoDB tables: vaults in several Regions, backups, copies to another Region, and
// restores. No emulator that our tests use has it.
//
// A Region sees only its own vaults and recovery points, so that a backup can be restored elsewhere only if it was copied
// there. The package refuses everything that it does not know, as the packages template and cloudfront do. The tables are
// in the emulator of DynamoDB, which has no Regions.
package backup

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/google/uuid"
)

// Account is the account that owns everything.
const Account = "000000000000"

// Server serves the API of AWS Backup for all Regions. It is safe for concurrent use.
type Server struct {
	// DB has the tables.
	DB *dynamodb.Client
	// HasKey reports whether a KMS key exists in a Region.
	HasKey func(ctx context.Context, region, arn string) bool

	mu      sync.Mutex
	vaults  map[string][]*point // by ARN
	jobs    map[string]*job     // by id
	managed map[string]bool     // Regions with full management of DynamoDB's backups, which copies need
	mux     *http.ServeMux      // the operations
}

// point is a recovery point: the content of a table at one moment.
type point struct {
	arn, table string // table is the ARN of the table
	managed    bool
	created    time.Time
	keys       []types.KeySchemaElement
	attributes []types.AttributeDefinition
	items      []map[string]types.AttributeValue
}

// job is a backup, a copy or a restore. It is done when its state is read for the second time, so that callers must wait.
type job struct {
	region  string
	created string // ARN of the recovery point or table
	reads   int
}

func (j *job) done() bool { return j.reads > 1 }

func (j *job) state() string {
	if j.reads++; j.done() {
		return "COMPLETED"
	}
	return "RUNNING"
}

// fault is an error response.
type fault struct{ code, message string }

func (f *fault) Error() string { return f.code + ": " + f.message }

func missing(format string, args ...any) error {
	return &fault{"ResourceNotFoundException", fmt.Sprintf(format, args...)}
}

func invalid(format string, args ...any) error {
	return &fault{"InvalidParameterValueException", fmt.Sprintf(format, args...)}
}

// request is a request of the API.
type request struct {
	*http.Request
	region string
}

// decode decodes the body and refuses members that v does not have.
func (r request) decode(v any) error {
	dec := json.NewDecoder(r.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return invalid("%v", err)
	}
	return nil
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mux == nil {
		s.vaults, s.jobs, s.managed = map[string][]*point{}, map[string]*job{}, map[string]bool{}
		s.mux = s.operations()
	}
	s.mux.ServeHTTP(w, r)
}

// operations returns the handlers of all operations. Their callers hold the lock.
func (s *Server) operations() *http.ServeMux {
	mux := http.NewServeMux()
	for pattern, do := range map[string]func(request) (any, error){
		"PUT /account-settings":                      s.updateRegionSettings,
		"PUT /backup-vaults/{name}":                  s.createVault,
		"PUT /backup-jobs":                           s.startBackup,
		"GET /backup-jobs/{id}":                      s.describeBackup,
		"PUT /copy-jobs":                             s.startCopy,
		"GET /copy-jobs/{id}":                        s.describeCopy,
		"GET /backup-vaults/{name}/recovery-points/": s.listPoints,
		"PUT /restore-jobs":                          s.startRestore,
		"GET /restore-jobs/{id}":                     s.describeRestore,
	} {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { answer(w, r, do) })
	}
	return mux
}

// answer calls an operation for the Region for which the request was signed.
func answer(w http.ResponseWriter, r *http.Request, do func(request) (any, error)) {
	w.Header().Set("Content-Type", "application/json")
	var out any
	err := error(&fault{"UnrecognizedClientException", "the request is not signed for this service"})
	if scope := strings.Split(r.Header.Get("Authorization"), "/"); len(scope) > 3 && scope[3] == "backup" {
		out, err = do(request{r, scope[2]})
	}
	if err == nil {
		_ = json.NewEncoder(w).Encode(out) // fails if the caller has disconnected
		return
	}
	f, ok := err.(*fault)
	if !ok {
		f = &fault{"ServiceUnavailableException", err.Error()}
	}
	w.Header().Set("X-Amzn-Errortype", f.code)
	w.WriteHeader(http.StatusBadRequest)
	_ = json.NewEncoder(w).Encode(map[string]string{"Code": f.code, "Message": f.message})
}

func arn(region, kind, id string) string {
	return "arn:aws:backup:" + region + ":" + Account + ":" + kind + ":" + id
}

// vault returns the ARN of a vault in the Region of the request.
func (s *Server) vault(r request, name string) (string, error) {
	id := arn(r.region, "backup-vault", name)
	if _, ok := s.vaults[id]; !ok {
		return "", missing("there is no vault %s in %s", name, r.region)
	}
	return id, nil
}

func checkRole(role string) error {
	if !strings.HasPrefix(role, "arn:aws:iam::"+Account+":role/") {
		return invalid("%q is not the ARN of a role of this account", role)
	}
	return nil
}

func (s *Server) checkKey(r request, key string) error {
	if parts := strings.Split(key, ":"); len(parts) < 6 || parts[2] != "kms" || parts[3] != r.region || s.HasKey == nil || !s.HasKey(r.Context(), r.region, key) {
		return invalid("there is no key %s in %s", key, r.region)
	}
	return nil
}

func (s *Server) updateRegionSettings(r request) (any, error) {
	var in struct{ ResourceTypeOptInPreference, ResourceTypeManagementPreference map[string]bool }
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if v, ok := in.ResourceTypeManagementPreference["DynamoDB"]; ok {
		s.managed[r.region] = v
	}
	return struct{}{}, nil
}

func (s *Server) createVault(r request) (any, error) {
	var in struct{ EncryptionKeyArn, CreatorRequestId string }
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	if in.EncryptionKeyArn != "" {
		if err := s.checkKey(r, in.EncryptionKeyArn); err != nil {
			return nil, err
		}
	}
	id := arn(r.region, "backup-vault", r.PathValue("name"))
	if _, ok := s.vaults[id]; ok {
		return nil, &fault{"AlreadyExistsException", "the vault exists"}
	}
	s.vaults[id] = nil
	return map[string]any{"BackupVaultName": r.PathValue("name"), "BackupVaultArn": id, "CreationDate": seconds(time.Now())}, nil
}

func seconds(t time.Time) float64 { return float64(t.UnixMicro()) / 1e6 }

// begin records a job.
func (s *Server) begin(r request, created string) string {
	id := uuid.NewString()
	s.jobs[id] = &job{region: r.region, created: created}
	return id
}

func (s *Server) describe(r request) (*job, error) {
	j := s.jobs[r.PathValue("id")]
	if j == nil || j.region != r.region {
		return nil, missing("there is no job %s in %s", r.PathValue("id"), r.region)
	}
	return j, nil
}

func (s *Server) startBackup(r request) (any, error) {
	var in struct{ BackupVaultName, ResourceArn, IamRoleArn, IdempotencyToken string }
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	vault, err := s.vault(r, in.BackupVaultName)
	if err != nil {
		return nil, err
	}
	if err := checkRole(in.IamRoleArn); err != nil {
		return nil, err
	}
	p := &point{arn: arn(r.region, "recovery-point", uuid.NewString()), table: in.ResourceArn, managed: s.managed[r.region], created: time.Now()}
	if err := s.read(r.Context(), p); err != nil {
		return nil, err
	}
	s.vaults[vault] = append(s.vaults[vault], p)
	return map[string]any{"BackupJobId": s.begin(r, p.arn), "RecoveryPointArn": p.arn, "CreationDate": seconds(p.created)}, nil
}

// read reads the table of a recovery point.
func (s *Server) read(ctx context.Context, p *point) error {
	_, name, ok := strings.Cut(p.table, ":table/")
	if !ok {
		return invalid("%q is not the ARN of a table", p.table)
	}
	out, err := s.DB.DescribeTable(ctx, &dynamodb.DescribeTableInput{TableName: &name})
	if err != nil || aws.ToString(out.Table.TableArn) != p.table {
		return missing("there is no table %s", p.table)
	}
	p.keys, p.attributes = out.Table.KeySchema, out.Table.AttributeDefinitions
	pages := dynamodb.NewScanPaginator(s.DB, &dynamodb.ScanInput{TableName: &name, ConsistentRead: aws.Bool(true)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		p.items = append(p.items, page.Items...)
	}
	return nil
}

func (s *Server) describeBackup(r request) (any, error) {
	j, err := s.describe(r)
	if err != nil {
		return nil, err
	}
	return map[string]any{"BackupJobId": r.PathValue("id"), "State": j.state(), "RecoveryPointArn": j.created}, nil
}

// find returns a recovery point of a vault, or of any vault of the Region for "".
func (s *Server) find(r request, vault, id string) (*point, error) {
	for name, points := range s.vaults {
		if vault != name && (vault != "" || !strings.HasPrefix(name, arn(r.region, "backup-vault", ""))) {
			continue
		}
		for _, p := range points {
			if p.arn == id {
				return p, nil
			}
		}
	}
	return nil, missing("there is no recovery point %s in %s", id, r.region)
}

func (s *Server) startCopy(r request) (any, error) {
	var in struct{ RecoveryPointArn, SourceBackupVaultName, DestinationBackupVaultArn, IamRoleArn, IdempotencyToken string }
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	vault, err := s.vault(r, in.SourceBackupVaultName)
	if err != nil {
		return nil, err
	}
	if err := checkRole(in.IamRoleArn); err != nil {
		return nil, err
	}
	p, err := s.find(r, vault, in.RecoveryPointArn)
	if err != nil {
		return nil, err
	}
	if _, ok := s.vaults[in.DestinationBackupVaultArn]; !ok {
		return nil, missing("there is no vault %s", in.DestinationBackupVaultArn)
	}
	if !p.managed {
		return nil, &fault{"InvalidRequestException", "only backups with full management of DynamoDB can be copied to another Region"}
	}
	if s.status(p) != "COMPLETED" {
		return nil, &fault{"InvalidRequestException", "the backup is not complete"}
	}
	copied := *p
	copied.created = time.Now()
	copied.arn = arn(strings.Split(in.DestinationBackupVaultArn, ":")[3], "recovery-point", uuid.NewString())
	s.vaults[in.DestinationBackupVaultArn] = append(s.vaults[in.DestinationBackupVaultArn], &copied)
	return map[string]any{"CopyJobId": s.begin(r, copied.arn), "CreationDate": seconds(time.Now())}, nil
}

func (s *Server) describeCopy(r request) (any, error) {
	j, err := s.describe(r)
	if err != nil {
		return nil, err
	}
	return map[string]any{"CopyJob": map[string]any{"CopyJobId": r.PathValue("id"), "State": j.state(), "DestinationRecoveryPointArn": j.created}}, nil
}

// status returns the status of a recovery point, which is complete when its job is.
func (s *Server) status(p *point) string {
	for _, j := range s.jobs {
		if j.created == p.arn && !j.done() {
			return "CREATING"
		}
	}
	return "COMPLETED"
}

// pageSize is the number of recovery points in a page of a list. On AWS it is 1,000.
const pageSize = 5

func (s *Server) listPoints(r request) (any, error) {
	vault, err := s.vault(r, r.PathValue("name"))
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, p := range s.vaults[vault] {
		if of := r.FormValue("resourceArn"); of == "" || of == p.table {
			_, name, _ := strings.Cut(p.table, ":table/")
			list = append(list, map[string]any{
				"RecoveryPointArn": p.arn, "ResourceArn": p.table, "ResourceName": name, "ResourceType": "DynamoDB",
				"CreationDate": seconds(p.created), "Status": s.status(p),
			})
		}
	}
	from, _ := strconv.Atoi(r.FormValue("nextToken")) // 0 for the first page
	if from = min(max(from, 0), len(list)); len(list)-from > pageSize {
		return map[string]any{"RecoveryPoints": list[from : from+pageSize], "NextToken": strconv.Itoa(from + pageSize)}, nil
	}
	return map[string]any{"RecoveryPoints": list[from:]}, nil
}

func (s *Server) startRestore(r request) (any, error) {
	var in struct {
		RecoveryPointArn, IamRoleArn, IdempotencyToken, ResourceType string
		Metadata                                                     map[string]string
	}
	if err := r.decode(&in); err != nil {
		return nil, err
	}
	p, err := s.find(r, "", in.RecoveryPointArn)
	if err != nil {
		return nil, err
	}
	if s.status(p) != "COMPLETED" {
		return nil, &fault{"InvalidRequestException", "the recovery point is not complete"}
	}
	if err := checkRole(in.IamRoleArn); err != nil {
		return nil, err
	}
	metadata := map[string]string{}
	for name, v := range in.Metadata {
		if name = strings.ToLower(name); !slices.Contains([]string{"targettablename", "encryptiontype", "kmsmasterkeyarn"}, name) {
			return nil, invalid("metadata %q is not known", name)
		}
		metadata[name] = v // the names are not case-sensitive
	}
	table, key := metadata["targettablename"], metadata["kmsmasterkeyarn"]
	switch kind := metadata["encryptiontype"]; {
	case table == "":
		return nil, invalid("targetTableName is missing")
	case kind == "KMS" && key != "":
		if err := s.checkKey(r, key); err != nil {
			return nil, err
		}
	case kind != "" && kind != "Default" && kind != "KMS" || kind != "KMS" && key != "":
		return nil, invalid("encryptionType %q does not fit", kind)
	}
	created, err := s.write(r.Context(), p, table)
	if err != nil {
		return nil, err
	}
	return map[string]any{"RestoreJobId": s.begin(r, created)}, nil
}

// write writes a recovery point into a new table and returns its ARN. Like AWS, it does not restore the table's expiry,
// backups and protection.
func (s *Server) write(ctx context.Context, p *point, table string) (string, error) {
	out, err := s.DB.CreateTable(ctx, &dynamodb.CreateTableInput{
		TableName: &table, KeySchema: p.keys, AttributeDefinitions: p.attributes, BillingMode: types.BillingModePayPerRequest,
	})
	if err != nil {
		return "", invalid("create table %s: %v", table, err)
	}
	for _, item := range p.items {
		if _, err := s.DB.PutItem(ctx, &dynamodb.PutItemInput{TableName: &table, Item: item}); err != nil {
			return "", err
		}
	}
	return aws.ToString(out.TableDescription.TableArn), nil
}

func (s *Server) describeRestore(r request) (any, error) {
	j, err := s.describe(r)
	if err != nil {
		return nil, err
	}
	return map[string]any{"RestoreJobId": r.PathValue("id"), "Status": j.state(), "CreatedResourceArn": j.created}, nil
}

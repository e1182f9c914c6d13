// Package parameters reads secrets from SSM Parameter Store. It does not use the SDK's client for SSM, which would make the binary of
// every function larger.
package parameters

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/refresh"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

const (
	// keep is how long a value is used before it is read from SSM again.
	keep = 5 * time.Minute
	// keepStale is how long the last value is used while SSM is unavailable.
	keepStale = time.Hour
	// keepFault is the pause after a failed read. Without the pause, each request of a client could send a request to SSM.
	keepFault = 5 * time.Second
	// timeout limits the duration of one attempt to read a parameter. The constant tries is the maximum number of attempts.
	timeout = 3 * time.Second
	tries   = 3
)

// maxAnswer limits the size of a response of SSM, in bytes. The value in a response has at most 8 KB.
const maxAnswer = 64 << 10

// Store looks up secrets in SSM Parameter Store or in the environment. It is safe for concurrent use.
type Store struct {
	aws      aws.Config
	endpoint string
	signer   *v4.Signer
	now      func() time.Time
	log      *slog.Logger

	mu   sync.Mutex // prevents two callers from creating the same parameter
	held *bounded.Map[string, *refresh.Value[parameter]]
}

// maxHeld limits the number of parameters in memory. Without the limit, the number could grow with each new configuration, because each
// configuration may name other parameters.
const maxHeld = 1024

// parameter is a response of SSM. It has either a value, or an error that another attempt would not change, for example because the
// parameter does not exist.
type parameter struct {
	value string
	err   error
}

// New creates a Store. It does not send requests yet.
func New(cfg aws.Config, log *slog.Logger) *Store {
	domain := "amazonaws.com"
	if strings.HasPrefix(cfg.Region, "cn-") {
		domain += ".cn"
	}
	return &Store{
		aws: cfg, signer: v4.NewSigner(), now: time.Now, log: log, held: bounded.NewMap[string, *refresh.Value[parameter]](maxHeld),
		endpoint: strings.TrimSuffix(cmp.Or(
			os.Getenv(awsx.EnvEndpoint+"_SSM"), aws.ToString(cfg.BaseEndpoint), "https://ssm."+cfg.Region+"."+domain,
		), "/") + "/",
	}
}

// Secret looks up the value that v refers to: a parameter in SSM Parameter Store, or an environment variable. If the parameter does not
// exist, or cannot be read with our permissions, the error is of kind fault.Invalid.
func (s *Store) Secret(ctx context.Context, v secret.Value) (string, error) {
	name, ok := v.Parameter()
	if !ok {
		return secret.FromEnvironment(ctx, v)
	}
	held := s.hold(name)
	p, err := held.Get(ctx)
	if err == nil && p.err != nil {
		p, err = held.Within(ctx, keepFault)
	}
	if ctx.Err() != nil && err != nil {
		return "", err
	}
	if err = cmp.Or(err, p.err); err != nil {
		return "", fault.Wrap(fault.Invalid, err, "read the parameter %s, which the configuration refers to", name)
	}
	return p.value, nil
}

func (s *Store) hold(name string) *refresh.Value[parameter] {
	s.mu.Lock()
	defer s.mu.Unlock()
	held, ok := s.held.Get(name)
	if !ok {
		held = refresh.New(refresh.Options{
			Name: "the parameter " + name, Fresh: keep, Stale: keepStale, Backoff: keepFault, EmptyBackoff: keepFault,
			Timeout: tries*timeout + time.Second, Now: s.now,
		}, func(ctx context.Context, _ parameter) (parameter, error) { return s.refresh(ctx, name) })
		s.held.Put(name, held)
	}
	return held
}

// refresh reads a parameter from SSM. It returns an error only if another attempt may succeed. Other errors are in the returned
// parameter.
func (s *Store) refresh(ctx context.Context, name string) (parameter, error) {
	value, err := s.get(ctx, name)
	if fault.Is(err, fault.Unavailable) {
		s.log.WarnContext(ctx, "parameter not read", "parameter", name, "error", err)
		return parameter{}, err
	}
	return parameter{value, err}, nil
}

// get reads the value of a parameter from SSM. It repeats attempts that failed temporarily.
func (s *Store) get(ctx context.Context, name string) (value string, err error) {
	for try := range tries {
		if try > 0 && periodic.Sleep(ctx, 100*time.Millisecond<<try) != nil {
			return "", err
		}
		if value, err = s.ask(ctx, name); !fault.Is(err, fault.Unavailable) {
			return value, err
		}
	}
	return value, err
}

// ask sends one GetParameter request to SSM, with the protocol JSON 1.1.
func (s *Store) ask(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, _ := json.Marshal(map[string]any{"Name": name, "WithDecryption": true})
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.endpoint, bytes.NewReader(body))
	if err != nil {
		return "", fault.Wrap(fault.Internal, err, "make a request to SSM")
	}
	req.Header.Set("Content-Type", "application/x-amz-json-1.1")
	req.Header.Set("X-Amz-Target", "AmazonSSM.GetParameter")
	credentials, err := s.aws.Credentials.Retrieve(ctx)
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "get credentials for SSM")
	}
	hash := sha256.Sum256(body)
	if err := s.signer.SignHTTP(ctx, credentials, req, hex.EncodeToString(hash[:]), "ssm", s.aws.Region, s.now()); err != nil {
		return "", fault.Wrap(fault.Internal, err, "sign a request to SSM")
	}
	resp, err := s.aws.HTTPClient.Do(req)
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "ask SSM")
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", fault.Wrap(fault.Unavailable, err, "read SSM's answer")
	}
	return read(resp.StatusCode, answer)
}

// read returns the value in a response of SSM. An error contains only the type of SSM's error, and not its message.
func read(status int, answer []byte) (string, error) {
	var out struct {
		Parameter struct{ Value string }
		Type      string `json:"__type"`
	}
	err := json.Unmarshal(answer, &out)
	_, kind, qualified := strings.Cut(out.Type, "#")
	if !qualified {
		kind = out.Type
	}
	switch {
	case status == http.StatusOK && err == nil && out.Parameter.Value != "":
		return out.Parameter.Value, nil
	case status >= 500 || status == http.StatusTooManyRequests || kind == "ThrottlingException":
		return "", fault.New(fault.Unavailable, "SSM answered with status %d %.64s", status, kind)
	}
	return "", fault.New(fault.Invalid, "SSM answered with status %d %.64s", status, kind)
}

// Package parameters looks up the secrets of backends in SSM Parameter Store.
//
// The one operation that is needed is written here, signed by the SDK's signer, instead of
// making every function larger by the SDK's client for all of SSM.
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

	"github.com/mcp-events/mcpevents/shared/awsx"
	"github.com/mcp-events/mcpevents/shared/bounded"
	"github.com/mcp-events/mcpevents/shared/config"
	"github.com/mcp-events/mcpevents/shared/fault"
)

const (
	// keep is how long a value is used before it is asked for again.
	keep = 5 * time.Minute
	// keepStale is how long it stands in while SSM does not answer.
	keepStale = time.Hour
	// keepFault is how long a failure is, so that each request of a client is not one to SSM.
	keepFault = 5 * time.Second
	// timeout bounds a try; there are so many.
	timeout = 3 * time.Second
	tries   = 3
)

// maxAnswer bounds what is read of an answer; a value has 8 KB at the most.
const maxAnswer = 64 << 10

// Store looks up settings. It may be used concurrently. Make it with [New].
type Store struct {
	aws      aws.Config
	endpoint string
	signer   *v4.Signer
	now      func() time.Time
	log      *slog.Logger

	mu   sync.Mutex // for one held a parameter
	held *bounded.Map[string, *held]
}

// maxHeld bounds the parameters that are remembered; configurations may name ever others.
const maxHeld = 1024

// held is what is known of a parameter.
type held struct {
	mu    sync.Mutex // held while it is asked for
	value string
	at    time.Time // zero: never read
	err   error     // of the last try
	tried time.Time
}

// New makes a store. It asks nothing yet.
func New(cfg aws.Config, log *slog.Logger) *Store {
	domain := "amazonaws.com"
	if strings.HasPrefix(cfg.Region, "cn-") {
		domain += ".cn"
	}
	return &Store{
		aws: cfg, signer: v4.NewSigner(), now: time.Now, log: log, held: bounded.NewMap[string, *held](maxHeld),
		endpoint: strings.TrimSuffix(cmp.Or(
			os.Getenv(awsx.EnvEndpoint+"_SSM"), aws.ToString(cfg.BaseEndpoint), "https://ssm."+cfg.Region+"."+domain,
		), "/") + "/",
	}
}

// Secret looks a setting up: in Parameter Store if it refers to that, else in the environment. A
// reference to what is not there, or not ours to read, is of kind fault.Invalid.
func (s *Store) Secret(ctx context.Context, v config.Value) (string, error) {
	name, ok := v.Parameter()
	if !ok {
		return v.Resolve(os.LookupEnv)
	}
	s.mu.Lock()
	h, ok := s.held.Get(name)
	if !ok {
		h = &held{}
		s.held.Put(name, h)
	}
	s.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	now := s.now()
	switch {
	case !h.at.IsZero() && now.Sub(h.at) < keep:
		return h.value, nil
	case h.err == nil || now.Sub(h.tried) >= keepFault:
		value, err := s.get(ctx, name)
		if h.err, h.tried = err, now; err == nil {
			h.value, h.at = value, now
			return value, nil
		}
	}
	if fault.Is(h.err, fault.Unavailable) && !h.at.IsZero() && now.Sub(h.at) < keepStale {
		s.log.WarnContext(ctx, "parameter not read", "parameter", name, "error", h.err)
		return h.value, nil
	}
	return "", fault.Wrap(fault.Invalid, h.err, "read the parameter %s, which the configuration refers to", name)
}

// get reads a parameter, and tries again what may pass.
func (s *Store) get(ctx context.Context, name string) (value string, err error) {
	for try := range tries {
		if try > 0 {
			select {
			case <-time.After(100 * time.Millisecond << try):
			case <-ctx.Done():
				return "", err
			}
		}
		if value, err = s.ask(ctx, name); !fault.Is(err, fault.Unavailable) {
			return value, err
		}
	}
	return value, err
}

// ask calls GetParameter (SSM API reference), in the JSON 1.1 protocol.
func (s *Store) ask(ctx context.Context, name string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, _ := json.Marshal(map[string]any{"Name": name, "WithDecryption": true}) // a string and a bool
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

// read takes the value out of an answer. What is wrong is told by its type alone.
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

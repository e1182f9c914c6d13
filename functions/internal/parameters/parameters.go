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
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"golang.org/x/sync/singleflight"

	"github.com/mcp-events/mcpevents/shared/platform/awsx"
	"github.com/mcp-events/mcpevents/shared/platform/bounded"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/periodic"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
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

	asking singleflight.Group // by name
	held   *bounded.Map[string, held]
}

// maxHeld bounds the parameters that are remembered; configurations may name ever others.
const maxHeld = 1024

// held is what is known of a parameter.
type held struct {
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
		aws: cfg, signer: v4.NewSigner(), now: time.Now, log: log, held: bounded.NewMap[string, held](maxHeld),
		endpoint: strings.TrimSuffix(cmp.Or(
			os.Getenv(awsx.EnvEndpoint+"_SSM"), aws.ToString(cfg.BaseEndpoint), "https://ssm."+cfg.Region+"."+domain,
		), "/") + "/",
	}
}

// Secret looks a setting up: in Parameter Store if it refers to that, else in the environment. A
// reference to what is not there, or not ours to read, is of kind fault.Invalid.
func (s *Store) Secret(ctx context.Context, v secret.Value) (string, error) {
	name, ok := v.Parameter()
	if !ok {
		return secret.FromEnvironment(ctx, v)
	}
	h, _ := s.held.Get(name)
	if s.due(h) {
		// Others wait for the same answer, so it does not end with the first caller.
		asking := s.asking.DoChan(name, func() (any, error) { return s.refresh(context.WithoutCancel(ctx), name), nil })
		select {
		case r := <-asking:
			h = r.Val.(held)
		case <-ctx.Done():
			return "", fault.Wrap(fault.Unavailable, ctx.Err(), "wait for the parameter %s", name)
		}
	}
	switch {
	case h.err == nil:
		return h.value, nil
	case fault.Is(h.err, fault.Unavailable) && !h.at.IsZero() && s.now().Sub(h.at) < keepStale:
		s.log.WarnContext(ctx, "parameter not read", "parameter", name, "error", h.err)
		return h.value, nil
	}
	return "", fault.Wrap(fault.Invalid, h.err, "read the parameter %s, which the configuration refers to", name)
}

// due reports that a parameter is to be read: again, or for the first time.
func (s *Store) due(h held) bool {
	now := s.now()
	if h.err != nil {
		return now.Sub(h.tried) >= keepFault
	}
	return h.at.IsZero() || now.Sub(h.at) >= keep
}

// refresh reads a parameter, unless another call just did, and keeps what it found.
func (s *Store) refresh(ctx context.Context, name string) held {
	h, _ := s.held.Get(name)
	if !s.due(h) {
		return h
	}
	h.tried = s.now()
	value, err := s.get(ctx, name)
	if h.err = err; err == nil {
		h.value, h.at = value, h.tried
	}
	s.held.Put(name, h)
	return h
}

// get reads a parameter, and tries again what may pass.
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

package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mcp-events/mcpevents/test/expect"
)

var update = flag.Bool("update", false, "rewrite testdata/vectors.json")

// delivery is a request as it arrived at an endpoint, and the secrets to verify it with.
type delivery struct {
	Name    string            `json:"name"`
	Secrets []string          `json:"secrets"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"` // base64
	// valid says for each secret whether it verifies the delivery.
	valid []bool
}

// TestInterop sends webhooks over HTTP and verifies the received bytes with the Standard Webhooks libraries for Go,
// JavaScript and Python (WHK-04, WHK-06).
func TestInterop(t *testing.T) {
	deliveries := deliver(t)
	file := filepath.Join(t.TempDir(), "deliveries.json")
	expect.OK(t, os.WriteFile(file, expect.Value(json.Marshal(deliveries))(t), 0o600))

	t.Run("WHK-04 the Go library", func(t *testing.T) {
		verdicts := make([][]bool, len(deliveries))
		for i, d := range deliveries {
			h := http.Header{}
			for k, v := range d.Headers {
				h.Set(k, v)
			}
			for _, secret := range d.Secrets {
				verdicts[i] = append(verdicts[i], Verify(h, d.Body, secret) == nil)
			}
		}
		compare(t, deliveries, verdicts)
	})
	t.Run("WHK-04 the JavaScript library", func(t *testing.T) {
		node := program(t, "node")
		modules := installed(t, "javascript", []string{"package.json", "package-lock.json"},
			program(t, "npm"), "ci", "--ignore-scripts", "--no-audit", "--no-fund")
		compare(t, deliveries, run(t, nil, node, filepath.Join("testdata", "interop", "verify.mjs"), modules, file))
	})
	t.Run("WHK-04 the Python library", func(t *testing.T) {
		python := program(t, "python3")
		modules := installed(t, "python", []string{"requirements.txt"},
			python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--target", "lib", "-r", "requirements.txt")
		env := append(os.Environ(), "PYTHONPATH="+filepath.Join(modules, "lib"), "PYTHONDONTWRITEBYTECODE=1")
		compare(t, deliveries, run(t, env, python, filepath.Join("testdata", "interop", "verify.py"), file))
	})
}

// deliver sends one webhook of every kind. It returns each as it arrived, and again with one change.
func deliver(t *testing.T) []delivery {
	t.Helper()
	seen := make(chan captured, 1)
	srv := serve(t, capture(seen))
	key := expect.Value(ParseIdentity(GenerateIdentity()))(t)
	plain, identified := open(t, Options{}), open(t, Options{Identity: NewIdentity(key)})
	secret, k := NewSecret()
	older, olderKey := NewSecret()
	foreign, _ := NewSecret()
	rawSecret, rawKey := NewRawSecret()
	shortest, longest := bytes.Repeat([]byte{0xff}, minKey), bytes.Repeat([]byte{0xfe}, maxKey)
	all := []string{secret, older, foreign, rawSecret, formatSecret(shortest), formatSecret(longest)}

	var out []delivery
	for _, tt := range []struct {
		name   string
		sender *Sender
		keys   [][]byte
		body   string
		valid  []bool
	}{
		{"plain, as after a rotation", plain, [][]byte{k}, `{"type":"a.b","timestamp":"2026-11-21T12:00:00Z","data":{"n":12345678901234567890.10}}`, []bool{true, false, false, false, false, false}},
		{"rotation", plain, [][]byte{k, olderKey}, `{}`, []bool{true, true, false, false, false, false}},
		{"raw secret", plain, [][]byte{rawKey}, `{}`, []bool{false, false, false, true, false, false}},
		{"shortest key", plain, [][]byte{shortest}, `{}`, []bool{false, false, false, false, true, false}},
		{"longest key", plain, [][]byte{longest}, `{}`, []bool{false, false, false, false, false, true}},
		{"v1a next to v1", identified, [][]byte{k}, `{}`, []bool{true, false, false, false, false, false}},
		{"v1a next to two", identified, [][]byte{olderKey, k}, `{}`, []bool{true, true, false, false, false, false}},
		{"not ASCII", plain, [][]byte{k}, `{"text":"ü ñ 你好 😀 \ufffe \u0000 \"quoted\""}`, []bool{true, false, false, false, false, false}},
		{"white space", plain, [][]byte{k}, "{ \"a\" :\t[1.0e+2,\r\n 12345678901234567890] }\n", []bool{true, false, false, false, false, false}},
		{"largest", plain, [][]byte{k}, `{"pad":"` + strings.Repeat("x", MaxBody-10) + `"}`, []bool{true, false, false, false, false, false}},
	} {
		r := request(srv.URL)
		r.Keys, r.Body = tt.keys, []byte(tt.body)
		expect.OK(t, tt.sender.Send(t.Context(), r).Err)
		got := <-seen
		expect.MustEqual(t, "the body of "+tt.name, string(got.body), tt.body)
		d := delivery{Name: tt.name, Secrets: all, Headers: map[string]string{}, Body: got.body, valid: tt.valid}
		for k := range got.header {
			d.Headers[strings.ToLower(k)] = got.header.Get(k)
		}
		damaged := d
		damaged.Name += ", damaged"
		damaged.Body = slices.Concat(d.Body[:len(d.Body)-1], []byte(" "), d.Body[len(d.Body)-1:])
		damaged.valid = make([]bool, len(all))
		out = append(out, d, damaged)
	}
	return out
}

func compare(t *testing.T, deliveries []delivery, verdicts [][]bool) {
	t.Helper()
	expect.MustEqual(t, "the verdicts on deliveries", len(verdicts), len(deliveries))
	for i, d := range deliveries {
		expect.List(t, d.Name, verdicts[i], d.valid)
	}
}

// program finds the program that runs the library of its language. The subtest is skipped if the machine does not
// have it.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("there is no %s on this machine", name)
	}
	return path
}

// installed runs an installation once for each content of its input files, in the user's cache, and returns the
// directory.
func installed(t *testing.T, name string, files []string, command ...string) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	h := sha256.New()
	contents := map[string][]byte{}
	for _, f := range files {
		b := expect.Value(os.ReadFile(filepath.Join("testdata", "interop", f)))(t)
		contents[f] = b
		h.Write(b)
	}
	final := filepath.Join(cache, "mcpevents", "interop", name+"-"+hex.EncodeToString(h.Sum(nil))[:16])
	if _, err := os.Stat(final); err == nil {
		return final
	}
	expect.OK(t, os.MkdirAll(filepath.Dir(final), 0o755))
	dir := expect.Value(os.MkdirTemp(filepath.Dir(final), name+"-"))(t)
	for f, b := range contents {
		expect.OK(t, os.WriteFile(filepath.Join(dir, f), b, 0o644))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		t.Fatalf("install: %v\n%s", err, out)
	}
	if err := os.Rename(dir, final); err != nil { // another run was first
		_ = os.RemoveAll(dir)
	}
	return final
}

// run runs a script that prints verdicts.
func run(t *testing.T, env []string, command ...string) [][]bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var verdicts [][]bool
	expect.OK(t, json.Unmarshal(out, &verdicts), out)
	return verdicts
}

// vector is a signature that must never change.
type vector struct {
	Secret    string `json:"secret"`
	Key       string `json:"signingKey,omitempty"`
	ID        string `json:"id"`
	Timestamp int64  `json:"timestamp"`
	Body      string `json:"body"`
	Signature string `json:"signature"`
}

// TestSign_Vectors compares with signatures made earlier, which authors of receivers can rely on. The first is the
// test vector of the Standard Webhooks libraries.
func TestSign_Vectors(t *testing.T) {
	const path = "testdata/vectors.json"
	b := expect.Value(os.ReadFile(path))(t)
	var vectors []vector
	expect.OK(t, json.Unmarshal(b, &vectors))
	for i, v := range vectors {
		key := expect.Value(ParseSecret(v.Secret))(t)
		at := time.Unix(v.Timestamp, 0)
		got := Sign([][]byte{key}, v.ID, at, []byte(v.Body))
		if v.Key != "" {
			got += " " + NewIdentity(expect.Value(ParseIdentity(v.Key))(t)).Sign(v.ID, at, []byte(v.Body))
		}
		if *update {
			vectors[i].Signature = got
		} else if got != v.Signature {
			t.Errorf("%s: got %s, want %s", v.ID, got, v.Signature)
		}
	}
	if *update {
		b := expect.Value(json.MarshalIndent(vectors, "", "  "))(t)
		expect.OK(t, os.WriteFile(path, append(b, '\n'), 0o644))
	}
}

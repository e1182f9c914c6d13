package ingest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mcp-events/mcpevents/shared/events/catalog"
	"github.com/mcp-events/mcpevents/shared/events/publish"
	"github.com/mcp-events/mcpevents/shared/events/source"
	"github.com/mcp-events/mcpevents/shared/events/source/verify"
	"github.com/mcp-events/mcpevents/shared/platform/fault"
	"github.com/mcp-events/mcpevents/shared/platform/secret"
)

// Trial is the event that a source would publish for a request or message, or the reason why it would publish none.
type Trial struct {
	Kind Kind `json:"kind"`
	// Signature says whether the request's signature is valid. It is "verified", "not checked", "not checked: REASON" or "not verified:
	// REASON".
	Signature string `json:"signature,omitempty"`
	Reason    string `json:"reason,omitempty"`
	// Mapping is the number of the matching mapping, counted from 1. Zero means that no mapping matches.
	Mapping int    `json:"mapping,omitempty"`
	Name    string `json:"name,omitempty"`
	URI     string `json:"uri,omitempty"`
	ID      string `json:"id,omitempty"`
	// Time is omitted if the request or message has no time. The real event would get the time of its arrival.
	Time     time.Time       `json:"time,omitzero"`
	Data     json.RawMessage `json:"data,omitempty"`
	Faults   any             `json:"faults,omitempty"`
	Document any             `json:"document,omitempty"` // what pointers and patterns are evaluated on
}

// Try shows what a source would do with a saved HTTP request or a saved message of an AWS service, without publishing. It returns one
// Trial for a request, and one for each document in a message, because an S3 notification may have several records. If secrets is nil,
// Try does not check the signature.
//
// If the source would refuse the request or message, its Trial says why. An error means that raw is not a request or message that this
// source can receive.
func Try(ctx context.Context, cat *catalog.Catalog, s source.Source, raw []byte, now time.Time, secrets lookup) ([]Trial, error) {
	if s.From != source.HTTP {
		from, docs, err := source.ReadEnvelope(raw)
		if err != nil {
			return nil, err
		}
		if from != s.From {
			return nil, fault.New(fault.Invalid, "the message is not from %s", s.From)
		}
		trials := make([]Trial, len(docs))
		for i, doc := range docs {
			trials[i] = tryDocument(cat, s, doc, nil)
		}
		return trials, nil
	}
	t, err := tryRequest(ctx, cat, s, raw, now, secrets)
	if err != nil {
		return nil, err
	}
	return []Trial{t}, nil
}

func tryRequest(ctx context.Context, cat *catalog.Catalog, s source.Source, raw []byte, now time.Time, secrets lookup) (Trial, error) {
	r, sent, err := parseSavedRequest(raw)
	if err != nil {
		return Trial{}, err
	}
	signature, body, err := trySignature(ctx, s, r, sent, now, secrets)
	if err != nil {
		return Trial{Kind: kindOf(err), Signature: signature, Reason: fault.Public(err)}, nil
	}
	doc, err := source.ReadRequest(r, body, s.Verify.Headers())
	if err != nil {
		return Trial{Kind: kindOf(err), Signature: signature, Reason: fault.Public(err)}, nil
	}
	if _, ok := challengeOf(s, doc); ok {
		return Trial{Kind: Verified, Signature: signature, Document: doc}, nil
	}
	t := tryDocument(cat, s, doc, body)
	if t.Signature = signature; t.Kind == Accepted && t.Refused() {
		t.Kind = Unverified
	}
	return t, nil
}

type lookup = func(context.Context, secret.Value) (string, error)

// Prefixes of [Trial.Signature].
const (
	signatureGood      = "verified"
	signatureBad       = "not verified"
	signatureUnchecked = "not checked"
)

// Refused reports whether the request would be refused because of its signature, regardless of the event in it.
func (t Trial) Refused() bool { return strings.HasPrefix(t.Signature, signatureBad) }

// trySignature verifies the signature of a saved request. The result said is the text for [Trial.Signature], and body is the decompressed
// body.
//
// Editors add a line break at the end of a file. So trySignature removes it from the body, unless only the body with the line break
// matches the signature.
func trySignature(ctx context.Context, s source.Source, r *http.Request, sent []byte, now time.Time, secrets lookup) (said string, body []byte, err error) {
	candidates := [][]byte{sent}
	if r.Header.Get("Content-Length") == "" {
		trimmed := bytes.TrimSuffix(bytes.TrimSuffix(sent, []byte("\n")), []byte("\r"))
		candidates = [][]byte{trimmed, sent}
	}
	body, err = decode(r.Header, candidates[0])
	if secrets == nil {
		return signatureUnchecked, body, err
	}
	v, faulty := newVerifier(ctx, s, secrets)
	if faulty != nil {
		return signatureUnchecked + ": " + fault.Public(faulty), body, err
	}
	if s.Verify.Scheme == verify.None && r.URL.Path == "" {
		return signatureUnchecked + ": the file has no request line, e.g. POST /sources/" + s.Name + "/SECRET HTTP/1.1", body, err
	}
	key := strings.TrimPrefix(r.URL.Path, "/sources/"+s.Name+"/")
	var refused error
	for _, candidate := range append(candidates, body) {
		if _, refused = v.Verify(verify.Request{Header: r.Header, Body: candidate, Key: key}, now); refused != nil {
			continue
		}
		if !isEncoded(r.Header) {
			body = candidate
		}
		return signatureGood, body, err
	}
	return signatureBad + ": " + fault.Public(refused), body, err
}

func tryDocument(cat *catalog.Catalog, s source.Source, doc any, body []byte) Trial {
	t := Trial{Kind: Unmatched, Document: doc}
	event, err := s.Map(doc)
	if event != nil {
		t.Mapping, t.Name, t.Time, t.Data = event.Mapping+1, event.Name, event.Time, event.Data
		if t.ID = event.ID; t.ID == "" && body != nil {
			t.ID = bodyID(body)
		}
		event.ID = t.ID
		var in publish.Input
		if in, err = newInput(cat, s, event); err == nil {
			t.Kind, t.URI = Accepted, in.URI
			e, refused := publish.Check(cat, in)
			if t.ID, err = e.ID, toUnprocessable(refused); in.ID == "" {
				t.ID = "" // the event would get the id of the message
			}
		}
	}
	if err != nil {
		t.Kind, t.Reason, t.Faults = kindOf(err), fault.Public(err), faultsOf(err)
	}
	return t
}

// requestLine matches the first line of an HTTP request, but no header, because a header's name ends with a colon.
var requestLine = regexp.MustCompile(`^[A-Z]+ \S+ HTTP/[0-9.]+\s*$`)

// parseSavedRequest parses an HTTP request from a file. The request line may be missing. If the request has a Content-Length,
// parseSavedRequest ignores any further bytes, because editors add a line break at the end of a file.
func parseSavedRequest(raw []byte) (*http.Request, []byte, error) {
	if len(raw) > publish.MaxBody+64<<10 {
		return nil, nil, tooLarge()
	}
	reader := bufio.NewReader(bytes.NewReader(raw))
	r := &http.Request{Method: http.MethodPost, URL: &url.URL{}}
	if first, _, _ := bytes.Cut(raw, []byte("\n")); requestLine.Match(first) {
		line, _ := reader.ReadString('\n')
		u, err := url.ParseRequestURI(strings.Fields(line)[1])
		if err != nil {
			return nil, nil, fault.New(fault.Invalid, "the first line is not that of an HTTP request, such as POST /sources/github HTTP/1.1")
		}
		r.URL = u
	}
	header, err := textproto.NewReader(reader).ReadMIMEHeader()
	if err != nil {
		return nil, nil, fault.New(fault.Invalid, "the file is not an HTTP request: its headers, an empty line, its body")
	}
	r.Header = http.Header(header)
	r.Host = cmp.Or(r.URL.Host, r.Header.Get("Host")) // as net/http's server does
	r.Header.Del("Host")
	var body bytes.Buffer
	_, _ = body.ReadFrom(reader) // reading from memory cannot fail
	content := body.Bytes()
	if n, err := strconv.Atoi(r.Header.Get("Content-Length")); err == nil && n >= 0 && n < len(content) {
		content = content[:n]
	}
	return r, content, nil
}

// CheckSources calls [CheckCatalog] for all sources of a workspace, and joins the errors.
func CheckSources(cat *catalog.Catalog, workspace string, sources []source.Source) error {
	var all []error
	for _, s := range sources {
		if s.Workspace == workspace {
			all = append(all, CheckCatalog(cat, s))
		}
	}
	return errors.Join(all...)
}

// CheckCatalog checks the mappings of a source against the catalog of its workspace: the event types must exist, with the same variables.
// Errors are of kind fault.Invalid.
func CheckCatalog(cat *catalog.Catalog, s source.Source) error {
	var all []error
	for _, m := range s.Events {
		at := fmt.Sprintf("line %d: source %s: %s", m.Line, s.Name, m.Name)
		entry := cat.ByName(m.Name)
		if entry == nil {
			all = append(all, fault.New(fault.Invalid, "%s is not an event type in the catalog of workspace %s", at, s.Workspace))
			continue
		}
		given := map[string]string{}
		for name := range m.Variables {
			given[name] = ""
		}
		known := "none"
		if names := entry.Variables(); len(names) > 0 {
			known = strings.Join(names, ", ")
		}
		switch missing := missingVariables(entry, given); len(missing) {
		case 0:
		case 1:
			all = append(all, fault.New(fault.Invalid, "%s: the variable %s is missing", at, missing[0]))
		default:
			all = append(all, fault.New(fault.Invalid, "%s: the variables %s are missing", at, strings.Join(missing, ", ")))
		}
		for _, name := range slices.Sorted(maps.Keys(given)) {
			if !slices.Contains(entry.Variables(), name) {
				all = append(all, fault.New(fault.Invalid, "%s: the event type does not have %s (it has: %s); delete it from variables", at, name, known))
			}
		}
	}
	return errors.Join(all...)
}

func missingVariables(entry *catalog.Entry, given map[string]string) []string {
	var missing []string
	for _, name := range entry.Variables() {
		if _, ok := given[name]; !ok {
			missing = append(missing, name)
		}
	}
	return missing
}

// CheckSecrets returns an error of kind fault.Invalid for each source whose secret does not exist or does not suit the verification
// scheme. It joins the errors.
func CheckSecrets(ctx context.Context, sources []source.Source, secrets lookup) error {
	var all []error
	for _, s := range sources {
		if len(s.Secrets) == 0 {
			continue
		}
		_, err := newVerifier(ctx, s, secrets)
		all = append(all, fault.Wrap(fault.Invalid, err, "line %d: source %s", s.Line, s.Name))
	}
	return errors.Join(all...)
}

func newVerifier(ctx context.Context, s source.Source, lookup lookup) (*verify.Verifier, error) {
	secrets := make([]string, len(s.Secrets))
	for i, v := range s.Secrets {
		var err error
		if secrets[i], err = lookup(ctx, v); err != nil {
			return nil, err
		}
	}
	return verify.New(s.Verify, secrets)
}

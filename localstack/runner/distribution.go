package runner

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/mcp-events/mcpevents/localstack/internal/cloudfront"
	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

const (
	distributionType    = "AWS::CloudFront::Distribution"
	responseHeadersType = "AWS::CloudFront::ResponseHeadersPolicy"
)

// distributions are the running CloudFront distributions and the policies that they use.
type distributions struct {
	running  map[string]*distribution // by logical id
	policies sync.Map                 // from the id of a policy to a cloudfront.ResponseHeaders
}

// distribution is at one address until the stack ends.
type distribution struct {
	addr string

	mu     sync.Mutex
	serves *deployed // nil if it was removed
}

// deployed is one configuration of a distribution, with its running requests, except for streams.
type deployed struct {
	*cloudfront.Distribution
	calls sync.WaitGroup
}

func (d *distribution) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	serves := d.serves
	if serves == nil {
		d.mu.Unlock()
		http.Error(w, "This distribution was removed.", http.StatusForbidden)
		return
	}
	serves.calls.Add(1)
	d.mu.Unlock()
	call := &call{ResponseWriter: w, done: sync.OnceFunc(serves.calls.Done)}
	defer call.done()
	serves.ServeHTTP(call, r)
}

// deploy replaces the configuration and waits for the calls that the old one serves. Likewise, CloudFormation deletes a
// function only after CloudFront has deployed a change everywhere, which takes minutes.
func (d *distribution) deploy(next *deployed) {
	d.mu.Lock()
	old := d.serves
	d.serves = next
	d.mu.Unlock()
	if old == nil {
		return
	}
	done := make(chan struct{})
	go func() {
		old.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closeTime):
	}
}

// call is the response to a request. It is done when it turns out to be a stream.
type call struct {
	http.ResponseWriter
	done func()
}

func (c *call) WriteHeader(status int) {
	if strings.HasPrefix(c.Header().Get("Content-Type"), "text/event-stream") {
		c.done()
	}
	c.ResponseWriter.WriteHeader(status)
}

// Unwrap lets [http.ResponseController] flush the response.
func (c *call) Unwrap() http.ResponseWriter { return c.ResponseWriter }

// distribution creates or changes a distribution. Its attribute DomainName is an address on this machine.
func (s *scope) distribution(r *template.Resource, name string) (*made, error) {
	var p struct{ DistributionConfig cloudfront.Config }
	if err := s.tpl.Properties(r, s, &p); err != nil {
		return nil, err
	}
	all := &s.stack.distributions
	d := all.running[r.ID]
	if d == nil {
		d = &distribution{}
		addr, err := s.stack.serve("127.0.0.1:0", d)
		if err != nil {
			return nil, err
		}
		d.addr = addr.String()
		all.running[r.ID] = d
	}
	serves, err := cloudfront.New(d.addr, p.DistributionConfig, func(id string) cloudfront.ResponseHeaders {
		policy, _ := all.policies.Load(id)
		headers, _ := policy.(cloudfront.ResponseHeaders)
		return headers
	})
	if err != nil {
		return nil, err
	}
	s.stack.progress("front  %s at %s", cmp.Or(strings.Join(p.DistributionConfig.Aliases, ", "), name), d.addr)
	d.deploy(&deployed{Distribution: serves})
	remove := func(context.Context) error {
		d.deploy(nil)
		return nil
	}
	return &made{ref: name, attributes: map[string]string{"DomainName": d.addr}, remove: remove}, nil
}

func (s *scope) responseHeaders(r *template.Resource, name string) (*made, error) {
	var p struct {
		ResponseHeadersPolicyConfig cloudfront.ResponseHeaders
	}
	if err := s.tpl.Properties(r, s, &p); err != nil {
		return nil, err
	}
	s.stack.distributions.policies.Store(name, p.ResponseHeadersPolicyConfig)
	return &made{ref: name}, nil
}

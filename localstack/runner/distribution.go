package runner

import (
	"cmp"
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"

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
	addr   string
	serves atomic.Pointer[cloudfront.Distribution] // nil if it was removed
}

func (d *distribution) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if serves := d.serves.Load(); serves != nil {
		serves.ServeHTTP(w, r)
		return
	}
	http.Error(w, "This distribution was removed.", http.StatusForbidden)
}

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
	d.serves.Store(serves)
	remove := func(context.Context) error {
		d.serves.Store(nil)
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

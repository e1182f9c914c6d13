// Package cloudfront serves a CloudFront distribution. It chooses the origin by the path, and changes headers as
// CloudFront does. It does not cache, compress or encrypt, and refuses distributions that would need that.
package cloudfront

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/mcp-events/mcpevents/localstack/internal/template"
)

// Config is the configuration of an AWS::CloudFront::Distribution.
type Config struct {
	Aliases              []string
	Origins              []Origin
	DefaultCacheBehavior Behavior
	CacheBehaviors       []Behavior

	// They have no effect here.
	Enabled, Comment, HttpVersion, IPV6Enabled, ViewerCertificate, WebACLId json.RawMessage
}

// Origin is a server to which requests are sent.
type Origin struct {
	Id                 string
	DomainName         string // here with a port
	CustomOriginConfig struct {
		OriginReadTimeout template.Int

		OriginProtocolPolicy, OriginSSLProtocols, OriginKeepaliveTimeout json.RawMessage
	}
	OriginCustomHeaders []struct{ HeaderName, HeaderValue string }
}

// Behavior says how requests for some paths are served.
type Behavior struct {
	PathPattern             string
	TargetOriginId          string
	AllowedMethods          []string
	Compress                template.Bool
	CachePolicyId           string
	OriginRequestPolicyId   string
	ResponseHeadersPolicyId string

	ViewerProtocolPolicy json.RawMessage
}

// ResponseHeaders is the configuration of an AWS::CloudFront::ResponseHeadersPolicy.
type ResponseHeaders struct {
	Name                string
	CustomHeadersConfig struct {
		Items []struct {
			Header, Value string
			Override      template.Bool
		}
	}
}

// The managed policies that are supported, by their names.
const (
	cachingDisabled     = "4135ea2d-6df8-44a3-9df3-4b5a84be39ad" // CachingDisabled
	allViewerExceptHost = "b689b0a8-53d0-40ab-baf2-68738e2966ac" // AllViewerExceptHostHeader
)

// Distribution serves requests for its domain and its aliases.
type Distribution struct {
	hosts  []string
	routes []route // the default is the last one
}

type route struct {
	path    *regexp.Regexp
	methods []string
	proxy   *httputil.ReverseProxy
}

// New returns the distribution with a domain. The function policy returns the policy for response headers with an id.
func New(domain string, c Config, policy func(id string) ResponseHeaders) (*Distribution, error) {
	d := &Distribution{hosts: append([]string{domain}, c.Aliases...)}
	last := c.DefaultCacheBehavior
	last.PathPattern = "*"
	for _, b := range append(slices.Clone(c.CacheBehaviors), last) {
		i := slices.IndexFunc(c.Origins, func(o Origin) bool { return o.Id == b.TargetOriginId })
		switch {
		case i < 0:
			return nil, fmt.Errorf("behavior %s: there is no origin %q", b.PathPattern, b.TargetOriginId)
		case bool(b.Compress) || b.CachePolicyId != cachingDisabled || b.OriginRequestPolicyId != allViewerExceptHost:
			return nil, fmt.Errorf("behavior %s: only the policies CachingDisabled and AllViewerExceptHostHeader are supported, without compression", b.PathPattern)
		}
		d.routes = append(d.routes, route{
			path: pattern(b.PathPattern), methods: b.AllowedMethods,
			proxy: c.Origins[i].proxy(func() ResponseHeaders { return policy(b.ResponseHeadersPolicyId) }),
		})
	}
	return d, nil
}

// pattern converts a path pattern, in which * stands for any characters and ? for one.
func pattern(p string) *regexp.Regexp {
	p = regexp.QuoteMeta("/" + strings.TrimPrefix(p, "/"))
	p = strings.NewReplacer(`/\*`, `/.*`, `\*`, `.*`, `\?`, `.`).Replace(p)
	return regexp.MustCompile(`^` + p + `$`)
}

func (d *Distribution) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil && !slices.Contains(d.hosts, host) {
		host = name
	}
	if !slices.Contains(d.hosts, host) {
		refuse(w, http.StatusForbidden, "No distribution has this name.")
		return
	}
	for _, route := range d.routes {
		if !route.path.MatchString(r.URL.Path) {
			continue
		}
		if !slices.Contains(route.methods, r.Method) {
			refuse(w, http.StatusForbidden, "This distribution does not allow the HTTP method.")
			return
		}
		route.proxy.ServeHTTP(w, r)
		return
	}
}

// proxy returns the proxy for an origin. It forwards what the origin writes immediately.
func (o Origin) proxy(policy func() ResponseHeaders) *httputil.ReverseProxy {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableCompression = true
	transport.ResponseHeaderTimeout = time.Duration(o.CustomOriginConfig.OriginReadTimeout) * time.Second
	return &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: o.DomainName})
			p.Out.Header["X-Forwarded-For"] = p.In.Header["X-Forwarded-For"]
			p.SetXForwarded() // adds the viewer's address
			p.Out.Header.Del("X-Forwarded-Proto")
			p.Out.Header.Del("X-Forwarded-Host")
			p.Out.Header.Set("Via", "1.1 local.cloudfront.net (CloudFront)")
			p.Out.Header.Set("X-Amz-Cf-Id", uuid.NewString())
			for _, h := range o.OriginCustomHeaders {
				p.Out.Header.Set(h.HeaderName, h.HeaderValue)
			}
		},
		ModifyResponse: func(resp *http.Response) error {
			for _, h := range policy().CustomHeadersConfig.Items {
				if bool(h.Override) || resp.Header.Get(h.Header) == "" {
					resp.Header.Set(h.Header, h.Value)
				}
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			status := http.StatusBadGateway
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				status = http.StatusGatewayTimeout
			}
			refuse(w, status, "CloudFront could not connect to the origin.")
		},
	}
}

func refuse(w http.ResponseWriter, status int, text string) {
	w.Header().Set("X-Cache", "Error from cloudfront")
	http.Error(w, text, status)
}

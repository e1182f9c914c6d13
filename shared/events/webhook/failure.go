package webhook

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
)

// stageError records the stage in which an error occurred, for [diagnose]. For example, an EOF during a handshake is
// a different failure from an EOF during a response.
type stageError struct {
	stage string
	err   error
}

const (
	stageDial = "dial"
	stageTLS  = "tls"
)

func (e *stageError) Error() string { return e.stage } // never shown
func (e *stageError) Unwrap() error { return e.err }

// diagnose classifies an error of an exchange and describes it in our own words. Parent is the caller's context,
// which does not have the timeout of the exchange.
func diagnose(parent context.Context, x *exchange, err error) *Failure {
	switch {
	case parent.Err() != nil:
		return &Failure{Aborted, "the sender stopped"}
	case errors.Is(err, errNoConn), !x.reached.Load() && x.ctx.Err() != nil:
		return &Failure{Internal, "no connection was free in time"}
	case errors.Is(err, errExcess):
		return &Failure{ConnectionRefused, errExcess.Error()}
	}
	if errno := ours(err); errno != 0 {
		return &Failure{Internal, errno.Error()}
	}
	if b, ok := errors.AsType[blocked](err); ok {
		return &Failure{Blocked, b.Error()}
	}
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		switch {
		case d.IsNotFound:
			return &Failure{DNSError, "the name has no address"}
		case d.IsTimeout:
			return &Failure{DNSError, "the name server did not answer in time"}
		}
		return &Failure{DNSError, "the name server failed"}
	}
	stage := "exchange"
	if s, ok := errors.AsType[*stageError](err); ok {
		stage = s.stage
	}
	if t, ok := errors.AsType[interface {
		error
		Timeout() bool
	}](err); ok && t.Timeout() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		switch stage {
		case stageDial:
			return &Failure{Timeout, "no connection in time"}
		case stageTLS:
			return &Failure{Timeout, "no TLS handshake in time"}
		}
		return &Failure{Timeout, "the exchange was not complete in time"}
	}
	if stage == stageTLS || isTLS(err) {
		return &Failure{TLSError, tlsDetail(err)}
	}
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return &Failure{ConnectionRefused, errno.Error()}
	}
	if stage == stageDial {
		return &Failure{ConnectionRefused, "no connection"}
	}
	return &Failure{ConnectionRefused, "the connection ended without a valid answer"}
}

// exhausted lists the errors of a process or machine that has run out of a resource.
var exhausted = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// ours returns the error number of a failure that is on our side, or 0.
func ours(err error) syscall.Errno {
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		// A DNSError keeps at most the text of a socket error. If the resolver could not open its own configuration,
		// it reports an unknown name. So we test whether the process can still open a file.
		for _, errno := range exhausted {
			if strings.HasSuffix(d.Err, errno.Error()) {
				return errno
			}
		}
		var f *os.File
		if f, err = os.Open(os.DevNull); err == nil {
			_ = f.Close()
		}
	}
	for _, errno := range exhausted {
		if errors.Is(err, errno) {
			return errno
		}
	}
	// EADDRNOTAVAIL means that no local port is left. But a machine without IPv6 returns the same error for every
	// IPv6 address, and then the target is unreachable, so we look at IPv4 only.
	if o, ok := errors.AsType[*net.OpError](err); ok && errors.Is(err, syscall.EADDRNOTAVAIL) {
		if a, ok := o.Addr.(*net.TCPAddr); ok && a.IP.To4() != nil {
			return syscall.EADDRNOTAVAIL
		}
	}
	return 0
}

func isTLS(err error) bool {
	if _, ok := errors.AsType[tls.AlertError](err); ok {
		return true
	}
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok
}

// tlsDetail describes a TLS error in our own words, because the errors of crypto/x509 quote names from the endpoint's
// certificate.
func tlsDetail(err error) string {
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "the certificate is for another name"
	}
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "the certificate is not from a known authority"
	}
	if c, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if c.Reason == x509.Expired {
			return "the certificate has expired or is not valid yet"
		}
		return "the certificate is not valid"
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "the certificate is not valid"
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "the endpoint does not speak TLS"
	}
	return "the handshake failed"
}

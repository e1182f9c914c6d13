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

// stageError marks where an error came up, for [diagnose]: an EOF in a handshake
// is another failure than an EOF in an answer.
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

// diagnose finds category and words for an error of an exchange. Parent is the
// caller's context, without the timeout of the exchange.
func diagnose(parent context.Context, x *exchange, err error) *Failure {
	switch {
	case parent.Err() != nil:
		return &Failure{Aborted, "the sender stopped"}
	case errors.Is(err, errNoPlace), !x.reached.Load() && x.ctx.Err() != nil:
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

// exhausted are the errors of a machine or a process that has no more of something.
var exhausted = []syscall.Errno{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}

// ours is the error number of a failure that is not the endpoint's, or 0.
func ours(err error) syscall.Errno {
	if d, ok := errors.AsType[*net.DNSError](err); ok {
		// It keeps the text of a socket's error at most, and a resolver that cannot
		// open its own configuration knows no name.
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
	// No port is left. A machine without IPv6 has the same error for every IPv6
	// address, and then it is the target that cannot be reached.
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

// tlsDetail keeps to our own words: the errors of crypto/x509 list the names in
// the endpoint's certificate.
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

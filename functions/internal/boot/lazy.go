package boot

import (
	"context"
	"net/http"
	"sync"
)

// Lazy is a value whose creation needs requests. It is created at first use and kept. After a failure, the next use
// tries again.
type Lazy[T any] struct {
	make func(context.Context) (T, error)

	mu    sync.Mutex
	made  bool
	value T
}

// NewLazy returns a lazy value that is created by make.
func NewLazy[T any](make func(context.Context) (T, error)) *Lazy[T] { return &Lazy[T]{make: make} }

// Get returns the value. Concurrent callers wait while it is being created.
func (l *Lazy[T]) Get(ctx context.Context) (T, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.made {
		v, err := l.make(ctx)
		if err != nil {
			return v, err
		}
		l.value, l.made = v, true
	}
	return l.value, nil
}

// Made returns the value if it has been created.
func (l *Lazy[T]) Made() (value T, made bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.value, l.made
}

// Handler returns a handler that uses a lazy handler. It responds with 503 if that cannot be created.
func (p *Process) Handler(l *Lazy[http.Handler]) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := l.Get(r.Context())
		if err != nil {
			p.Log.ErrorContext(r.Context(), "function not ready", "error", err)
			w.Header().Set("Retry-After", "1")
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = w.Write([]byte(`{"error":{"kind":"unavailable","message":"the service is not ready"}}` + "\n"))
			return
		}
		h.ServeHTTP(w, r)
	})
}

// Serve returns the routes of a function with a URL: h at the given paths, GET /healthz, and with JWTs the protected
// resource metadata.
func (p *Process) Serve(h http.Handler, paths ...string) *http.ServeMux {
	mux := http.NewServeMux()
	for _, path := range paths {
		mux.Handle(path, h)
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"status":"ok"}` + "\n"))
	})
	if p.mount != nil {
		p.mount(mux)
	}
	return mux
}

//go:build !unix

package descriptors

func limit() int { return 1 << 14 }

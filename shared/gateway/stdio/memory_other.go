//go:build !linux

package stdio

// limitMemory does nothing, because only Linux can limit another process.
func limitMemory(int, int64) error { return nil }

//go:build !race

package delivery

// everyPoint is the distance of the crash points that are tried: all of them.
const everyPoint = 1

//go:build !race

package delivery

// everyPoint is the distance between the tested crash points. Without the race detector, the tests try all of them.
const everyPoint = 1

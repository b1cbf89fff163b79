//go:build !cgo

package codec

import "loaderx/gopkg/codec/purezstd"

var zstd backend = purezstd.Backend{}
